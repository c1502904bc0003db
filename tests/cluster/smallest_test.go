package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tangram.dev/api/v1alpha2"
)

// smallest is the smallest useful manifest: the operator computes the memory from the checkpoint.
const smallest = `apiVersion: serving.tangram.dev/v1alpha2
kind: MoEDeployment
metadata: {name: demo}
spec:
  replicas: 2
  model:
    source: {persistentVolumeClaim: {claimName: models, path: demo}}
  engine: {name: reference}
  gateway: {service: {type: NodePort}, text: {tokenizer: Bytes}}
`

// A manifest of at most 12 lines serves, and the world has memory to change its number of ranks and its mode.
func TestSmallestManifest(t *testing.T) {
	t.Parallel()
	require.LessOrEqual(t, strings.Count(smallest, "\n"), 12)
	file := filepath.Join(t.TempDir(), "smallest.yaml")
	require.NoError(t, os.WriteFile(file, []byte(smallest), 0o600))
	k := namespace(t, "")
	require.NoError(t, k.ApplyFile(t.Context(), file))
	require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	d := requireAtRest(t, k, "demo-0", "demo-1")
	require.Equal(t, d.Spec.Memory.Weights.Value(), d.Status.Memory.WeightsBytes)
	var sum int64
	for _, item := range d.Status.Memory.Budget {
		sum += item.Bytes
	}
	require.Equal(t, d.Spec.Memory.Weights.Value()+d.Spec.Memory.KVCache.Value(), sum, "%+v", d.Status.Memory.Budget)
	underLoad(t, k, func() {
		require.NoError(t, k.Scale(t.Context(), object, 4))
		require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
		require.NoError(t, k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"TensorParallel"}}}`))
		require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	})
	requireAtRest(t, k, "demo-0", "demo-1", "demo-2", "demo-3")
	require.NoError(t, k.ApplyFile(t.Context(), file), "again, after the operator wrote what it leaves out")
	require.NoError(t, k.Scale(t.Context(), object, 2))
	require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	again := deployment(t, k)
	require.True(t, again.Spec.Memory.Weights.Equal(d.Spec.Memory.Weights), "the memory stays")
	requireDeleted(t, k) // otherwise Kubernetes rechecks only after half of the default grace period: five minutes
}

// A namespace whose quota requires limits of every container: a world with templates for all containers serves there;
// without them the missing ones are named.
func TestQuotaRequiresLimits(t *testing.T) {
	t.Parallel()
	k := namespace(t, "")
	demanded := corev1.ResourceList{}
	for name, amount := range map[corev1.ResourceName]string{corev1.ResourceLimitsCPU: "64", corev1.ResourceLimitsMemory: "64Gi", corev1.ResourceRequestsCPU: "64",
		corev1.ResourceRequestsMemory: "64Gi"} {
		demanded[name] = resource.MustParse(amount)
	}
	require.NoError(t, k.Apply(t.Context(), &corev1.ResourceQuota{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"}, ObjectMeta: metav1.ObjectMeta{Name: "limits"},
		Spec: corev1.ResourceQuotaSpec{Hard: demanded}}))
	limits := func(name, memory string) v1alpha2.ContainerTemplate {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse(memory)}
		requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse(memory)}
		return v1alpha2.ContainerTemplate{Name: name, Resources: v1alpha2.Resources{Limits: list, Requests: requests}}
	}
	limited := func(s *v1alpha2.MoEDeploymentSpec) {
		agent, hook := limits("agent", "1Gi"), limits("hook", "64Mi")
		delete(agent.Resources.Limits, corev1.ResourceMemory) // the operator sets it
		delete(agent.Resources.Requests, corev1.ResourceMemory)
		s.Memory = v1alpha2.Memory{}
		s.Tuning.GranuleRows = 0
		s.Template.Spec.Containers = []v1alpha2.ContainerTemplate{agent, limits("engine", "512Mi")}
		s.Template.Spec.InitContainers = []v1alpha2.InitContainerTemplate{{Name: hook.Name, Resources: hook.Resources}}
		s.Gateway.Template.Spec.Containers = []v1alpha2.ContainerTemplate{limits("gateway", "512Mi")}
	}
	require.NoError(t, k.Apply(t.Context(), manifest(1, nil)))
	requireCondition(t, k, v1alpha2.ConditionDegraded, "True", v1alpha2.ReasonObjectRejected, "limits.cpu", "demo-0")
	requireDeleted(t, k)
	serve(t, k, 1, limited)
	require.NoError(t, client(t, k).Do(t.Context(), newTrace(t).At(1)).Err)
	requireAtRest(t, k, "demo-0")
}
