package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/ranges"
	"tangram.dev/operator/internal/readings"
	"tangram.dev/operator/pkg/adviser"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	decisions "tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
	"tangram.dev/operator/pkg/telemetry"

	api "tangram.dev/api/v1alpha1"
)

const (
	// policyEvery: how often a status tells that nothing is decided, at most.
	policyEvery = 30 * time.Second
	// silentFor: so long after the last reading that said something, what was said of it is over.
	silentFor = 10 * time.Second
	// mostDecisions that a status keeps.
	mostDecisions = 10
	// mostModes that a status tells of.
	mostModes = 8
	// mostText of a reason.
	mostText = 1024
)

// advice is the running side of mode Auto: a policy is asked at each reading of the gateways, a second apart, and whoever reconciles the
// world hears what it decided.
type advice struct {
	options adviser.Options

	mu          sync.Mutex
	adviser     *adviser.Adviser
	world       adviser.World
	modes       bool   // the mode is decided on
	forbidden   string // why the width is not decided on; empty: it is
	mode, width word
	heard       time.Time // when something was read last; zero: never
}

// word of a policy: the last one, and the switch that is to be followed, once.
type word struct {
	last    decisions.Decision
	taken   bool // there is a last
	pending *decisions.Decision
}

func (w *word) take(d decisions.Decision) bool {
	w.last, w.taken = d, true
	if d.Switch {
		w.pending = &d
	}
	return d.Switch
}

// take a reading. True: a switch was decided. One at a time: of two, the width's.
func (a *advice) take(s *telemetry.Sample) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard = time.Now()
	if a.options.Width != (adviser.Range{}) {
		d := a.adviser.Widen(s, a.world)
		if a.forbidden != "" {
			d = decisions.Decision{Held: true, Cause: twoOwners, To: a.world.Shape, Why: decisions.Reason{Text: "no decision: " + a.forbidden}}
		}
		if a.width.take(d) {
			return true
		}
	}
	return a.modes && a.mode.take(a.adviser.Advise(s, a.world))
}

// set how the world is now, and hear what was decided. why: gateways tell nothing of use, if that is so.
func (a *advice) set(w adviser.World, modes bool, forbidden, why string) (mode, width word) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.world, a.modes, a.forbidden = w, modes, forbidden
	mode, width = a.mode, a.width
	if !a.heard.IsZero() && time.Since(a.heard) > silentFor { // what was said is of a load that may be over
		said := decisions.Decision{Held: true, To: w.Shape, Why: decisions.Reason{Text: fmt.Sprintf("no decision: gateways tell nothing of use since %s%s", a.heard.UTC().Format(time.TimeOnly), why)}}
		mode, width = word{last: said, taken: true}, word{last: said, taken: true}
	}
	a.mode.pending, a.width.pending = nil, nil
	if mode.pending != nil && (!modes || mode.pending.To.Ranks != w.Shape.Ranks) {
		mode.pending = nil // it was of another world
	}
	if forbidden != "" || w.Busy {
		width.pending = nil
	}
	return mode, width
}

// wantedMode of a world: as the spec says, or as its policy decided. Until it has, mode Auto is mode Expert.
func wantedMode(d *api.MoEDeployment) api.Mode {
	switch {
	case d.Spec.Mode != api.ModeAuto:
		return d.Spec.Mode
	case d.Status.Policy == nil || d.Status.Policy.Mode == "":
		return api.ModeExpert
	case d.Status.Policy.Mode == api.ModeHybrid && ranges.OfSpec(d.Status.Policy.Layout).Divide(wantedRanks(d)) != nil:
		return api.ModeExpert // it was chosen for another width
	}
	return d.Status.Policy.Mode
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
	if d.WidthIsDecided() {
		o.Width = rangeOf(d)
	}
	if d.Spec.Mode == api.ModeAuto && o.Policy == adviser.Calibrated {
		copy(o.Hybrids[:], hybridsOf(d))
	}
	return o, a.DryRun
}

// advised is asked at each reading of a world's gateways.
func (r *Reconciler) advised(uid types.UID, key client.ObjectKey, s *telemetry.Sample) {
	if found, there := r.advices.Load(uid); there && found.(*advice).take(s) { //nolint:forcetypeassert // nothing else is stored
		r.news.put(key)
	}
}

