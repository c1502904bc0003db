package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	api "tangram.dev/api/v1alpha2"
	"tangram.dev/operator/pkg/layout"
)

// spread returns a range of layers of a spec; 0: All.
func spread(first, last int32, experts, attention int32) api.LayerRange {
	group := func(n int32) *intstr.IntOrString {
		if n == 0 {
			return ptr.To(intstr.FromString(api.AllRanks))
		}
		return ptr.To(intstr.FromInt32(n))
	}
	return api.LayerRange{FirstLayer: first, LastLayer: ptr.To(last), Groups: api.Groups{ExpertGroup: group(experts), AttentionGroup: group(attention)}}
}

// told returns the ranges of the active layout as in a status.
func told(ranges ...[4]int32) []api.RangeStatus {
	var out []api.RangeStatus
	for _, x := range ranges {
		out = append(out, api.RangeStatus{FirstLayer: x[0], LastLayer: x[1], ExpertGroup: x[2], AttentionGroup: x[3]})
	}
	return out
}

// hybridly returns a deployment of n pods in mode Hybrid. The model has two layers.
func (b *bed) hybridly(n int32, ranges ...api.LayerRange) *api.MoEDeployment {
	d := b.deployment("w", n)
	d.Spec.Parallelism.Layers = ranges
	return d
}

// inForce returns the active layout from the agents.
func (b *bed) inForce() layout.Ranges {
	b.t.Helper()
	for _, p := range b.ranks("w") {
		if a := b.find(p.Name); a != nil {
			s, err := a.Status(b.t.Context(), worldName(b.get("w")))
			if err == nil && s.Layout != nil {
				return layout.RangesOf(s.Layout)
			}
		}
	}
	return nil
}

// A world takes any layout of its spec, reports it, switches modes and ranks, and returns to it after a death.
func TestModeHybrid(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	require.NoError(t, b.c.Create(t.Context(), b.hybridly(4, spread(0, 0, 2, 1))))
	d := b.ready("w")
	require.Equal(t, api.ModeHybrid, d.Status.Mode)
	require.Equal(t, told([4]int32{0, 0, 2, 1}, [4]int32{1, 1, 1, 1}), d.Status.Layers, "a layer of no range is as in mode ExpertParallel")
	require.Equal(t, layout.Ranges{{First: 0, Last: 0, ExpertGroup: 2, AttentionGroup: 1}, {First: 1, Last: 1, ExpertGroup: 1, AttentionGroup: 1}}, b.inForce())
	require.Equal(t, "4 ranks serve in mode Hybrid (0=2/1 1=1/1).", message(d, api.ConditionReady))
	require.Equal(t, "start with 4 ranks Hybrid (0=2/1)", d.Status.RecentTransitions[0].Summary)
	require.Equal(t, api.ModeHybrid, b.history()[0].Spec.To.Mode)

	// Another layout of the same mode also needs a transition.
	b.change(`{"spec":{"parallelism":{"layers":[{"firstLayer":1,"expertGroup":"All","attentionGroup":2}]}}}`)
	d = b.ready("w")
	require.Equal(t, told([4]int32{0, 0, 1, 1}, [4]int32{1, 1, 4, 2}), d.Status.Layers)
	require.Equal(t, "4 ranks Hybrid (0=2/1 1=1/1) -> 4 ranks Hybrid (1-=all/2)", d.Status.RecentTransitions[0].Summary)

	// To one mode for all layers, and back.
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel","layers":null}}}`)
	d = b.ready("w")
	require.Equal(t, api.ModeTensor, d.Status.Mode)
	require.Equal(t, told([4]int32{0, 1, 4, 4}), d.Status.Layers)
	b.change(`{"spec":{"parallelism":{"mode":null,"layers":[{"firstLayer":1,"expertGroup":"All","attentionGroup":2}]}}}`)
	require.Equal(t, api.ModeHybrid, b.ready("w").Status.Mode)

	// "All" is the current number of ranks; attention in layer 1 stays in groups of 2.
	b.scale(6)
	d = b.ready("w")
	require.Equal(t, told([4]int32{0, 0, 1, 1}, [4]int32{1, 1, 6, 2}), d.Status.Layers)

	before, uids := d.Status.Epoch, b.uids()
	b.die("w-2")
	d = b.repaired(6, before)
	require.Equal(t, told([4]int32{0, 0, 1, 1}, [4]int32{1, 1, 6, 2}), d.Status.Layers, "the same again")
	require.Equal(t, uids["w-0"], b.uids()["w-0"])
	require.Equal(t, api.ModeHybrid, b.repairs()[0].Spec.To.Mode)
	require.Zero(t, b.count(api.EventWorldRestarted))
}

