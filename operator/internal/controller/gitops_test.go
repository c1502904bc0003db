package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha2"
)

// Field managers, with the names that the tools use.
const (
	flux       = "kustomize-controller"
	autoscaler = "kube-controller-manager"
)

// committed is the manifest of world w in a repository: without replicas, which the autoscaler owns.
func (b *bed) committed() *unstructured.Unstructured {
	b.t.Helper()
	u := &unstructured.Unstructured{}
	require.NoError(b.t, yaml.UnmarshalStrict([]byte(`
apiVersion: serving.tangram.dev/v1alpha2
kind: MoEDeployment
metadata: {name: w, labels: {kustomize.toolkit.fluxcd.io/name: worlds, kustomize.toolkit.fluxcd.io/namespace: flux-system}}
spec:
  parallelism: {mode: Auto, auto: {policy: Threshold, action: Apply}}
  model: {source: {persistentVolumeClaim: {claimName: models, path: demo}}}
  engine: {name: reference, args: [--max-model-len, "512"]}
  transition: {timeoutSeconds: 86400}
  memory: {weights: 64Mi, kvCache: 16Mi}
  tuning: {spareBanks: 1, granuleRows: 8}
`), u))
	u.SetNamespace(b.namespace)
	return u
}

// sync applies like Flux: server-side apply with force. drifted are the fields that a dry run would change.
func (b *bed) sync(committed *unstructured.Unstructured) (drifted []string) {
	b.t.Helper()
	for { // until no other client wrote in between
		live, would := committed.DeepCopy(), committed.DeepCopy()
		require.NoError(b.t, b.c.Get(b.t.Context(), client.ObjectKeyFromObject(live), live))
		require.NoError(b.t, b.c.Apply(b.t.Context(), client.ApplyConfigurationFromUnstructured(would), client.FieldOwner(flux), client.ForceOwnership, client.DryRunAll))
		if b.get("w").ResourceVersion != live.GetResourceVersion() {
			continue
		}
		before, after := fieldsOf(b.t, live), fieldsOf(b.t, would)
		for _, key := range slices.Sorted(maps.Keys(after)) {
			if before[key] != after[key] {
				drifted = append(drifted, key+": "+before[key]+" -> "+after[key])
			}
		}
		break
	}
	require.NoError(b.t, b.c.Apply(b.t.Context(), client.ApplyConfigurationFromUnstructured(committed.DeepCopy()), client.FieldOwner(flux), client.ForceOwnership))
	return drifted
}

// fieldsOf returns the fields of an object that a tool compares.
func fieldsOf(t *testing.T, o any) map[string]string {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	var all struct {
		Metadata struct{ Labels, Annotations map[string]string } `json:"metadata"`
		Spec     map[string]any                                  `json:"spec"`
	}
	require.NoError(t, json.Unmarshal(text, &all))
	out := map[string]string{}
	for key, value := range all.Spec {
		one, err := json.Marshal(value)
		require.NoError(t, err)
		out["spec."+key] = string(one)
	}
	for key, value := range all.Metadata.Labels {
		out["label "+key] = value
	}
	for key, value := range all.Metadata.Annotations {
		out["annotation "+key] = value
	}
	return out
}

// scaleTo scales like an autoscaler.
func (b *bed) scaleTo(n int32) {
	b.t.Helper()
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: n}}
	require.NoError(b.t, b.c.SubResource("scale").Update(b.t.Context(), b.get("w"), client.WithSubResourceBody(scale), client.FieldOwner(autoscaler)))
}

// ownersOf returns the fields of a spec by manager.
func ownersOf(t *testing.T, d *api.MoEDeployment) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, entry := range d.ManagedFields {
		var fields map[string]map[string]any
		require.NoError(t, json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields))
		for field := range fields["f:spec"] {
			if field != "." {
				out[entry.Manager] = append(out[entry.Manager], field)
			}
		}
	}
	return out
}

