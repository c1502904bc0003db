package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/keeper"
	"tangram.dev/operator/pkg/adviser"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	decisions "tangram.dev/operator/pkg/policy"

	api "tangram.dev/api/v1alpha2"
)

// rangeOf returns the possible numbers of ranks of a world with spec.autoscaling.
func rangeOf(d *api.MoEDeployment) adviser.Range {
	a := d.Spec.Autoscaling
	step := int(max(d.Spec.RanksPerPod, 1))
	share := a.SLO.AttainmentPercent
	if share == 0 {
		share = 90 // the CRD's default
	}
	out := adviser.Range{Min: int(*d.Spec.MinReplicas) * step, Max: int(*d.Spec.MaxReplicas) * step, Step: step, Modes: d.IsAuto() && d.AppliesMode() == d.AppliesReplicas(), SLO: decisions.SLO{Share: float64(share) / 100}}
	out.SLO.TTFT, out.SLO.TPOT = float64(ptr.Deref(a.SLO.TTFTMilliseconds, 0))/1000, float64(ptr.Deref(a.SLO.TPOTMilliseconds, 0))/1000
	return out
}

// otherOwner names another autoscaler of the world; empty: none. Two would undo each other's changes forever.
func (r *Reconciler) otherOwner(ctx context.Context, d *api.MoEDeployment) (string, error) {
	if !d.IsAutoscaled() {
		return "", nil
	}
	found, err := r.autoscalersOf(ctx, d.Namespace, api.GroupVersion.Group, "MoEDeployment", d.Name)
	if err != nil || len(found) == 0 {
		return "", err
	}
	return fmt.Sprintf("HorizontalPodAutoscaler %s also scales this MoEDeployment; delete the HorizontalPodAutoscaler or remove spec.autoscaling", strings.Join(found, ", ")), nil
}

// autoscalersOf returns the names of the HorizontalPodAutoscalers that scale an object of the namespace, sorted.
func (r *Reconciler) autoscalersOf(ctx context.Context, namespace, group, kind, name string) ([]string, error) {
	var all autoscalingv2.HorizontalPodAutoscalerList
	if err := r.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var found []string
	for i := range all.Items {
		h := &all.Items[i]
		if to := h.Spec.ScaleTargetRef; to.Kind == kind && to.Name == name && strings.HasPrefix(to.APIVersion, group+"/") {
			found = append(found, h.Name)
		}
	}
	slices.Sort(found)
	return found, nil
}

// twoOwners means that the number of ranks is not decided, because another autoscaler sets it.
const twoOwners decisions.Cause = "TwoOwners"

// reasons maps a policy's cause to the reason of ScalingActive, if a user must act.
var reasons = map[decisions.Cause]string{twoOwners: api.ReasonTwoOwners, decisions.OutOfReach: api.ReasonSLOOutOfReach, decisions.Contradicted: api.ReasonModelContradicted}

// podsNow returns the pods that can widen the world, and those that it waits for.
func podsNow(d *api.MoEDeployment, s *scene, serving kernels.Shape) decisions.Pods {
	in := layoutPods(s.seen.Layout)
	out := decisions.Pods{Ready: serving.Ranks}
	var starts []float64
	for i := range s.pods {
		p := &s.pods[i]
		switch {
		case slices.Contains(in, string(p.UID)):
			if took, known := startOf(p); known {
				starts = append(starts, took)
			}
		case p.DeletionTimestamp == nil && keeper.Ready(s.seen.Statuses[string(p.UID)], int(d.Spec.RanksPerPod), s.seen.Outcasts) != nil:
			out.Ready += int(d.Spec.RanksPerPod)
			if p.Labels[api.StandbyLabel] == "true" {
				out.Standby += int(d.Spec.RanksPerPod)
			}
		}
	}
	if len(starts) > 0 {
		slices.Sort(starts)
		out.Startup = starts[len(starts)/2]
	}
	wanted := int(d.DesiredReplicas() * d.Spec.RanksPerPod)
	if wanted == serving.Ranks {
		return out
	}
	out.Wanted = shapes{d, s.byData}.wanted().On(wanted)
	if d.Status.Policy != nil {
		for _, x := range d.Status.Policy.Decisions {
			if x.ToReplicas > 0 && x.Action == api.ActionApply {
				out.Waiting = time.Since(x.Time.Time).Seconds()
				break
			}
		}
	}
	if c := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionDegraded); c != nil && c.Status == metav1.ConditionTrue {
		out.Refused = c.Reason == api.ReasonPodsUnschedulable || c.Reason == api.ReasonObjectRejected
	}
	return out
}

