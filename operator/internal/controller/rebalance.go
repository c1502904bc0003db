package controller

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"tangram.dev/operator/internal/balance"
	"tangram.dev/operator/internal/world"

	api "tangram.dev/api/v1alpha1"
)

// rebalanceSettings of a deployment; nil: experts stay where they are. Defaults are those of the CRD, for objects that
// were made before they were.
func rebalanceSettings(d *api.MoEDeployment) *balance.Settings {
	s := d.Spec.Rebalance
	if s == nil {
		return nil
	}
	seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
	return &balance.Settings{Every: seconds(max(1, s.IntervalSeconds)), MaxMoves: int(s.MaxMoves), PayBack: seconds(ptr.Deref(s.PayBackSeconds, 600)),
		MinGain: float64(ptr.Deref(s.MinGainPercent, 2)) / 100, Redundant: int(d.Spec.RedundantExperts), Automatic: s.Budget == api.BudgetAutomatic}
}

// Rebalance implements keeper.Recorders.
func (x recorders) Rebalance(seen *world.Snapshot, members []string) world.Recorder {
	decided := seen.Balance.Decision
	what := fmt.Sprintf("rebalance: %d experts move, balancedness %.3f -> %.3f", decided.Moves, decided.Before, decided.After)
	c := x.r.newRecorder(x.d, what, members)
	c.rebalance = seen.Balance
	return c
}

// fillRebalance of a status.
func fillRebalance(d *api.MoEDeployment, s *scene) {
	if d.Spec.Rebalance == nil {
		d.Status.Rebalance = nil
		return
	}
	report := s.seen.Balance
	if report == nil {
		if d.Status.Rebalance != nil { // what was measured last stands
			d.Status.Rebalance.Outcome = balancedOf(s).reason
		}
		return
	}
	st := &api.RebalanceStatus{Time: metav1.NewTime(report.At.Truncate(time.Second)), Outcome: balancedOf(s).reason, Why: clip(report.Why, 2048),
		Tokens: int64(report.Tokens)}
	if worst, numbers := report.Balance.WorstLayer, placedLayers(s, report); len(report.Balance.Layers) == len(numbers) && len(numbers) > 0 {
		st.Balancedness, st.WorstLayerBalancedness = ptr.To(share(report.Balance.Aggregate)), ptr.To(share(report.Balance.Worst))
		st.WorstLayer = ptr.To(int32(numbers[worst]))
	}
	if x := report.Decision; x != nil {
		st.Decision = &api.RebalanceDecision{Before: share(x.Before), After: share(x.After), Reachable: share(x.Reachable), Floor: share(x.Floor),
			Moves: int32(x.Moves), Bytes: int64(x.Bytes), Rounds: int32(x.Rounds), RedundantExperts: int32(x.Redundant)}
	}
	if was := d.Status.Rebalance; was != nil {
		st.Last = was.Last // of an operator before this one
		if st.Balancedness == nil {
			st.Balancedness, st.WorstLayer, st.WorstLayerBalancedness = was.Balancedness, was.WorstLayer, was.WorstLayerBalancedness
		}
	}
	if p := report.Last; p != nil {
		st.Last = &api.RebalanceDone{Time: metav1.NewTime(p.At.Truncate(time.Second)), Moves: int32(p.Moves), Bytes: int64(p.Bytes),
			Before: share(p.Before), Promised: share(p.Promised)}
		if p.Kept {
			st.Last.Without, st.Last.Measured = ptr.To(share(p.Without)), ptr.To(share(p.Measured))
		}
	}
	d.Status.Rebalance = st
}

// share of 1, in thousandths.
func share(v float64) resource.Quantity {
	return *resource.NewMilliQuantity(int64(math.Round(1000*v)), resource.DecimalSI)
}

// placedLayers of the model, those that a report tells of.
func placedLayers(s *scene, report *balance.Report) []uint32 {
	for _, status := range s.seen.Statuses {
		var out []uint32
		for _, o := range reported(report) {
			if all := status.GetGeometry().GetMoeLayers(); o < len(all) {
				out = append(out, all[o])
			}
		}
		return out
	}
	return nil
}

func reported(report *balance.Report) []int {
	if report == nil {
		return nil
	}
	return report.Layers
}

// balancedOf the world: whether experts should move.
func balancedOf(s *scene) verdict {
	report := s.seen.Balance
	switch {
	case s.seen.Rebalancing:
		return no(api.ReasonRebalancing, "experts move")
	case s.seen.RebalanceFailed != nil:
		return no(api.ReasonRebalanceFailed, s.seen.RebalanceFailed.Error())
	case report == nil:
		return verdict{metav1.ConditionUnknown, api.ReasonObserving, "no window has ended yet"}
	}
	switch report.Outcome {
	case balance.NotExpert:
		return verdict{metav1.ConditionUnknown, api.ReasonNotInModeExpert, report.Why}
	case balance.Stay:
		return yes(api.ReasonNoMovePays, report.Why)
	case balance.NotWorth:
		return yes(api.ReasonNotWorthIt, report.Why)
	case balance.Move:
		return no(api.ReasonRebalancing, report.Why)
	case balance.Failed:
		return no(api.ReasonRebalanceFailed, report.Why)
	}
	return verdict{metav1.ConditionUnknown, api.ReasonObserving, report.Why}
}

// tellBalanced sets the condition, and tells of a decision that is another than the last.
func (r *Reconciler) tellBalanced(d *api.MoEDeployment, s *scene) {
	if d.Spec.Rebalance == nil {
		apimeta.RemoveStatusCondition(&d.Status.Conditions, api.ConditionBalanced)
		r.metrics.unbalanced(d)
		return
	}
	was := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionBalanced)
	now := balancedOf(s)
	if now.reason == api.ReasonObserving && was != nil && was.Status == metav1.ConditionTrue {
		return // it was so at the end of the last window
	}
	if was == nil || was.Reason != now.reason {
		switch now.reason {
		case api.ReasonNoMovePays, api.ReasonNotWorthIt:
			r.event(d, nil, corev1.EventTypeNormal, now.reason, "Rebalance", "%s", now.message)
		case api.ReasonRebalanceFailed:
			if s.seen.RebalanceFailed != nil {
				break // told when it happened
			}
			r.event(d, nil, corev1.EventTypeWarning, now.reason, "Rebalance", "%s", now.message)
		}
	}
	r.set(d, api.ConditionBalanced, now)
	r.metrics.balanced(d, s.seen.Balance, placedLayers(s, s.seen.Balance))
}

// rebalanced tells of the end of a rebalance.
func (c *recorder) rebalanced(err error) {
	decided := c.rebalance.Decision
	c.r.metrics.rebalanced(c.d, decided.Moves, err)
	if err == nil {
		c.r.event(c.d, nil, corev1.EventTypeNormal, api.EventRebalanced, "Rebalance", "%d experts moved (%d bytes): balancedness of the load expected %.3f -> %.3f (%.3f at most); what it brings is measured in the next window",
			decided.Moves, decided.Bytes, decided.Before, decided.After, decided.Floor)
	}
}
