package controller

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/plancli"

	api "tangram.dev/api/v1alpha2"
)

// unsized returns a deployment without spec.memory.
func (b *bed) unsized(n int32) *api.MoEDeployment {
	d := b.deployment("w", n)
	d.Spec.Memory, d.Spec.Tuning.GranuleRows = api.Memory{}, 0
	return d
}

// reads sets the result of the pod that reads the checkpoint.
func (b *bed) reads(message string, code int32, args *[]string) {
	f := func(given []string) (string, int32) {
		if args != nil {
			*args = given
		}
		return message, code
	}
	b.sizes.Store(&f)
}

func sizeOf(t *testing.T) string {
	text, err := json.Marshal(plancli.CheckpointSize{Model: "m", GranuleRows: 8, ExpertBytes: 3 << 20, SizeReport: plancli.SizeReport{WeightsBytes: 64 << 20, KVBytes: 16 << 20,
		Items: []plancli.SizeItem{{Name: "experts", Bytes: 64 << 20}, {Name: "KV cache", Bytes: 16 << 20}}}})
	require.NoError(t, err)
	return string(text)
}

// If spec.memory is empty, a pod computes it from the checkpoint. It is written into the spec and stays.
func TestSizing_WhenSpecHasNoMemory(t *testing.T) {
	b := newBed(t)
	var args []string
	b.reads(sizeOf(t), 0, &args)
	d := b.unsized(2)
	d.Spec.MinReplicas, d.Spec.Template.Spec.ImagePullSecrets = ptr.To[int32](1), []corev1.LocalObjectReference{{Name: "pull"}}
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	require.Contains(t, args, "--ranks=1,2,3,4", "from minReplicas to twice replicas")
	require.Contains(t, args, "--model=/models/demo")
	require.True(t, d.Spec.Memory.Weights.Equal(resource.MustParse("64Mi")) && d.Spec.Memory.KVCache.Equal(resource.MustParse("16Mi")), "%+v", d.Spec.Memory)
	require.EqualValues(t, 8, d.Spec.Tuning.GranuleRows)
	require.Equal(t, []api.MemoryItem{{Item: "experts", Bytes: 64 << 20}, {Item: "KV cache", Bytes: 16 << 20}}, d.Status.Memory.Budget)
	err := b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: sizeName(d)}, &corev1.Pod{})
	require.True(t, apierrors.IsNotFound(err), "the pod is gone: %v", err)

	b.reads("", 1, nil) // it is not computed again
	b.scale(3)
	require.EqualValues(t, 3, b.ready("w").Status.Ranks)
	again := b.unsized(3) // as kubectl replace, with a manifest without spec.memory
	again.ResourceVersion = b.get("w").ResourceVersion
	require.NoError(t, b.c.Update(t.Context(), again))
	b.until("w", "the same memory", func(d *api.MoEDeployment) bool { return d.Spec.Memory.Weights.Equal(resource.MustParse("64Mi")) })
	b.change(`{"spec":{"standbyReplicas":1}}`)
	b.ready("w")
}

// A failure of the pod is reported, and the operator tries again.
func TestSizing_WhenCheckpointIsMissing(t *testing.T) {
	b := newBed(t)
	b.reads("tangram-operator: /models/demo: no such file or directory", 1, nil)
	d := b.unsized(1)
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.degraded("w", api.ReasonInvalidSpec, "The memory cannot be computed from the checkpoint", "no such file or directory")
	require.Empty(t, b.ranks("w"), "no rank without memory")
	b.reads("what is this", 0, nil)
	b.degraded("w", api.ReasonPodsFailing, `returned an invalid size: "what is this"`)
	require.NoError(t, b.c.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: sizeName(d)}}))
	b.reads(sizeOf(t), 0, nil)
	b.ready("w")
	require.False(t, slices.Contains(b.podNames("w"), sizeName(d)))
}

// Values in the spec are kept; only missing ones are computed.
func TestSizing_WhenSpecHasWeights(t *testing.T) {
	b := newBed(t)
	b.reads(sizeOf(t), 0, nil)
	d := b.unsized(1)
	d.Spec.Memory.Weights = resource.MustParse("80Mi")
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	require.True(t, d.Spec.Memory.Weights.Equal(resource.MustParse("80Mi")) && d.Spec.Memory.KVCache.Equal(resource.MustParse("16Mi")), "%+v", d.Spec.Memory)
}