// startOf returns the seconds from a pod's creation to its readiness. Long ones do not count: it was ready before.
func startOf(p *corev1.Pod) (float64, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			took := c.LastTransitionTime.Sub(p.CreationTimestamp.Time).Seconds()
			return max(took, 1), took <= believedStart
		}
	}
	return 0, false
}

// believedStart is the longest start time that counts, in seconds.
const believedStart = 1800

// repairable says whether in a shape the weights' memory of the other ranks could hold the experts of a lost rank.
func repairable(d *api.MoEDeployment, v *geometry.View) func(kernels.Shape) error {
	return func(s kernels.Shape) error {
		if s.Ranks == 1 {
			return fmt.Errorf("the loss of the only rank cannot be repaired")
		}
		pool := uint64(d.Spec.Memory.Weights.Value())
		_, err := costmodel.Memory{RankBytes: pool + 1, DenseBytes: v.Proto.DenseBytes, SpareBanks: int(d.Spec.Tuning.SpareBanks)}.Budget(v, s)
		if err != nil {
			return fmt.Errorf("the loss of a rank cannot be repaired within spec.memory.weights: %w", err)
		}
		return nil
	}
}

// scalingStatus writes the decision on the number of replicas into a status, and applies it if the spec says so.
func scalingStatus(x shapes, st *api.PolicyStatus, said word, forbidden string) {
	d := x.d
	if !d.IsAutoscaled() {
		return
	}
	st.Replicas = d.DesiredReplicas()
	st.Scaling = &api.ScalingStatus{Outcome: api.OutcomeNoDecision, Message: "No decision was made: no load report was received yet."}
	last := said.last
	if said.pending != nil {
		last, said.taken = *said.pending, true
	}
	if forbidden != "" {
		last, said.taken = decisions.Decision{Held: true, Cause: twoOwners, Why: decisions.Reason{Text: "No decision was made: " + forbidden + "."}}, true
	}
	if !said.taken {
		return
	}
	step := max(d.Spec.RanksPerPod, 1)
	st.Scaling.Message, st.Scaling.Reason = clip(last.Why.Text, mostText), reasons[last.Cause]
	for _, r := range last.Rejected {
		if len(st.Scaling.Rejected) < mostWidths {
			rejected := api.RejectedReplicas{Replicas: int32(r.Shape.Ranks) / step, Message: clip(r.Why.Text, mostText)}
			if d.IsAuto() {
				rejected.Mode, rejected.Layers = x.mode(r.Shape), x.short(r.Shape)
			}
			st.Scaling.Rejected = append(st.Scaling.Rejected, rejected)
		}
	}
	switch {
	case last.Switch:
		st.Scaling.Outcome = api.OutcomeSwitch
	case !last.Held:
		st.Scaling.Outcome = api.OutcomeStay
	}
	if said.pending == nil || forbidden != "" {
		return
	}
	to := int32(last.To.Ranks) / step
	decision := api.PolicyDecision{Time: st.Time, From: st.Mode, To: st.Mode, FromReplicas: st.Replicas, ToReplicas: to, Action: action(d.AppliesReplicas()), Message: clip(last.Why.Text, mostText)}
	after := *st
	if after.Replicas = to; d.IsAuto() && d.AppliesMode() == d.AppliesReplicas() && last.To.Ranks > 1 { // one rank has no mode
		x.become(&after, last.To)
		decision.To, decision.ToLayers = after.Mode, x.short(last.To)
	}
	if d.AppliesReplicas() {
		*st = after
	}
	note(st, decision)
}

// mostWidths limits the rejected numbers of replicas in a status.
const mostWidths = 32

// scalingOf returns the condition ScalingActive of a world with spec.autoscaling.
func scalingOf(d *api.MoEDeployment) verdict {
	st := d.Status.Policy
	if st == nil || st.Scaling == nil {
		return verdict{metav1.ConditionUnknown, api.ReasonNoDecision, "No decision was made yet."}
	}
	w := st.Scaling
	switch {
	case w.Outcome != api.OutcomeNoDecision && !d.AppliesReplicas():
		return no(api.ReasonRecommended, w.Message)
	case w.Outcome != api.OutcomeNoDecision:
		return yes(api.ReasonDecides, fmt.Sprintf("The policy keeps %d replicas. %s", st.Replicas, w.Message))
	case w.Reason != "":
		return no(w.Reason, w.Message)
	}
	return verdict{metav1.ConditionUnknown, api.ReasonNoDecision, w.Message}
}
