package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/ranges"
	"tangram.dev/operator/internal/readings"
	"tangram.dev/operator/pkg/adviser"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	decisions "tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/telemetry"

	api "tangram.dev/api/v1alpha2"
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
	scales      bool   // what is decided of the width is applied; that of the mode: !world.DryRun
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

// take what a policy says. True: it is a switch, and not the one that it said just before, which nobody follows in a dry run.
func (w *word) take(d decisions.Decision) bool {
	news := d.Switch && (!w.last.Switch || w.last.To != d.To)
	w.last, w.taken = d, true
	if d.Switch {
		w.pending = &d
	}
	return news
}

// take a reading. True: a switch was decided. One at a time: of two, the width's; in a dry run nobody follows either.
func (a *advice) take(s *telemetry.Sample) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard = time.Now()
	decided := false
	if a.options.Width != (adviser.Range{}) {
		w := a.world
		w.DryRun = !a.scales
		d := a.adviser.Widen(s, w)
		if a.forbidden != "" {
			d = decisions.Decision{Held: true, Cause: twoOwners, To: a.world.Shape, Why: decisions.Reason{Text: "No decision was made: " + a.forbidden + "."}}
		}
		decided = a.width.take(d)
		if d.Switch && a.scales {
			return true
		}
	}
	if a.modes {
		decided = a.mode.take(a.adviser.Advise(s, a.world)) || decided
	}
	return decided
}

// heard is what the policies of a world said.
type heard struct{ mode, width word }

// set how the world is now, and hear what was decided. why: gateways tell nothing of use, if that is so. A switch that is pending stays so until it is followed.
func (a *advice) set(w adviser.World, modes, scales bool, forbidden, why string) heard {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.world, a.modes, a.scales, a.forbidden = w, modes, scales, forbidden
	if p := a.mode.pending; p != nil && (!modes || p.To.Ranks != w.Shape.Ranks) {
		a.mode.pending = nil // it was of another world
	}
	if forbidden != "" || w.Busy {
		a.width.pending = nil
	}
	out := heard{a.mode, a.width}
	if !a.heard.IsZero() && time.Since(a.heard) > silentFor { // what was said is of a load that may be over
		a.mode.pending, a.width.pending = nil, nil
		said := decisions.Decision{Held: true, To: w.Shape, Why: decisions.Reason{Text: fmt.Sprintf("No decision was made: the gateways have sent no usable load report since %s%s.", a.heard.UTC().Format(time.TimeOnly), why)}}
		out = heard{word{last: said, taken: true}, word{last: said, taken: true}}
	}
	return out
}

// followed: what was heard is written down, and the world is so now.
func (a *advice) followed(h heard, w adviser.World) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.world = w
	for w, pending := range map[*word]*decisions.Decision{&a.mode: h.mode.pending, &a.width: h.width.pending} {
		if w.pending == pending {
			w.pending = nil
		}
	}
}

// wantedMode of a world: as the spec says, or as its policy decided. Until it has, mode Auto is mode Expert.
func wantedMode(d *api.MoEDeployment) api.Mode {
	switch {
	case !d.IsAuto():
		return d.SpecMode()
	case d.Status.Policy == nil || d.Status.Policy.Mode == "":
		return api.ModeExpert
	case d.Status.Policy.Mode == api.ModeHybrid && ranges.OfSpec(d.Status.Policy.Layers).Divide(wantedRanks(d)) != nil:
		return api.ModeExpert // it was chosen for another width
	}
	return d.Status.Policy.Mode
}

// adviserOptions of a spec: what is not set has the defaults of the CRD.
func adviserOptions(d *api.MoEDeployment) adviser.Options {
	o := adviser.Options{Policy: adviser.Calibrated, Prior: adviser.Prior{Model: "Qwen3-30B-A3B", Engine: "vllm", Routing: "power_law_1.2"}}
	if a := d.Spec.Parallelism.Auto; a != nil {
		if a.Policy != "" {
			o.Policy = adviser.Kind(a.Policy)
		}
		if parts := strings.Split(a.KernelProfile, "/"); a.KernelProfile != "" {
			parts = append(parts, "", "")
			o.Prior = adviser.Prior{Model: parts[0], Engine: parts[1], Routing: strings.Join(parts[2:len(parts)-2], "/")}
		}
	}
	if d.IsAutoscaled() {
		o.Width = rangeOf(d)
	}
	if d.IsAuto() && o.Policy == adviser.Calibrated {
		copy(o.Hybrids[:], hybridsOf(d))
	}
	return o
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
	if !d.IsAuto() && !d.IsAutoscaled() {
		r.advices.Delete(d.UID)
		if d.Status.Policy == nil {
			return 0, nil
		}
		d.Status.Policy = nil
		return 0, r.Status().Patch(ctx, d, locked(before))
	}
	if d.Status.Policy == nil && s.seen.Layout == nil {
		return policyEvery, nil // a world that serves goes on in its mode, and it is not known yet which that is
	}
	a, err := r.adviceOf(d, s)
	if err != nil { // the world goes on as it is
		s.invalid = &refusal{api.ReasonInvalidSpec, err.Error() + "."}
		return policyEvery, nil
	}
	forbidden, err := r.otherOwner(ctx, d)
	if err != nil {
		return 0, err
	}
	x := shapes{d, s.byData}
	failed := takeBack(x, s, time.Now())
	world := worldNow(d, s)
	said := a.set(world, d.IsAuto(), d.AppliesReplicas(), forbidden, r.unread(d.UID))
	mode, width := said.mode, said.width
	if failed != "" { // what was decided before is of the world before
		mode = word{last: decisions.Decision{Held: true, Why: decisions.Reason{Text: failed}}, taken: true}
		width = mode
	}
	if width.pending != nil && d.AppliesReplicas() {
		mode.pending = nil // one at a time
	}
	now := policyStatus(x, s, mode)
	scalingStatus(x, now, width, forbidden)
	if same(before.Status.Policy, now) {
		a.followed(said, world)
		return policyEvery, nil
	}
	d.Status.Policy = now
	if err := r.Status().Patch(ctx, d, locked(before)); err != nil {
		return 0, err
	}
	a.followed(said, worldNow(d, s)) // which shapes are refused is written down now
	if failed != "" {
		r.event(d, nil, corev1.EventTypeWarning, api.EventDecisionReverted, "Reconcile", "%s", failed)
	}
	for _, one := range newDecisions(before.Status.Policy, now) {
		r.tellDecision(d, one)
	}
	return policyEvery, nil
}