// An autoscaler owns the number of ranks, the policy the active mode, and a GitOps tool the committed fields. Whatever
// they do, and after a death, applying again changes nothing and overwrites no field of another manager.
func TestGitOpsAutoscalerAndPolicyOwnSeparateFields(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	committed, first := b.committed(), b.committed()
	require.NoError(t, unstructured.SetNestedField(first.Object, int64(2), "spec", "replicas")) // until there is an autoscaler
	require.NoError(t, b.c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(first), client.FieldOwner(flux), client.ForceOwnership))
	d := b.ready("w")
	generation := d.Generation
	syncs := 0
	settled := func(what string) {
		t.Helper()
		for range 3 {
			require.Empty(t, b.sync(committed), what)
			syncs++
		}
		now := b.get("w")
		require.Equal(t, generation, now.Generation, "%s: applying again changes no spec", what)
		owners := ownersOf(t, now)
		require.Equal(t, []string{"f:replicas"}, owners[autoscaler], "%s: %v", what, owners)
		require.NotContains(t, owners[flux], "f:replicas", what)
		delete(owners, autoscaler)
		delete(owners, flux)
		require.Empty(t, owners, "%s: the operator owns no field of a spec", what)
	}
	wide := func(n int32) *api.MoEDeployment {
		t.Helper()
		b.scaleTo(n)
		generation++
		require.Empty(t, b.sync(committed), "while the world changes")
		return b.until("w", "as wide as the autoscaler wants", func(d *api.MoEDeployment) bool {
			return d.Status.Ranks == n && has(d, api.ConditionReady, metav1.ConditionTrue, api.ReasonServing) && b.recent(d)
		})
	}
	d = wide(3)
	settled("wider")
	l := b.loaded(d, 3)
	committed.SetAnnotations(map[string]string{"gateways": "there"}) // triggers the reconcile that finds `loaded`
	b.until("w", "in mode TensorParallel", inMode(api.ModeTensor))
	settled("the policy switched")
	l.set(600)
	b.until("w", "in mode ExpertParallel again", inMode(api.ModeExpert))
	settled("it switched back")
	d = wide(4)
	b.die(d.Status.Members[1].Pod)
	b.repaired(4, d.Status.Epoch)
	settled("a rank died")
	wide(2)
	settled("narrower")
	t.Logf("%d times applied again, %d transitions", syncs, len(b.history()))

	// The GitOps tool reverts manual changes of committed fields.
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel","auto":null}}}`)
	require.NotEmpty(t, b.sync(committed))
	require.Equal(t, api.ModeAuto, b.get("w").SpecMode())
}

// A manifest without spec.replicas keeps the number, however it is applied and whichever client set it.
func TestReplicas_WhenOmittedFromManifest(t *testing.T) {
	tests := map[string]func(*bed, *unstructured.Unstructured){
		"server-side apply": func(b *bed, without *unstructured.Unstructured) { b.sync(without) },
		"kubectl apply":     func(b *bed, _ *unstructured.Unstructured) { b.change(`{"spec":{"replicas":null}}`) }, // what it sends if the manifest before had them
		"kubectl replace": func(b *bed, without *unstructured.Unstructured) {
			without.SetResourceVersion(b.get("w").ResourceVersion)
			require.NoError(b.t, b.c.Update(b.t.Context(), without))
		},
	}
	for name, apply := range tests {
		for _, scaled := range []int32{0, 3} {
			t.Run(fmt.Sprintf("%s, scaled to %d", name, scaled), func(t *testing.T) {
				b := newBed(t)
				with, without := b.committed(), b.committed()
				require.NoError(t, unstructured.SetNestedField(with.Object, int64(2), "spec", "replicas"))
				require.NoError(t, b.c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(with), client.FieldOwner(flux), client.ForceOwnership))
				b.ready("w")
				want := int32(2)
				if scaled > 0 {
					want = scaled
					b.scaleTo(want)
					b.ready("w")
				}
				apply(b, without)
				d := b.until("w", "the number is there again", func(d *api.MoEDeployment) bool {
					return d.Spec.Replicas > 0 && d.Status.ObservedGeneration == d.Generation
				})
				require.Equal(t, want, d.Spec.Replicas)
				require.Equal(t, want, d.Status.Ranks)
				b.scaleTo(want + 1) // the autoscaler can continue
			})
		}
	}
}
