package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

func TestRebalanceFollowsLoad(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 2)
	require.Nil(t, before.Status.Rebalance)
	b.world("w").Route(b.world("w").Skew())
	b.change(`{"spec":{"experts":{"redundant":{"count":2},"rebalance":{"mode":"Apply","intervalSeconds":1}}}}`)
	d := b.until("w", "measured after a rebalance", func(d *api.MoEDeployment) bool {
		r := d.Status.Rebalance
		return r != nil && r.Last != nil && r.Last.MeasuredPermille != nil && has(d, api.ConditionReady, metav1.ConditionTrue, api.ReasonServing)
	})
	r := d.Status.Rebalance
	require.NotEqual(t, before.Status.LayoutHash, d.Status.LayoutHash)
	require.Equal(t, before.Status.Members, d.Status.Members)
	require.Positive(t, r.Last.Moves)
	require.Less(t, r.Last.BeforePermille, int32(800))
	require.InDelta(t, r.Last.PromisedPermille, *r.Last.MeasuredPermille, 20)
	require.InDelta(t, r.Last.BeforePermille, *r.Last.CounterfactualPermille, 20)
	require.Equal(t, *r.BalancednessPermille, *r.Last.MeasuredPermille)
	require.Positive(t, r.Tokens)
	require.EqualValues(t, 2, r.Decision.RedundantExperts)
	require.True(t, has(d, api.ConditionBalanced, metav1.ConditionTrue, r.Reason), r.Reason)
	require.Contains(t, []string{api.ReasonNoMovePays, api.ReasonGainTooSmall}, r.Reason)
	require.Contains(t, r.Message, "balancedness")
	require.Contains(t, d.Status.RecentTransitions[0].Summary, "rebalance: ")
	b.told(api.ReasonRebalancing, "experts move (")
	b.told(api.EventRebalanced, "The rebalance moved ")
	b.told(r.Reason, "balancedness")
	require.InDelta(t, float64(*r.BalancednessPermille)/1000, testutil.ToFloat64(b.metrics.load.balancedness.WithLabelValues(b.namespace, "w")), .001)
	require.Equal(t, 2, testutil.CollectAndCount(b.metrics.load.tokens), "2 ranks")
	require.InDelta(t, 1, testutil.ToFloat64(b.metrics.load.rebalances.WithLabelValues(b.namespace, "w", api.EventRebalanced)), 0)

	b.scale(3) // experts are placed from scratch for another number of ranks
	d = b.until("w", "measured with 3 ranks", func(d *api.MoEDeployment) bool {
		return d.Status.Ranks == 3 && d.Status.Rebalance.Last.MeasuredPermille != nil && d.Status.RecentTransitions[0].Summary != "2 ranks ExpertParallel -> 3 ranks ExpertParallel" &&
			has(d, api.ConditionBalanced, metav1.ConditionTrue, d.Status.Rebalance.Reason)
	})
	require.Greater(t, *d.Status.Rebalance.BalancednessPermille, int32(800))

	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	b.until("w", "no experts to place", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionBalanced, metav1.ConditionUnknown, api.ReasonExpertsSharded) && d.Status.Mode == api.ModeTensor
	})
	b.change(`{"spec":{"experts":null}}`)
	d = b.until("w", "no rebalance any more", func(d *api.MoEDeployment) bool { return d.Status.Rebalance == nil })
	require.Empty(t, message(d, api.ConditionBalanced))
	require.Zero(t, testutil.CollectAndCount(b.metrics.load.tokens))
}

// A failure is reported, and the world continues to serve.
func TestRebalance_WhenItFails(t *testing.T) {
	b := newBed(t)
	b.serve("w", 2)
	b.world("w").Route(b.world("w").Skew())
	b.agent("w-1").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_BAD_PLAN, Message: "no such expert"})
	b.change(`{"spec":{"experts":{"redundant":{"count":2},"rebalance":{"mode":"Apply","intervalSeconds":1}}}}`)
	d := b.until("w", "a rebalance that failed", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionBalanced, metav1.ConditionFalse, api.ReasonRebalanceFailed)
	})
	require.Contains(t, message(d, api.ConditionBalanced), "no such expert")
	require.True(t, has(d, api.ConditionDegraded, metav1.ConditionFalse, api.ReasonReconciled))
	b.ready("w")
	b.told(api.ReasonRebalanceFailed, "no such expert")

	b.agent("w-1").Refuse(nil)
	b.change(`{"spec":{"experts":{"redundant":{"count":4}}}}`) // a changed spec is tried immediately
	b.until("w", "a rebalance", func(d *api.MoEDeployment) bool { return d.Status.Rebalance != nil && d.Status.Rebalance.Last != nil })
	require.Equal(t, 1, b.count(api.ReasonRebalanceFailed))
}

func TestRebalance_WhenRedundantExpertsDoNotFit(t *testing.T) {
	b := newBed(t)
	b.world("w").SetMemory(70000) // enough for a rank of two, but not for one more expert per layer
	b.serve("w", 2)
	b.world("w").Route(b.world("w").Skew())
	b.change(`{"spec":{"experts":{"redundant":{"count":4},"rebalance":{"mode":"Apply","intervalSeconds":1}}}}`)
	d := b.until("w", "no memory", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionBalanced, metav1.ConditionFalse, api.ReasonRebalanceFailed)
	})
	require.Contains(t, message(d, api.ConditionBalanced), "the placement does not fit: 4 redundant experts per layer")
	require.Contains(t, message(d, api.ConditionBalanced), "its pool has 70000")
	b.told(api.ReasonRebalanceFailed, "does not fit")
	b.ready("w")
	b.change(`{"spec":{"experts":{"redundant":{"count":null,"max":4}}}}`)
	b.until("w", "as many as fit", func(d *api.MoEDeployment) bool {
		return d.Status.Rebalance.Decision != nil && d.Status.Rebalance.Decision.RedundantExperts == 0 && d.Status.Rebalance.Reason != api.ReasonRebalanceFailed
	})
}

// spec.suspend also prevents rebalances, and the status shows the proposal.
func TestRebalance_WhenSuspended(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 2)
	b.world("w").Route(b.world("w").Skew())
	b.change(`{"spec":{"suspend":true,"experts":{"redundant":{"count":2},"rebalance":{"mode":"Apply","intervalSeconds":1}}}}`)
	d := b.until("w", "a proposal", func(d *api.MoEDeployment) bool {
		return d.Status.Rebalance != nil && d.Status.Rebalance.Decision != nil && d.Status.Rebalance.Decision.Moves > 0
	})
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash)
	b.change(`{"spec":{"suspend":false}}`)
	b.until("w", "a rebalance", func(d *api.MoEDeployment) bool { return d.Status.Rebalance.Last != nil })
}
