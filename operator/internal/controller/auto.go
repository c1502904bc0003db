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
	// policyEvery is the shortest time between status updates without a decision.
	policyEvery = 30 * time.Second
	// silentFor is how long a decision stays valid after the last usable reading.
	silentFor = 10 * time.Second
	// mostDecisions limits the decisions in a status.
	mostDecisions = 10
	// mostModes limits the rejected modes in a status.
	mostModes = 8
	// mostText limits the length of a reason.
	mostText = 1024
)

// advice runs the policies of one world. Each reading of the gateways, once a second, asks them for a decision. The
// next reconcile of the world reads it.
type advice struct {
	options adviser.Options

	mu          sync.Mutex
	adviser     *adviser.Adviser
	world       adviser.World
	modes       bool   // the policy decides the mode
	scales      bool   // decisions on the number of ranks are applied; for the mode see world.DryRun
	forbidden   string // why the number of ranks is not decided; empty: it is
	mode, width word
	heard       time.Time // time of the last reading; zero: never
}

// word is a policy's last decision, and the switch that must be followed once.
type word struct {
	last    decisions.Decision
	taken   bool // last is valid
	pending *decisions.Decision
}

// take stores a decision. It returns true for a switch to another shape than before; in a dry run decisions repeat.
func (w *word) take(d decisions.Decision) bool {
	news := d.Switch && (!w.last.Switch || w.last.To != d.To)
	w.last, w.taken = d, true
	if d.Switch {
		w.pending = &d
	}
	return news
}

// take passes a reading to the policies and returns whether one decided. An applied change of ranks comes first.
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

// heard are the last decisions of a world's policies.
type heard struct{ mode, width word }

// set updates the world and returns the decisions, which stay pending until followed. why: no usable load report.
func (a *advice) set(w adviser.World, modes, scales bool, forbidden, why string) heard {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.world, a.modes, a.scales, a.forbidden = w, modes, scales, forbidden
	if p := a.mode.pending; p != nil && (!modes || p.To.Ranks != w.Shape.Ranks) {
		a.mode.pending = nil // it was for another number of ranks
	}
	if forbidden != "" || w.Busy {
		a.width.pending = nil
	}
	out := heard{a.mode, a.width}
	if !a.heard.IsZero() && time.Since(a.heard) > silentFor { // the decision was for a load that may have ended
		a.mode.pending, a.width.pending = nil, nil
		said := decisions.Decision{Held: true, To: w.Shape, Why: decisions.Reason{Text: fmt.Sprintf("No decision was made: the gateways have sent no usable load report since %s%s.", a.heard.UTC().Format(time.TimeOnly), why)}}
		out = heard{word{last: said, taken: true}, word{last: said, taken: true}}
	}
	return out
}

// followed clears the pending switches of h, because the status now contains them, and updates the world.
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

// wantedMode is the mode of the spec, or of its policy. Before the first decision, mode Auto is ExpertParallel.
func wantedMode(d *api.MoEDeployment) api.Mode {
	switch {
	case !d.IsAuto():
		return d.SpecMode()
	case d.Status.Policy == nil || d.Status.Policy.Mode == "":
		return api.ModeExpert
	case d.Status.Policy.Mode == api.ModeHybrid && ranges.OfSpec(d.Status.Policy.Layers).Divide(wantedRanks(d)) != nil:
		return api.ModeExpert // it was chosen for another number of ranks
	}
	return d.Status.Policy.Mode
}

// adviserOptions returns the options of a spec. Unset fields have the defaults of the CRD.
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

// advised passes each reading of a world's gateways to its policies.
func (r *Reconciler) advised(uid types.UID, key client.ObjectKey, s *telemetry.Sample) {
	if found, there := r.advices.Load(uid); there && found.(*advice).take(s) { //nolint:forcetypeassert // nothing else is stored
		r.news.put(key)
	}
}

// auto follows the policies of a world in mode Auto or with an SLO. It writes a decision into the status before it
// acts, so that the next operator continues with it. It returns when to update the status again.
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
		return policyEvery, nil // a serving world keeps its mode, which is not known yet
	}
	a, err := r.adviceOf(d, s)
	if err != nil { // the world stays unchanged
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
	if failed != "" { // earlier decisions were for the previous state
		mode = word{last: decisions.Decision{Held: true, Why: decisions.Reason{Text: failed}}, taken: true}
		width = mode
	}
	if width.pending != nil && d.AppliesReplicas() {
		mode.pending = nil // one switch at a time
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
	a.followed(said, worldNow(d, s)) // the status now contains the blocked shapes
	if failed != "" {
		r.event(d, nil, corev1.EventTypeWarning, api.EventDecisionReverted, "Reconcile", "%s", failed)
	}
	for _, one := range newDecisions(before.Status.Policy, now) {
		r.tellDecision(d, one)
	}
	return policyEvery, nil
}

// adviceOf returns the policies of a world, and creates them again if their options changed.
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

// newDecisions returns the decisions that were added to a status, oldest first.
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

// unread says why the gateways of a world have no usable report; empty: they have one, or no reader exists.
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

// same says that nothing changed that is worth a write.
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

// note adds a decision as the newest. A recommendation that repeats is not added again.
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

// beginsIn returns the shape in which mode Auto starts: the active layout's, or that of the newest transition's target.
func beginsIn(x shapes, s *scene) (kernels.Shape, bool) {
	if serves := shapeOf(s.seen.Layout); x.allowed(serves) {
		return serves, true
	}
	if len(s.transitions) > 0 && s.transitions[0].Spec.To.Mode == api.ModeTensor {
		return x.tensor().On(len(s.seen.Layout.GetMembers())), true
	}
	return kernels.Shape{}, false
}

// worldNow returns the world's state for the policies, which decide nothing about a busy world (not at rest).
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
	d = d.DeepCopy() // readings use the copy while reconciles write d
	x := shapes{d, s.byData}
	w.Shape = shapeOf(l)
	if ranks := len(l.Members); ranks > 1 && ranks == wantedRanks(d) && w.Shape != x.wanted().On(ranks) {
		w.Busy = true // a transition has not reached the desired shape yet
	}
	w.Pods = podsNow(d, s, w.Shape)
	w.Repairable = repairable(d, w.View)
	p := pricing{shapes: x, view: w.View, seen: *seen}
	w.Price, w.Refused = p.price, p.refused
	return w
}

// optimalOf returns the condition ModeOptimal of a world in mode Auto.
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