// adviceOf a world, made anew where what it rests on has changed.
func (r *Reconciler) adviceOf(d *api.MoEDeployment, s *scene) (*advice, error) {
	options := adviserOptions(d)
	found, there := r.advices.Load(d.UID)
	byData, known := attentionByData(&s.seen)
	if !known && there {
		byData = found.(*advice).options.AttentionByData //nolint:forcetypeassert // nothing else is stored
	}
	options.AttentionByData, s.byData = byData, byData
	if there && found.(*advice).options == options { //nolint:forcetypeassert // nothing else is stored
		return found.(*advice), nil //nolint:forcetypeassert // nothing else is stored
	}
	made, err := adviser.New(options)
	if err != nil {
		return nil, fmt.Errorf("spec.parallelism.auto.kernelProfile must be MODEL/ENGINE/ROUTING of measured kernels: %w", err)
	}
	a := &advice{options: options, adviser: made}
	r.advices.Store(d.UID, a)
	return a, nil
}

// newDecisions of a status, the oldest first.
func newDecisions(was, now *api.PolicyStatus) []api.PolicyDecision {
	var before []api.PolicyDecision
	if was != nil {
		before = was.Decisions
	}
	for n := range now.Decisions {
		if rest := now.Decisions[n:]; equality.Semantic.DeepEqual(rest, before[:min(len(rest), len(before))]) {
			out := slices.Clone(now.Decisions[:n])
			slices.Reverse(out)
			return out
		}
	}
	out := slices.Clone(now.Decisions)
	slices.Reverse(out)
	return out
}

func (r *Reconciler) tellDecision(d *api.MoEDeployment, said api.PolicyDecision) {
	verb := "The policy decided to switch"
	if said.ToReplicas > 0 {
		verb = "The policy decided to scale"
	}
	if said.Action == api.ActionRecommend {
		verb = strings.Replace(verb, "decided", "recommends", 1)
	}
	modes := fmt.Sprintf("from %s to %s", said.From, strings.TrimSpace(string(said.To)+" "+said.ToLayers))
	switch widths := fmt.Sprintf("from %d to %d replicas", said.FromReplicas, said.ToReplicas); {
	case said.ToReplicas > 0 && said.From == said.To:
		r.event(d, nil, corev1.EventTypeNormal, api.EventReplicasDecided, "Reconcile", "%s %s. %s", verb, widths, said.Message)
	case said.ToReplicas > 0:
		r.event(d, nil, corev1.EventTypeNormal, api.EventReplicasDecided, "Reconcile", "%s %s and %s. %s", verb, widths, modes, said.Message)
	default:
		r.event(d, nil, corev1.EventTypeNormal, api.EventModeDecided, "Reconcile", "%s %s. %s", verb, modes, said.Message)
	}
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
	if was == nil || was.Mode != now.Mode || was.Outcome != now.Outcome || was.Replicas != now.Replicas || (was.Scaling == nil) != (now.Scaling == nil) ||
		now.Scaling != nil && (was.Scaling.Outcome != now.Scaling.Outcome || was.Scaling.Reason != now.Scaling.Reason) || !equality.Semantic.DeepEqual(was.Decisions, now.Decisions) || !equality.Semantic.DeepEqual(was.Backoff, now.Backoff) {
		return false
	}
	told := was.Message == now.Message && (now.Scaling == nil || was.Scaling.Message == now.Scaling.Message)
	return told || now.Time.Sub(was.Time.Time) < policyEvery
}