// auto follows the policies of a world in mode Auto, or with an SLO: what they decided is in the status before anything is done about it, so that an operator
// that comes after this one goes on with it. It gives when to tell anew.
func (r *Reconciler) auto(ctx context.Context, d *api.MoEDeployment, s *scene) (time.Duration, error) {
	before := d.DeepCopy()
	if d.Spec.Mode != api.ModeAuto && !d.WidthIsDecided() {
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
	forbidden, err := r.otherOwner(ctx, d)
	if err != nil {
		return 0, err
	}
	mode, width := found.(*advice).set(worldNow(d, s), d.Spec.Mode == api.ModeAuto, forbidden, r.unread(d.UID)) //nolint:forcetypeassert // nothing else is stored
	if width.pending != nil {
		mode.pending = nil // one at a time
	}
	now := policyStatus(d, s, mode, dryRun)
	widthStatus(d, now, width, forbidden, dryRun)
	decided := mode.pending != nil || width.pending != nil
	if !decided && same(d.Status.Policy, now) {
		return policyEvery, nil
	}
	d.Status.Policy = now
	if err := r.Status().Patch(ctx, d, locked(before)); err != nil {
		return 0, err
	}
	if decided {
		said, verb := now.Decisions[0], "switch"
		if said.ToReplicas > 0 {
			verb = "scale"
		}
		if dryRun {
			verb = "would " + verb + " (spec.autoscaling.dryRun)"
		}
		modes := fmt.Sprintf("from %s to %s", said.From, strings.TrimSpace(string(said.To)+" "+said.ToLayout))
		switch widths := fmt.Sprintf("from %d to %d replicas", said.FromReplicas, said.ToReplicas); {
		case said.ToReplicas > 0 && said.From == said.To:
			r.event(d, nil, corev1.EventTypeNormal, api.EventWidthDecided, "Reconcile", "%s %s: %s", verb, widths, said.Why)
		case said.ToReplicas > 0:
			r.event(d, nil, corev1.EventTypeNormal, api.EventWidthDecided, "Reconcile", "%s %s and %s: %s", verb, widths, modes, said.Why)
		default:
			r.event(d, nil, corev1.EventTypeNormal, api.EventModeDecided, "Reconcile", "%s %s: %s", verb, modes, said.Why)
		}
	}
	return policyEvery, nil
}

// unread says why the gateways of a world tell nothing of use; empty: they do, or nobody asks them.
func (r *Reconciler) unread(uid types.UID) string {
	found, there := r.readers.Load(uid)
	if !there {
		return ""
	}
	if _, _, err := found.(*readings.Reader).Last(loadWindow); err != nil { //nolint:forcetypeassert // nothing else is stored
		return ": " + err.Error()
	}
	return ""
}

// same: nothing is new that would be worth a write.
func same(was, now *api.PolicyStatus) bool {
	if was == nil || was.Mode != now.Mode || was.Outcome != now.Outcome || was.Replicas != now.Replicas || (was.Width == nil) != (now.Width == nil) ||
		now.Width != nil && (was.Width.Outcome != now.Width.Outcome || was.Width.Cause != now.Width.Cause) || len(was.Decisions) != len(now.Decisions) {
		return false
	}
	told := was.Reason == now.Reason && (now.Width == nil || was.Width.Reason == now.Width.Reason)
	return told || now.Time.Sub(was.Time.Time) < policyEvery
}

func policyStatus(d *api.MoEDeployment, s *scene, said word, dryRun bool) *api.PolicyStatus {
	last, taken, decided := said.last, said.taken, said.pending
	st := &api.PolicyStatus{Mode: wantedMode(d), Time: metav1.NewTime(time.Now().Truncate(time.Second)), Outcome: api.OutcomeNoDecision, Reason: "no decision: nothing was read yet"}
	if was := d.Status.Policy; was != nil {
		st.Decisions, st.Layout = was.Decisions, was.Layout
	} else if l := s.seen.Layout; d.Spec.Mode == api.ModeAuto && l != nil { // it begins where the world is
		if serves := shapeOf(l); allowed(d, serves) {
			become(st, d, serves)
		}
	}
	if decided != nil {
		last, taken = *decided, true
	}
	if d.Spec.Mode != api.ModeAuto {
		st.Outcome, st.Reason = api.OutcomeStay, "spec.mode says the mode"
		return st
	}
	if taken {
		st.Reason = clip(last.Why.Text, mostText)
		for _, x := range last.Rejected {
			if len(st.Rejected) < mostModes {
				st.Rejected = append(st.Rejected, api.RejectedMode{Mode: modeOfShape(x.Shape), Layout: layoutInShort(d, x.Shape), Why: clip(x.Why.Text, mostText)})
			}
		}
		switch {
		case last.Switch:
			st.Outcome = api.OutcomeSwitch
		case !last.Held:
			st.Outcome = api.OutcomeStay
		}
	}
	if decided != nil {
		st.Decisions = slices.Insert(slices.Clone(st.Decisions), 0, api.PolicyDecision{Time: st.Time, From: st.Mode, To: modeOfShape(decided.To), ToLayout: layoutInShort(d, decided.To), DryRun: dryRun,
			Why: clip(decided.Why.Text, mostText)})
		st.Decisions = st.Decisions[:min(len(st.Decisions), mostDecisions)]
		if !dryRun {
			become(st, d, decided.To)
		}
	}
	return st
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
	w.Shape = shapeOf(l)
	if ranks := len(l.Members); ranks > 1 && ranks == wantedRanks(d) && w.Shape != wantedKind(d).On(ranks) {
		w.Busy = true // on its way
	}
	w.Pods = podsNow(d, s, w.Shape)
	w.Repairable = repairable(d, w.View)
	memory := costmodel.Memory{RankBytes: uint64(d.Spec.Limits.MemoryPerRank.Value()) + w.KVBytes, SpareBanks: int(d.Spec.Limits.SpareBanks), NoRepairHeadroom: true}
	view := w.View
	w.Price = func(from, to kernels.Shape) (costmodel.Transition, error) {
		if modeOfShape(to) == api.ModeHybrid {
			if err := splitsHeads(spreadOf(kindOf(d, to)).Shape(int(view.Proto.Layers), to.Ranks), s); err != nil {
				return costmodel.Transition{}, err
			}
		}
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
