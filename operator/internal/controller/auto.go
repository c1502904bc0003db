package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/pkg/adviser"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/layout"
	decisions "tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
	"tangram.dev/operator/pkg/telemetry"

	api "tangram.dev/api/v1alpha1"
)

const (
	// policyEvery: how often a status tells that nothing is decided, at most.
	policyEvery = 30 * time.Second
	// mostDecisions that a status keeps.
	mostDecisions = 10
	// mostText of a reason.
	mostText = 1024
)

// advice is the running side of mode Auto: a policy is asked at each reading of the gateways, a second apart, and whoever reconciles the
// world hears what it decided.
type advice struct {
	options adviser.Options

	mu      sync.Mutex
	adviser *adviser.Adviser
	world   adviser.World
	last    decisions.Decision
	taken   bool // there is a last
	pending *decisions.Decision
}

// take a reading. True: a switch was decided.
func (a *advice) take(s *telemetry.Sample) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last, a.taken = a.adviser.Advise(s, a.world), true
	if a.last.Switch {
		decided := a.last
		a.pending = &decided
	}
	return a.last.Switch
}

// set how the world is now, and take what was decided: the last word, and the switch that is to be followed, once.
func (a *advice) set(w adviser.World) (last decisions.Decision, taken bool, decided *decisions.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.world = w
	decided, a.pending = a.pending, nil
	if decided != nil && decided.To.Ranks != w.Shape.Ranks {
		decided = nil // it was of another world
	}
	return a.last, a.taken, decided
}

// wantedMode of a world: as the spec says, or as its policy decided. Until it has, mode Auto is mode Expert.
func wantedMode(d *api.MoEDeployment) api.Mode {
	switch {
	case d.Spec.Mode != api.ModeAuto:
		return d.Spec.Mode
	case d.Status.Policy != nil && d.Status.Policy.Mode != "":
		return d.Status.Policy.Mode
	}
	return api.ModeExpert
}

// adviserOptions of a spec: what is not set has the defaults of the CRD.
func adviserOptions(d *api.MoEDeployment) (o adviser.Options, dryRun bool) {
	o = adviser.Options{Policy: adviser.Calibrated, Prior: adviser.Prior{Model: "Qwen3-30B-A3B", Engine: "vllm", Routing: "power_law_1.2"}}
	a := d.Spec.Autoscaling
	if a == nil {
		return o, false
	}
	for _, set := range []struct {
		to   *string
		from string
	}{{(*string)(&o.Policy), string(a.Policy)}, {&o.Prior.Model, a.Prior.Model}, {&o.Prior.Engine, a.Prior.Engine}, {&o.Prior.Routing, a.Prior.Routing}} {
		if set.from != "" {
			*set.to = set.from
		}
	}
	return o, a.DryRun
}

// advised is asked at each reading of a world's gateways.
func (r *Reconciler) advised(uid types.UID, key client.ObjectKey, s *telemetry.Sample) {
	if found, there := r.advices.Load(uid); there && found.(*advice).take(s) { //nolint:forcetypeassert // nothing else is stored
		r.news.put(key)
	}
}

// auto follows the policy of a world in mode Auto: what it decided is in the status before anything is done about it, so that an operator that
// comes after this one goes on with it. It gives when to tell anew.
func (r *Reconciler) auto(ctx context.Context, d *api.MoEDeployment, s *scene) (time.Duration, error) {
	before := d.DeepCopy()
	if d.Spec.Mode != api.ModeAuto {
		r.advices.Delete(d.UID)
		if d.Status.Policy == nil {
			return 0, nil
		}
		d.Status.Policy = nil
		return 0, r.Status().Patch(ctx, d, locked(before))
	}
	options, dryRun := adviserOptions(d)
	found, there := r.advices.Load(d.UID)
	if !there || found.(*advice).options != options { //nolint:forcetypeassert // nothing else is stored
		a, err := adviser.New(options)
		if err != nil {
			return 0, fmt.Errorf("spec.autoscaling: %w", err)
		}
		found = &advice{options: options, adviser: a}
		r.advices.Store(d.UID, found)
	}
	last, taken, decided := found.(*advice).set(worldNow(d, s)) //nolint:forcetypeassert // nothing else is stored
	now := policyStatus(d, s, last, taken, decided, dryRun)
	if decided == nil && same(d.Status.Policy, now) {
		return policyEvery, nil
	}
	d.Status.Policy = now
	if err := r.Status().Patch(ctx, d, locked(before)); err != nil {
		return 0, err
	}
	if decided != nil {
		said := now.Decisions[0]
		verb := "switch"
		if dryRun {
			verb = "would switch (spec.autoscaling.dryRun)"
		}
		r.event(d, nil, corev1.EventTypeNormal, api.EventModeDecided, "Reconcile", "%s from %s to %s: %s", verb, said.From, said.To, said.Why)
	}
	return policyEvery, nil
}

// same: nothing is new that would be worth a write.
func same(was, now *api.PolicyStatus) bool {
	return was != nil && was.Mode == now.Mode && was.Outcome == now.Outcome && len(was.Decisions) == len(now.Decisions) &&
		(was.Reason == now.Reason || now.Time.Sub(was.Time.Time) < policyEvery)
}

