package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/kube"
)

// More pods than fit in the nodes' memory: the world reports it, keeps serving, and can be scaled back.
func TestUnschedulable(t *testing.T) {
	k := namespace(t, "")
	// A node of 6 GiB has room for two pods of a little over 2 GiB each.
	serve(t, k, 2, func(s *v1alpha2.MoEDeploymentSpec) { s.Memory.Weights = resource.MustParse("2Gi") })
	before := deployment(t, k).Status
	underLoad(t, k, func() {
		require.NoError(t, k.Scale(t.Context(), object, 6))
		requireCondition(t, k, v1alpha2.ConditionDegraded, "True", v1alpha2.ReasonPodsUnschedulable, "memory", "demo-")
		requireCondition(t, k, v1alpha2.ConditionReady, "False", "")
		now := deployment(t, k).Status
		require.Equal(t, []any{before.Epoch, before.LayoutHash, before.Ranks}, []any{now.Epoch, now.LayoutHash, now.Ranks}, "what serves goes on serving")
		requireCondition(t, k, v1alpha2.ConditionAvailable, "True", v1alpha2.ReasonServing)
		requireWarning(t, k, v1alpha2.ReasonPodsUnschedulable)

		require.NoError(t, k.Scale(t.Context(), object, 2))
		require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	})
	after := requireAtRest(t, k, "demo-0", "demo-1").Status
	require.Equal(t, before.LayoutHash, after.LayoutHash)
	require.NoError(t, k.Wait(t.Context(), object, "Degraded=false", limit))
}

func requireWarning(t *testing.T, k *kube.Client, reason string) {
	t.Helper()
	eventually(t, "a warning "+reason, func() (bool, string) {
		events, err := k.Events(t.Context())
		require.NoError(t, err)
		saw := ""
		for _, e := range events {
			if e.Object == "MoEDeployment/"+name && e.Type == "Warning" && e.Reason == reason {
				return true, ""
			}
			saw += e.String() + "\n"
		}
		return false, saw
	})
}

func TestMissingImage(t *testing.T) {
	t.Parallel()
	k := namespace(t, "")
	require.NoError(t, k.Apply(t.Context(), manifest(1, func(s *v1alpha2.MoEDeploymentSpec) { s.Engine.Image = "tangram.dev/none:dev" })))
	requireCondition(t, k, v1alpha2.ConditionDegraded, "True", v1alpha2.ReasonPodsFailing, "demo-0", "tangram.dev/none:dev")
	requireCondition(t, k, v1alpha2.ConditionAvailable, "False", v1alpha2.ReasonNoLayout)
	requireWarning(t, k, v1alpha2.ReasonPodsFailing)
	requireDeleted(t, k)
}

func TestMissingModelPath(t *testing.T) {
	t.Parallel()
	k := namespace(t, "")
	require.NoError(t, k.Apply(t.Context(), manifest(1, func(s *v1alpha2.MoEDeploymentSpec) { s.Model.Source.PersistentVolumeClaim.Path = "missing" })))
	requireCondition(t, k, v1alpha2.ConditionDegraded, "True", v1alpha2.ReasonPodsFailing, "demo-0", "missing")
	requireCondition(t, k, v1alpha2.ConditionAvailable, "False", v1alpha2.ReasonNoLayout)
	requireWarning(t, k, v1alpha2.ReasonPodsFailing)
	requireDeleted(t, k)
}

func TestZeroReplicasAreRejected(t *testing.T) {
	t.Parallel()
	k := namespace(t, "")
	serve(t, k, 1, nil)
	err := k.Scale(t.Context(), object, 0)
	require.ErrorContains(t, err, "spec.replicas")
	require.ErrorContains(t, err, "To stop serving, delete the MoEDeployment")
	require.ErrorContains(t, k.Patch(t.Context(), object, `{"spec":{"replicas":0}}`), "To stop serving, delete the MoEDeployment")
	require.ErrorContains(t, k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"Auto","layers":[{}]}}}`), "mode and layers contradict each other")
	requireAtRest(t, k, "demo-0")
}

// Two worlds of one name in two namespaces do not collide.
func TestOneNameInTwoNamespaces(t *testing.T) {
	t.Parallel()
	a, b := namespace(t, "-a"), namespace(t, "-b")
	for _, k := range []*kube.Client{a, b} {
		require.NoError(t, k.Apply(t.Context(), manifest(1, nil)))
	}
	require.NoError(t, a.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	require.NoError(t, b.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
	one, other := requireAtRest(t, a, "demo-0"), requireAtRest(t, b, "demo-0")
	require.NotEqual(t, one.Status.Members[0].ID, other.Status.Members[0].ID)
	first, second := client(t, a).Repeat(t.Context(), newTrace(t), 3, 3), client(t, b).Repeat(t.Context(), newTrace(t), 3, 3)
	for i := range first {
		require.NoError(t, first[i].Err)
		require.NoError(t, second[i].Err)
		require.Empty(t, first[i].Differs(second[i]))
	}
	requireDeleted(t, a)
	requireAtRest(t, b, "demo-0")
	require.NoError(t, client(t, b).Do(t.Context(), newTrace(t).At(5)).Err)
}
