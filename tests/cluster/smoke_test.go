package cluster

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"k8s.io/utils/ptr"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/harness/cluster"
	"tangram.dev/e2e/kube"
)

// TestSmoke is the only cluster test in `make test`: while requests stream, a world grows, switches its mode, and loses
// a pod and then an engine to kill -9. No request is lost, and every token equals that of a single rank.
func TestSmoke(t *testing.T) {
	k := namespace(t, "")
	serve(t, k, 3, func(spec *v1alpha2.MoEDeploymentSpec) {
		spec.Gateway.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20) // the API's minimum
		// On a busy machine the engines must leave time for the agents, and phases are long.
		spec.Engine.Args = append(spec.Engine.Args, "--min-step-ms", "20")
		spec.Transition.TimeoutSeconds = 600
	})
	four := []string{"demo-0", "demo-1", "demo-2", "demo-3"}
	results := underLoad(t, k, func() {
		require.NoError(t, k.Scale(t.Context(), object, 4))
		require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
		requireAtRest(t, k, four...)

		require.NoError(t, k.Patch(t.Context(), object, `{"spec":{"parallelism":{"mode":"TensorParallel"}}}`))
		require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
		requireAtRest(t, k, four...)

		victim := deployment(t, k).Status.Members[1]
		for _, p := range ranks(t, k) {
			if p.Name == victim.Pod {
				_, err := cluster.KillContainers(string(p.UID))
				require.NoError(t, err)
			}
		}
		awaitRepairs(t, k, 1, 4)
		for _, m := range requireAtRest(t, k, names(ranks(t, k))...).Status.Members {
			require.NotEqual(t, victim.ID, m.ID, "the pod that replaces it is a new member")
		}

		before := ranks(t, k)
		kill(t, string(before[0].UID), "tangram-engine")
		awaitRepairs(t, k, 2, 4)
		after := ranks(t, k)
		for i := range before {
			require.Equal(t, before[i].UID, after[i].UID, "an engine that dies alone comes back in its pod")
		}
	})
	requireOneRanksTokens(t, results)
}

// awaitRepairs waits until n repairs of the world have succeeded and its number of ranks is restored.
func awaitRepairs(t *testing.T, k *kube.Client, n int, width int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d repairs, and %d ranks", n, width), func() (bool, string) {
		all, err := k.Transitions(t.Context(), name)
		require.NoError(t, err)
		repairs := 0
		for _, lt := range all {
			if lt.Spec.Kind == v1alpha2.KindRepair && lt.Status.Phase == v1alpha2.PhaseSucceeded {
				repairs++
			}
		}
		d := deployment(t, k)
		return repairs >= n && d.Status.Ranks == width && d.Status.State == v1alpha2.ReasonServing,
			fmt.Sprintf("%d repairs, width %d, state %s", repairs, d.Status.Ranks, d.Status.State)
	})
	require.NoError(t, k.Wait(t.Context(), object, v1alpha2.ConditionReady, limit))
}