func policyStatus(d *api.MoEDeployment, s *scene, last decisions.Decision, taken bool, decided *decisions.Decision, dryRun bool) *api.PolicyStatus {
	st := &api.PolicyStatus{Mode: wantedMode(d), Time: metav1.NewTime(time.Now().Truncate(time.Second)), Outcome: api.OutcomeNoDecision, Reason: "no decision: nothing was read yet"}
	if was := d.Status.Policy; was != nil {
		st.Decisions = was.Decisions
	} else if l := s.seen.Layout; l != nil && layout.Is(l, layout.Tensor) && !layout.Is(l, layout.Expert) {
		st.Mode = api.ModeTensor // Auto begins where the world is
	}
	if decided != nil {
		last, taken = *decided, true
	}
	if taken {
		st.Reason = clip(last.Why.Text, mostText)
		for _, x := range last.Rejected {
			st.Rejected = append(st.Rejected, api.RejectedMode{Mode: modeOfShape(x.Shape), Why: clip(x.Why.Text, mostText)})
		}
		switch {
		case last.Switch:
			st.Outcome = api.OutcomeSwitch
		case !last.Held:
			st.Outcome = api.OutcomeStay
		}
	}
	if decided != nil {
		st.Decisions = slices.Insert(slices.Clone(st.Decisions), 0, api.PolicyDecision{Time: st.Time, From: st.Mode, To: modeOfShape(decided.To), DryRun: dryRun,
			Why: clip(decided.Why.Text, mostText)})
		st.Decisions = st.Decisions[:min(len(st.Decisions), mostDecisions)]
		if !dryRun {
			st.Mode = modeOfShape(decided.To)
		}
	}
	return st
}

func modeOfShape(s kernels.Shape) api.Mode {
	if s == kernels.Tensor(s.Ranks) && s.Ranks > 1 {
		return api.ModeTensor
	}
	return api.ModeExpert
}

// worldNow as a policy is to see it. A world that is not at rest is busy: nothing is decided about it.
func worldNow(d *api.MoEDeployment, s *scene) adviser.World {
	seen := &s.seen
	w := adviser.World{Epoch: seen.Epoch, KVBytes: uint64(d.Spec.Limits.KVMemoryPerRank.Value()), Rates: ratesOf(s.transitions),
		Busy: seen.Running != nil || seen.NeedsRepair() || seen.Unfinished || seen.Failed != nil || d.Spec.Suspend}
	l := seen.Layout
	if l == nil {
		return w
	}
	for _, status := range seen.Statuses {
		if view, err := geometry.New(status.GetGeometry()); err == nil {
			w.View = view
			break
		}
	}
	ranks := len(l.Members)
	switch {
	case layout.Is(l, layout.Expert):
		w.Shape = kernels.Expert(ranks)
	case layout.Is(l, layout.Tensor):
		w.Shape = kernels.Tensor(ranks)
	}
	if wanted := int(d.Spec.Replicas * d.Spec.RanksPerPod); ranks != wanted || modeOfShape(w.Shape) != wantedMode(d) && ranks > 1 {
		w.Busy = true // on its way
	}
	memory := costmodel.Memory{RankBytes: uint64(d.Spec.Limits.MemoryPerRank.Value()) + w.KVBytes, SpareBanks: int(d.Spec.Limits.SpareBanks), NoRepairHeadroom: true}
	view := w.View
	w.Price = func(from, to kernels.Shape) (costmodel.Transition, error) {
		return simulator.Price(view, from, to, memory)
	}
	return w
}

// ratesOf the newest transition between layouts that moved something, as the agents measured it; assumed until there was one. Staging goes on
// beside steps, which it slows: a fifth of its time is taken to be lost to those who are served.
func ratesOf(transitions []api.LayoutTransition) costmodel.Rates {
	rates := costmodel.Rates{BytesPerSecond: 1e9, FlipSeconds: .1, Hidden: .8}
	var newest time.Time
	for i := range transitions {
		t := &transitions[i].Status
		if t.Phase != api.PhaseSucceeded || transitions[i].Spec.Kind == api.KindRepair || transitions[i].Spec.FromEpoch == 0 || t.CompletionTime == nil || t.CompletionTime.Time.Before(newest) {
			continue
		}
		bytes := float64(t.Bytes.Local + t.Bytes.Shared + t.Bytes.TCP + t.Bytes.Wire + t.Bytes.Checkpoint)
		stage, flip := t.Phases.Stage.Seconds(), t.Phases.Flip.Seconds()
		if bytes == 0 || stage <= 0 || flip <= 0 || len(t.Flips) == 0 {
			continue
		}
		newest = t.CompletionTime.Time
		rates.BytesPerSecond, rates.FlipSeconds = bytes/float64(max(transitions[i].Spec.Ranks, 1))/stage, flip/float64(len(t.Flips))
	}
	return rates
}

// optimalOf a world in mode Auto.
func optimalOf(d *api.MoEDeployment) verdict {
	st := d.Status.Policy
	switch {
	case st == nil || st.Outcome == api.OutcomeNoDecision:
		reason := "nothing was decided yet"
		if st != nil {
			reason = st.Reason
		}
		return verdict{metav1.ConditionUnknown, api.ReasonNoDecision, reason}
	case st.Outcome == api.OutcomeSwitch && len(st.Decisions) > 0 && st.Decisions[0].DryRun:
		return no(api.ReasonDryRun, fmt.Sprintf("mode %s is wanted: %s", st.Decisions[0].To, st.Reason))
	case st.Outcome == api.OutcomeSwitch:
		return no(api.ReasonSwitching, fmt.Sprintf("to mode %s: %s", st.Mode, st.Reason))
	}
	return yes(api.ReasonBestMode, st.Reason)
}