func policyStatus(x shapes, s *scene, said word) *api.PolicyStatus {
	d := x.d
	last, taken, decided := said.last, said.taken, said.pending
	st := &api.PolicyStatus{Mode: wantedMode(d), Time: metav1.NewTime(time.Now().Truncate(time.Second)), Outcome: api.OutcomeNoDecision, Message: "No decision was made: no load report was received yet."}
	if was := d.Status.Policy; was != nil {
		st.Decisions, st.Layers, st.Backoff = was.Decisions, was.Layers, was.Backoff
	} else if d.IsAuto() {
		if begins, is := beginsIn(x, s); is {
			x.become(st, begins)
		}
	}
	if decided != nil {
		last, taken = *decided, true
	}
	if !d.IsAuto() {
		st.Outcome, st.Message = api.OutcomeStay, "spec.parallelism.mode sets the mode."
		return st
	}
	if taken {
		st.Message = clip(last.Why.Text, mostText)
		for _, r := range last.Rejected {
			if len(st.Rejected) < mostModes {
				st.Rejected = append(st.Rejected, api.RejectedMode{Mode: x.mode(r.Shape), Layers: x.short(r.Shape), Message: clip(r.Why.Text, mostText)})
			}
		}
		switch {
		case last.Switch:
			st.Outcome = api.OutcomeSwitch
		case !last.Held && !last.Withheld:
			st.Outcome = api.OutcomeStay
		}
	}
	if decided != nil {
		note(st, api.PolicyDecision{Time: st.Time, From: st.Mode, To: x.mode(decided.To), ToLayers: x.short(decided.To), Action: action(d.AppliesMode()),
			Message: clip(decided.Why.Text, mostText)})
		if d.AppliesMode() {
			x.become(st, decided.To)
		}
	}
	return st
}

func action(applies bool) api.Action {
	if applies {
		return api.ActionApply
	}
	return api.ActionRecommend
}

// note a decision as the newest. One that nobody follows is said anew while it holds, and noted once.
func note(st *api.PolicyStatus, decision api.PolicyDecision) {
	width := decision.ToReplicas > 0
	if i := slices.IndexFunc(st.Decisions, func(x api.PolicyDecision) bool { return (x.ToReplicas > 0) == width }); i >= 0 && decision.Action == api.ActionRecommend {
		again := st.Decisions[i]
		again.Time, again.Message = decision.Time, decision.Message
		if again == decision {
			return
		}
	}
	st.Decisions = slices.Insert(slices.Clone(st.Decisions), 0, decision)
	st.Decisions = st.Decisions[:min(len(st.Decisions), mostDecisions)]
}

// beginsIn which shape mode Auto goes on: that of the layout in force; in the middle of a transition that to which it goes.
func beginsIn(x shapes, s *scene) (kernels.Shape, bool) {
	if serves := shapeOf(s.seen.Layout); x.allowed(serves) {
		return serves, true
	}
	if len(s.transitions) > 0 && s.transitions[0].Spec.To.Mode == api.ModeTensor {
		return x.tensor().On(len(s.seen.Layout.GetMembers())), true
	}
	return kernels.Shape{}, false
}

// worldNow as a policy is to see it. A world that is not at rest is busy: nothing is decided about it.
func worldNow(d *api.MoEDeployment, s *scene) adviser.World {
	seen := &s.seen
	w := adviser.World{Epoch: seen.Epoch, KVBytes: uint64(d.Spec.Memory.KVCache.Value()), Rates: ratesOf(s.transitions),
		DryRun: !d.AppliesMode(),
		Busy:   seen.Running != nil || seen.NeedsRepair() || seen.Unfinished || seen.Failed != nil || d.Spec.Suspend}
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
	d = d.DeepCopy() // what follows is asked whenever a reading comes, while reconciliations write d
	x := shapes{d, s.byData}
	w.Shape = shapeOf(l)
	if ranks := len(l.Members); ranks > 1 && ranks == wantedRanks(d) && w.Shape != x.wanted().On(ranks) {
		w.Busy = true // on its way
	}
	w.Pods = podsNow(d, s, w.Shape)
	w.Repairable = repairable(d, w.View)
	p := pricing{shapes: x, view: w.View, seen: *seen}
	w.Price, w.Refused = p.price, p.refused
	return w
}

// optimalOf a world in mode Auto.
func optimalOf(d *api.MoEDeployment) verdict {
	st := d.Status.Policy
	switch {
	case st == nil || st.Outcome == api.OutcomeNoDecision:
		reason := "No decision was made yet."
		if st != nil {
			reason = st.Message
		}
		return verdict{metav1.ConditionUnknown, api.ReasonNoDecision, reason}
	case st.Outcome == api.OutcomeSwitch && !d.AppliesMode():
		to := st.Mode
		if i := slices.IndexFunc(st.Decisions, func(x api.PolicyDecision) bool { return x.ToReplicas == 0 }); i >= 0 {
			to = st.Decisions[i].To
		}
		return no(api.ReasonRecommended, fmt.Sprintf("The policy recommends mode %s. %s", to, st.Message))
	case st.Outcome == api.OutcomeSwitch:
		return no(api.ReasonSwitching, fmt.Sprintf("The world switches to mode %s. %s", st.Mode, st.Message))
	}
	return yes(api.ReasonBestMode, st.Message)
}
