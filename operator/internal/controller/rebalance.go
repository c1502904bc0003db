package controller

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"tangram.dev/operator/internal/balance"
	"tangram.dev/operator/internal/world"

	api "tangram.dev/api/v1alpha2"
)

// rebalanceSettings of a deployment; nil: experts stay where they are. Defaults are those of the CRD, for objects that
// are older than a field's default.
func rebalanceSettings(d *api.MoEDeployment) *balance.Settings {
	if !d.Rebalances() {
		return nil
	}
	s := d.Spec.Experts.Rebalance
	seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
	redundant := 0
	if r := d.Spec.Experts.Redundant; r != nil {
		redundant = int(max(r.Count, r.Max))
	}
	return &balance.Settings{Every: seconds(max(1, s.IntervalSeconds)), MaxMoves: int(s.MaxMoves), PayBack: seconds(ptr.Deref(s.PaybackSeconds, 600)),
		MinGain: float64(ptr.Deref(s.MinimumGainPercent, 2)) / 100, Redundant: redundant, Automatic: d.Spec.Experts.Redundant != nil && d.Spec.Experts.Redundant.Max > 0}
}

// Rebalance implements keeper.Recorders.
func (x recorders) Rebalance(seen *world.Snapshot, members []string) world.Recorder {
	decided := seen.Balance.Decision
	what := fmt.Sprintf("rebalance: %d experts move, balancedness %.3f -> %.3f", decided.Moves, decided.Before, decided.After)
	c := x.r.newRecorder(x.d, api.KindRebalance, seen, what, members)
	c.rebalance = seen.Balance
	return c
}

// fillRebalance sets status.rebalance.
func fillRebalance(d *api.MoEDeployment, s *scene) {
	if !d.Rebalances() {
		d.Status.Rebalance = nil
		return
	}
	report := s.seen.Balance
	if report == nil {
		if d.Status.Rebalance != nil { // the last measurement stays
			d.Status.Rebalance.Reason = balancedOf(d, s).reason
		}
		return
	}
	st := &api.RebalanceStatus{Time: metav1.NewTime(report.At.Truncate(time.Second)), Reason: balancedOf(d, s).reason, Message: clip(report.Why, 2048),
		Tokens: int64(report.Tokens)}
	if worst, numbers := report.Balance.WorstLayer, placedLayers(s, report); len(report.Balance.Layers) == len(numbers) && len(numbers) > 0 {
		st.BalancednessPermille, st.WorstLayerBalancednessPermille = ptr.To(permille(report.Balance.Aggregate)), ptr.To(permille(report.Balance.Worst))
		st.WorstLayer = ptr.To(int32(numbers[worst]))
	}
	if x := report.Decision; x != nil {
		st.Decision = &api.RebalanceDecision{BeforePermille: permille(x.Before), AfterPermille: permille(x.After),
			ReachablePermille: permille(x.Reachable), UpperBoundPermille: permille(x.Floor),
			Moves: int32(x.Moves), Bytes: int64(x.Bytes), Rounds: int32(x.Rounds), RedundantExperts: int32(x.Redundant)}
	}
	if was := d.Status.Rebalance; was != nil {
		st.Last = was.Last // possibly from a previous operator
		if st.BalancednessPermille == nil {
			st.BalancednessPermille, st.WorstLayer, st.WorstLayerBalancednessPermille = was.BalancednessPermille, was.WorstLayer, was.WorstLayerBalancednessPermille
		}
	}
	if p := report.Last; p != nil {
		st.Last = &api.CompletedRebalance{Time: metav1.NewTime(p.At.Truncate(time.Second)), Moves: int32(p.Moves), Bytes: int64(p.Bytes),
			BeforePermille: permille(p.Before), PromisedPermille: permille(p.Promised)}
		if p.Kept {
			st.Last.CounterfactualPermille, st.Last.MeasuredPermille = ptr.To(permille(p.Without)), ptr.To(permille(p.Measured))
		}
	}
	d.Status.Rebalance = st
}

func permille(v float64) int32 { return int32(math.Round(1000 * v)) }

// placedLayers are the model's layers in a report.
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

// balancedOf returns the condition Balanced: whether experts should move.
func balancedOf(d *api.MoEDeployment, s *scene) verdict {
	report := s.seen.Balance
	switch {
	case s.seen.Rebalancing:
		return no(api.ReasonRebalancing, "Experts are moving to other ranks.")
	case s.seen.RebalanceFailed != nil:
		return no(api.ReasonRebalanceFailed, fmt.Sprintf("The rebalance failed: %v.", s.seen.RebalanceFailed))
	case report == nil:
		return verdict{metav1.ConditionUnknown, api.ReasonObserving, "No observation window has ended yet."}
	}
	switch report.Outcome {
	case balance.NotExpert:
		return verdict{metav1.ConditionUnknown, api.ReasonExpertsSharded, report.Why}
	case balance.Stay:
		return yes(api.ReasonNoMovePays, report.Why)
	case balance.NotWorth:
		return yes(api.ReasonGainTooSmall, report.Why)
	case balance.Move:
		if d.Spec.Experts.Rebalance.Mode != api.RebalanceApply {
			return no(api.ReasonRecommended, report.Why)
		}
		return no(api.ReasonRebalancing, report.Why)
	case balance.Failed:
		return no(api.ReasonRebalanceFailed, report.Why)
	}
	return verdict{metav1.ConditionUnknown, api.ReasonObserving, report.Why}
}

// tellBalanced sets the condition, and emits an event for a decision that differs from the last one.
func (r *Reconciler) tellBalanced(d *api.MoEDeployment, s *scene) {
	if !d.Rebalances() {
		apimeta.RemoveStatusCondition(&d.Status.Conditions, api.ConditionBalanced)
		r.metrics.unbalanced(d)
		return
	}
	was := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionBalanced)
	now := balancedOf(d, s)
	if now.reason == api.ReasonObserving && was != nil && was.Status == metav1.ConditionTrue {
		return // it was balanced at the end of the last window
	}
	if was == nil || was.Reason != now.reason {
		switch now.reason {
		case api.ReasonNoMovePays, api.ReasonGainTooSmall:
			r.event(d, nil, corev1.EventTypeNormal, now.reason, "Rebalance", "%s", now.message)
		case api.ReasonRebalanceFailed:
			if s.seen.RebalanceFailed != nil {
				break // an event was emitted when it happened
			}
			r.event(d, nil, corev1.EventTypeWarning, now.reason, "Rebalance", "%s", now.message)
		}
	}
	r.set(d, api.ConditionBalanced, now)
	r.metrics.balanced(d, s.seen.Balance, placedLayers(s, s.seen.Balance))
}

// rebalanced reports the end of a rebalance.
func (c *recorder) rebalanced(err error) {
	decided := c.rebalance.Decision
	c.r.metrics.rebalanced(c.d, decided.Moves, err)
	if err == nil {
		c.r.event(c.d, nil, corev1.EventTypeNormal, api.EventRebalanced, "Rebalance", "The rebalance moved %d experts (%d bytes). The expected balancedness of the load rises from %.3f to %.3f (at most %.3f). The next window measures the actual gain.",
			decided.Moves, decided.Bytes, decided.Before, decided.After, decided.Floor)
	}
}