// A world of one pod is in any layout of its spec, as it is in any mode.
func TestModeHybrid_WhenOneRank(t *testing.T) {
	b := newBed(t)
	require.NoError(t, b.c.Create(t.Context(), b.hybridly(1, spread(0, 1, 0, 0))))
	require.Equal(t, api.ModeHybrid, b.ready("w").Status.Mode)
}

// If the layout does not fit ranks or model, nothing moves, no pod changes, and the condition says what would fit.
func TestModeHybrid_WhenLayoutDoesNotFit(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	require.NoError(t, b.c.Create(t.Context(), b.hybridly(4, spread(0, 1, 2, 4))))
	good := b.ready("w")
	stays := func(replicas int32, words ...string) {
		t.Helper()
		d := b.degraded("w", api.ReasonLayoutDoesNotFit, append(words, "Until the spec changes, 4 ranks continue to serve with layout 0-1=2/4")...)
		require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonLayoutDoesNotFit))
		require.True(t, has(d, api.ConditionProgressing, metav1.ConditionFalse, api.ReasonLayoutDoesNotFit))
		require.True(t, apimeta.IsStatusConditionTrue(d.Status.Conditions, api.ConditionAvailable), "what serves goes on")
		require.True(t, apimeta.IsStatusConditionTrue(d.Status.Conditions, api.ConditionStalled), "it takes somebody")
		require.Equal(t, api.ReasonLayoutDoesNotFit, d.Status.State)
		require.Equal(t, good.Status.LayoutHash, d.Status.LayoutHash)
		require.Len(t, b.ranks("w"), 4)
		require.Equal(t, replicas, d.Status.DesiredReplicas)
	}
	b.scale(6)
	stays(6, "spec.parallelism.layers does not fit 6 ranks (6 replicas): layers 0 to 1: attention groups of 4 do not divide 6 ranks; groups of [1 2 3 6] do, and 4 or 8 ranks would")
	b.scale(3)
	stays(3, "layers 0 to 1: expert groups of 2 do not divide 3 ranks; groups of [1 3] do, and 2 or 4 ranks would")
	b.change(`{"spec":{"replicas":4,"parallelism":{"layers":[{"firstLayer":2}]}}}`)
	stays(4, "layers 2 to the last: the model has 2 layers, the last one is 1")
	b.told(api.ReasonLayoutDoesNotFit, "the model has 2 layers")
	require.Len(t, b.history(), 1, "nothing was tried")

	// A lost rank is repaired meanwhile, and a deleted pod leaves by a transition.
	b.die("w-3")
	b.told(api.EventRepaired, "1 members were lost and 3 ranks serve")
	d := b.until("w", "three serve on", func(d *api.MoEDeployment) bool {
		return d.Status.Ranks == 3 && has(d, api.ConditionDegraded, metav1.ConditionTrue, api.ReasonLayoutDoesNotFit) && d.Status.Transition == nil
	})
	require.True(t, apimeta.IsStatusConditionTrue(d.Status.Conditions, api.ConditionAvailable))

	b.change(`{"spec":{"parallelism":{"layers":[{"expertGroup":2,"attentionGroup":4}]}}}`)
	d = b.ready("w")
	require.Equal(t, told([4]int32{0, 1, 2, 4}), d.Status.Layers)
	require.EqualValues(t, 4, d.Status.Ranks)
}

