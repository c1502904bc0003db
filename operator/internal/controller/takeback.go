package controller

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tangram.dev/operator/pkg/kernels"

	api "tangram.dev/api/v1alpha2"
)

const (
	// firstRefusal is how long a failed switch blocks its option. Each further failure doubles it, up to lastRefusal.
	firstRefusal = time.Minute
	lastRefusal  = time.Hour
	// mostRefused limits the blocked options in a status.
	mostRefused = 8
)

// takeBack withdraws a decision on mode or ranks whose transition failed, and blocks the option for a while. It changes
// d.Status.Policy, and returns what it did; empty: nothing. A successful transition unblocks its option.
func takeBack(x shapes, s *scene, now time.Time) string {
	d, l := x.d, s.seen.Layout
	st, ranks := d.Status.Policy, len(l.GetMembers())
	modeIsDecided := d.IsAuto() && ranks > 1 // one rank has no mode
	if !modeIsDecided && !d.IsAutoscaled() || st == nil || ranks == 0 || s.seen.Running != nil {
		return ""
	}
	serves, wanted := shapeOf(l), x.wanted()
	otherMode, otherWidth := modeIsDecided && serves != wanted.On(ranks), widened(d) && ranks != wantedRanks(d)
	switch {
	case !otherMode && !otherWidth:
		if s.seen.Failed == nil {
			st.Backoff = slices.DeleteFunc(slices.Clone(st.Backoff), x.isOption(wanted.On(ranks)))
		}
		return ""
	case s.seen.Failed == nil || s.seen.NeedsRepair():
		return ""
	}
	after := *st
	if otherMode {
		back := serves
		if !x.allowed(serves) { // it failed in the middle of the chain
			back = cameFrom(st).On(ranks)
		}
		x.become(&after, back)
	}
	if otherWidth {
		step := max(d.Spec.RanksPerPod, 1)
		after.Replicas = (int32(ranks) + step - 1) / step // a pod may have lost one of its ranks
	}
	failed, to, why := wanted.On(wantedRanks(d)), named(d, otherMode, otherWidth), clip(s.seen.Failed.Error(), mostText)
	d.Status.Policy = &after
	if x.wanted().On(wantedRanks(d)) == failed { // the bounds on ranks leave no way back
		d.Status.Policy = st
		return ""
	}
	until := refuse(x, &after, failed, why, now)
	s.seen.Failed = nil // the failed transition is no longer wanted
	return fmt.Sprintf("The transition to %s failed and was reverted: %s. The world continues with %s. The policy does not choose %s before %s.", to, why, named(d, otherMode, otherWidth), to,
		until.UTC().Format(time.TimeOnly))
}

// widened says whether a decision set the desired number of replicas, and not the world's start.
func widened(d *api.MoEDeployment) bool {
	if !d.IsAutoscaled() {
		return false
	}
	i := slices.IndexFunc(d.Status.Policy.Decisions, func(x api.PolicyDecision) bool { return x.ToReplicas > 0 && x.Action == api.ActionApply })
	return i >= 0 && d.Status.Policy.Decisions[i].ToReplicas == d.DesiredReplicas()
}

// named describes the desired mode, number of replicas, or both.
func named(d *api.MoEDeployment, mode, width bool) string {
	switch {
	case mode && width:
		return fmt.Sprintf("%d replicas in mode %s", d.DesiredReplicas(), d.Status.Policy.Mode)
	case width:
		return fmt.Sprintf("%d replicas", d.DesiredReplicas())
	}
	return fmt.Sprintf("mode %s", d.Status.Policy.Mode)
}

// cameFrom returns the mode before the newest applied decision.
func cameFrom(st *api.PolicyStatus) kernels.Kind {
	i := slices.IndexFunc(st.Decisions, func(x api.PolicyDecision) bool { return x.Action == api.ActionApply && x.From != x.To })
	if i >= 0 && st.Decisions[i].From == api.ModeTensor {
		return kindTensor
	}
	return kindExpert
}

// refuse blocks an option for a while, and returns until when.
func refuse(x shapes, st *api.PolicyStatus, s kernels.Shape, why string, now time.Time) time.Time {
	option := api.FailedOption{Replicas: x.replicas(s), Mode: x.mode(s), Layers: x.short(s), Message: why}
	if i := slices.IndexFunc(st.Backoff, x.isOption(s)); i >= 0 {
		option.Failures = st.Backoff[i].Failures
	}
	option.Failures++
	pause := firstRefusal
	for n := int32(1); n < option.Failures && pause < lastRefusal; n++ {
		pause *= 2
	}
	option.Until = metav1.NewTime(now.Add(min(pause, lastRefusal)).Truncate(time.Second))
	rest := slices.DeleteFunc(slices.Clone(st.Backoff), x.isOption(s))
	st.Backoff = slices.Insert(rest, 0, option)
	st.Backoff = st.Backoff[:min(len(st.Backoff), mostRefused)]
	return option.Until.Time
}

// isOption returns whether a blocked option is the shape s.
func (x shapes) isOption(s kernels.Shape) func(api.FailedOption) bool {
	return func(r api.FailedOption) bool {
		return r.Replicas == x.replicas(s) && r.Mode == x.mode(s) && r.Layers == x.short(s)
	}
}

func (x shapes) replicas(s kernels.Shape) int32 { return int32(s.Ranks) / max(x.d.Spec.RanksPerPod, 1) }
