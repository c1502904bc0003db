package controller

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tangram.dev/operator/pkg/kernels"

	api "tangram.dev/api/v1alpha1"
)

const (
	// firstRefusal of an option to which a switch failed; twice as long after each further failure, lastRefusal at most.
	firstRefusal = time.Minute
	lastRefusal  = time.Hour
	// mostRefused options that a status tells of.
	mostRefused = 8
)

// takeBack a switch of mode Auto that failed: the world is to be in the mode in force again, and the option is refused for a while. It changes d.Status.Policy,
// and says what it did; empty: nothing. A switch that succeeded clears its option.
func takeBack(x shapes, s *scene, now time.Time) string {
	d, l := x.d, s.seen.Layout
	st := d.Status.Policy
	if d.Spec.Mode != api.ModeAuto || st == nil || len(l.GetMembers()) < 2 || s.seen.Running != nil {
		return ""
	}
	serves, wanted := shapeOf(l), x.wanted()
	switch {
	case serves == wanted.On(serves.Ranks) && serves.Ranks > 0:
		if s.seen.Failed == nil {
			st.Refused = slices.DeleteFunc(slices.Clone(st.Refused), x.isOption(serves))
		}
		return ""
	case s.seen.Failed == nil || s.seen.NeedsRepair():
		return ""
	}
	back := serves
	if !x.allowed(serves) { // it failed in the middle
		if back = cameFrom(st).On(len(l.Members)); back == wanted.On(len(l.Members)) {
			return ""
		}
	}
	failed := wanted.On(wantedRanks(d))
	why := clip(s.seen.Failed.Error(), mostText)
	until := refuse(x, st, failed, why, now)
	to := st.Mode
	x.become(st, back)
	s.seen.Failed = nil // of a switch that is not wanted any more
	return fmt.Sprintf("the switch to mode %s failed and is taken back: the world stays in mode %s, and %s is not chosen before %s: %s", to, st.Mode, to,
		until.UTC().Format(time.TimeOnly), why)
}

// cameFrom which mode, before the newest decision that was followed.
func cameFrom(st *api.PolicyStatus) kernels.Kind {
	i := slices.IndexFunc(st.Decisions, func(x api.PolicyDecision) bool { return !x.DryRun && x.From != x.To })
	if i >= 0 && st.Decisions[i].From == api.ModeTensor {
		return kindTensor
	}
	return kindExpert
}

// refuse an option for a while. It gives until when.
func refuse(x shapes, st *api.PolicyStatus, s kernels.Shape, why string, now time.Time) time.Time {
	option := api.RefusedOption{Replicas: x.replicas(s), Mode: x.mode(s), Layout: x.short(s), Why: why}
	if i := slices.IndexFunc(st.Refused, x.isOption(s)); i >= 0 {
		option.Failures = st.Refused[i].Failures
	}
	option.Failures++
	pause := firstRefusal
	for n := int32(1); n < option.Failures && pause < lastRefusal; n++ {
		pause *= 2
	}
	option.Until = metav1.NewTime(now.Add(min(pause, lastRefusal)).Truncate(time.Second))
	rest := slices.DeleteFunc(slices.Clone(st.Refused), x.isOption(s))
	st.Refused = slices.Insert(rest, 0, option)
	st.Refused = st.Refused[:min(len(st.Refused), mostRefused)]
	return option.Until.Time
}

// isOption says of a refused option whether it is a shape.
func (x shapes) isOption(s kernels.Shape) func(api.RefusedOption) bool {
	return func(r api.RefusedOption) bool {
		return r.Replicas == x.replicas(s) && r.Mode == x.mode(s) && r.Layout == x.short(s)
	}
}

func (x shapes) replicas(s kernels.Shape) int32 { return int32(s.Ranks) / max(x.d.Spec.RanksPerPod, 1) }