// A layout that fits no number of ranks creates no pod. The first agents show whether one fits the model.
func TestModeHybrid_WhenFirstLayoutDoesNotFit(t *testing.T) {
	b := newBed(t)
	require.NoError(t, b.c.Create(t.Context(), b.hybridly(3, spread(0, 1, 2, 1))))
	b.degraded("w", api.ReasonLayoutDoesNotFit, "layers 0 to 1: expert groups of 2 do not divide 3 ranks")
	require.Empty(t, b.ranks("w"))
	b.change(`{"spec":{"parallelism":{"layers":[{"firstLayer":1,"lastLayer":7,"expertGroup":3}]}}}`)
	b.degraded("w", api.ReasonLayoutDoesNotFit, "layers 1 to 7: the model has 2 layers")
	require.Empty(t, b.history())
	b.change(`{"spec":{"parallelism":{"layers":[{"firstLayer":1,"expertGroup":3}]}}}`)
	require.Equal(t, told([4]int32{0, 0, 1, 1}, [4]int32{1, 1, 3, 1}), b.ready("w").Status.Layers)
}

// Engines that keep the heads of a request on one rank support no attention groups.
func TestModeHybrid_WhenEngineCannotComputeLayout(t *testing.T) {
	b := newBed(t)
	b.serve("w", 2)
	for _, p := range b.ranks("w") {
		b.agent(p.Name).AttentionDataOnly()
	}
	b.change(`{"spec":{"parallelism":{"layers":[{"firstLayer":1,"attentionGroup":2}]}}}`)
	b.degraded("w", api.ReasonLayoutDoesNotFit, "layer 1 has attentionGroup 2, but the engine keeps all heads of a request on one rank; remove attentionGroup or set it to 1")
	b.change(`{"spec":{"parallelism":{"layers":[{"firstLayer":1,"expertGroup":2}]}}}`)
	require.Equal(t, told([4]int32{0, 0, 1, 1}, [4]int32{1, 1, 2, 1}), b.ready("w").Status.Layers)
}

// A pod deleted by a user leaves at once, whatever groups remain possible; its replacement restores the layout.
func TestModeHybrid_WhenPodDeleted(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true // by this test
	require.NoError(t, b.c.Create(t.Context(), b.hybridly(4, spread(0, 0, 2, 4))))
	before := b.ready("w")
	b.let(fate{hold: true}, "w-4") // the replacement starts slowly
	require.NoError(t, b.c.Delete(t.Context(), b.pod("w-1")))
	d := b.until("w", "three serve", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 3 && d.Status.Transition == nil })
	require.Equal(t, told([4]int32{0, 0, 1, 3}, [4]int32{1, 1, 1, 1}), d.Status.Layers, "as far as three can")
	require.Greater(t, d.Status.Epoch, before.Status.Epoch)
	require.Zero(t, b.count(api.EventRepaired), "it left by a transition")
	require.Eventually(t, func() bool { return b.gone(&corev1.Pod{}, "w-1") }, wait, tick)
	b.let(fate{})
	d = b.until("w", "four again", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 4 && inMode(api.ModeHybrid)(d) })
	require.Equal(t, before.Status.Layers, d.Status.Layers)
}

// In mode Hybrid, experts follow the load in layers with whole experts. The layout stays and the world is ready.
func TestModeHybridRebalancesExperts(t *testing.T) {
	b := newBed(t)
	b.world("w").Route(b.world("w").Skew())
	d := b.hybridly(2, spread(1, 1, 2, 2))
	d.Spec.Experts = api.Experts{Redundant: &api.RedundantExperts{Count: 2}, Rebalance: api.Rebalance{Mode: api.RebalanceApply, IntervalSeconds: 1}}
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.until("w", "measured after a rebalance", func(d *api.MoEDeployment) bool {
		r := d.Status.Rebalance
		return r != nil && r.Last != nil && r.Last.MeasuredPermille != nil && has(d, api.ConditionReady, metav1.ConditionTrue, api.ReasonServing)
	})
	require.Equal(t, api.ModeHybrid, d.Status.Mode)
	require.Equal(t, told([4]int32{0, 0, 1, 1}, [4]int32{1, 1, 2, 2}), d.Status.Layers)
	require.Positive(t, d.Status.Rebalance.Last.Moves)
	require.EqualValues(t, 0, *d.Status.Rebalance.WorstLayer, "the only one that is placed")
	require.Equal(t, 2, testutil.CollectAndCount(b.metrics.load.tokens), "2 ranks")
	for _, x := range b.history() {
		if strings.HasPrefix(x.Spec.Summary, "rebalance: ") {
			require.Equal(t, api.ModeHybrid, x.Spec.To.Mode)
		}
	}
}
