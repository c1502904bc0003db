package controller

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/internal/keeper"
	"tangram.dev/operator/internal/ranges"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// scene is the input from which a status is computed.
type scene struct {
	pods        []corev1.Pod
	seen        world.Snapshot
	decision    fleet.Decision
	problems    []problem
	transitions []api.LayoutTransition
	refused     *refusal      // if set, nothing else is known
	withheld    *refusal      // why no pod is created; everything else continues
	misfit      *refusal      // why the world cannot have spec.parallelism.layers; its layout stays
	sizing      string        // why the memory per rank is not known yet; if set, nothing else is known
	invalid     *refusal      // a value of the spec that only the operator can check; everything else continues
	silent      []string      // pods that hold a member and whose agents do not answer
	unknown     bool          // no agent answers: the active layout is unknown
	gateways    int32         // replicas that accept requests
	ending      bool          // the running transition is the aborted one
	again       time.Duration // when to check pods again that do not start; 0: there are none

	gatewayProblems []problem             // pods of gateways that do not start or could not be created
	aborted         *api.LayoutTransition // by the user; no other transition starts
	byData          bool                  // engines keep a request's heads on one rank; set if a policy decides
	deleting        bool
	expires         time.Time       // earliest expiry of a certificate; zero: not checked
	unrenewed       error           // why certificates could not be renewed
	load            *api.LoadStatus // a load status that differs from the current one; nil: none
}

// verdict is the value of one condition.
type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

func no(reason, message string) verdict  { return verdict{metav1.ConditionFalse, reason, message} }
func yes(reason, message string) verdict { return verdict{metav1.ConditionTrue, reason, message} }

// writeStatus writes the status if it changed, and emits events for new problems.
func (r *Reconciler) writeStatus(ctx context.Context, d *api.MoEDeployment, s *scene) error {
	before := d.DeepCopy()
	st := &d.Status
	st.ObservedGeneration = d.Generation
	st.Selector = k8slabels.SelectorFromSet(selector(d, api.ComponentRank)).String() + ",!" + api.StandbyLabel
	st.Replicas, st.DesiredReplicas = 0, d.DesiredReplicas()
	for i := range s.pods {
		if s.pods[i].Labels[api.StandbyLabel] == "" {
			st.Replicas++
		}
	}
	st.Endpoint, st.Model = endpoint(d), cmp.Or(d.Spec.Model.Name, d.Name)
	if s.load != nil {
		st.Load = s.load
	}
	if s.refused == nil && s.sizing == "" {
		st.RecentTransitions = recent(s.transitions)
		if s.seen.Looked && !s.unknown || s.deleting {
			fillLayout(d, s)
			d.Status.Memory = memoryOf(d, s)
			fillRebalance(d, s)
		}
	}
	available, degraded, progressing := availableOf(d, s), degradedOf(d, s), progressingOf(d, s)
	ready := no(progressing.reason, progressing.message)
	switch {
	case available.status != metav1.ConditionTrue:
		ready = no(available.reason, available.message)
	case degraded.status == metav1.ConditionTrue:
		ready = no(degraded.reason, degraded.message)
	case progressing.status == metav1.ConditionFalse && progressing.reason == api.ReasonReconciled:
		ready = yes(api.ReasonServing, fmt.Sprintf("%d ranks serve in mode %s.", st.Ranks, inWords(st.Mode, layout.RangesOf(s.seen.Layout))))
	}
	r.set(d, api.ConditionAvailable, available)
	r.set(d, api.ConditionProgressing, progressing)
	r.set(d, api.ConditionDegraded, degraded)
	r.set(d, api.ConditionReady, ready)
	r.set(d, api.ConditionRepairReady, repairReadyOf(s))
	r.tellBalanced(d, s)
	if d.IsAuto() {
		r.set(d, api.ConditionModeOptimal, optimalOf(d))
	} else {
		apimeta.RemoveStatusCondition(&d.Status.Conditions, api.ConditionModeOptimal)
	}
	if d.IsAutoscaled() {
		r.set(d, api.ConditionScalingActive, scalingOf(d))
	} else {
		apimeta.RemoveStatusCondition(&d.Status.Conditions, api.ConditionScalingActive)
	}
	if !s.expires.IsZero() || s.unrenewed != nil {
		r.set(d, api.ConditionCertificatesValid, certificatesOf(s))
	}
	if !s.expires.IsZero() {
		r.metrics.certificate(d, s.expires)
	}
	stalled := degraded.status == metav1.ConditionTrue && slices.Contains(
		[]string{api.ReasonNameConflict, api.ReasonObjectRejected, api.ReasonIssuerMissing, api.ReasonSharingNotAllowed, api.ReasonPodsFailing, api.ReasonInsufficientMemory, api.ReasonLayoutDoesNotFit, api.ReasonInvalidSpec}, degraded.reason)
	r.onlyWhile(d, api.ConditionPlaintextNetwork, d.IsPlaintext(), yes(api.ReasonUnencrypted,
		"spec.network.encryption is None: weights, KV cache and step data cross the network in plain text, and pods trust every client that can connect. "+
			"To encrypt them, create a MoEDeployment with another name and spec.network.encryption Required."))
	r.onlyWhile(d, api.ConditionStalled, stalled, degraded)
	r.onlyWhile(d, api.ConditionReconciling, !stalled && ready.status != metav1.ConditionTrue, ready)
	st.Ready = fmt.Sprintf("%d/%d", st.ReadyReplicas, st.DesiredReplicas)
	st.State = ready.reason
	if degraded.status == metav1.ConditionTrue {
		st.State = degraded.reason
	}
	r.metrics.status(d)
	if equality.Semantic.DeepEqual(before.Status, d.Status) {
		return nil
	}
	// The lock requires the status that was read: a patch based on an older one would mix two states of the world.
	if err := r.Status().Patch(ctx, d, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(err)
	}
	if now := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionPlaintextNetwork); now != nil &&
		apimeta.FindStatusCondition(before.Status.Conditions, api.ConditionPlaintextNetwork) == nil {
		r.event(d, nil, corev1.EventTypeWarning, api.ConditionPlaintextNetwork, "Reconcile", "%s", now.Message)
	}
	if was := apimeta.FindStatusCondition(before.Status.Conditions, api.ConditionDegraded); degraded.status == metav1.ConditionTrue &&
		degraded.reason != api.ReasonTransitionFailed && // an event was emitted when it happened
		degraded.reason != api.ReasonRepairFailed &&
		(was == nil || was.Status != degraded.status || was.Reason != degraded.reason ||
			was.Message != degraded.message && degraded.reason != api.ReasonMemberLost) { // members stop one by one
		r.event(d, nil, corev1.EventTypeWarning, degraded.reason, "Reconcile", "%s", degraded.message)
	}
	return nil
}

func certificatesOf(s *scene) verdict {
	first := s.expires.UTC().Format(time.RFC3339)
	switch {
	case s.expires.IsZero():
		return no(api.ReasonRenewalFailed, fmt.Sprintf("The certificates cannot be renewed: %v.", s.unrenewed))
	case time.Now().After(s.expires):
		return no(api.ReasonExpired, "A certificate expired at "+first+". Other pods reject the pod that uses it. The operator keeps trying to renew it.")
	case s.unrenewed != nil:
		return no(api.ReasonRenewalFailed, fmt.Sprintf("The first certificate expires at %s and cannot be renewed: %v.", first, s.unrenewed))
	}
	return yes(api.ReasonValid, "The first certificate expires at "+first+". The operator renews it before that time.")
}

func (r *Reconciler) set(d *api.MoEDeployment, kind string, v verdict) {
	apimeta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: kind, Status: v.status, Reason: v.reason,
		Message: clip(v.message, longestMessage), ObservedGeneration: d.Generation})
}

// onlyWhile is for conditions that kstatus expects to exist only while they are true.
func (r *Reconciler) onlyWhile(d *api.MoEDeployment, kind string, on bool, v verdict) {
	if !on {
		apimeta.RemoveStatusCondition(&d.Status.Conditions, kind)
		return
	}
	r.set(d, kind, yes(v.reason, v.message))
}

func fillLayout(d *api.MoEDeployment, s *scene) {
	st := &d.Status
	l := s.seen.Layout
	st.Epoch, st.LayoutHash, st.Ranks = int64(s.seen.Epoch), hex.EncodeToString(s.seen.Hash), int32(len(l.GetMembers()))
	st.Mode, st.Members, st.ReadyReplicas, st.ReadyStandbyReplicas, st.Transition = modeOf(d, l), nil, 0, 0, nil
	st.Layers = ranges.Status(layout.RangesOf(l))
	in := layoutPods(l)
	for i := range s.pods {
		p, ranks := &s.pods[i], 0
		for _, uid := range in {
			if uid == string(p.UID) {
				ranks++
			}
		}
		switch {
		case ranks == int(d.Spec.RanksPerPod):
			st.ReadyReplicas++
		case ranks > 0: // a repair removed some of its ranks
		case p.DeletionTimestamp == nil && keeper.Ready(s.seen.Statuses[string(p.UID)], int(d.Spec.RanksPerPod), s.seen.Outcasts) != nil:
			st.ReadyStandbyReplicas++
		}
	}
	for rank, m := range l.GetMembers() {
		if rank == api.MaxMembers {
			break
		}
		st.Members = append(st.Members, api.Member{Rank: int32(rank), ID: m.Id, Pod: m.Pod, Node: m.Node})
	}
	// The LayoutTransition gives the name; it exists once there is a plan.
	open := slices.IndexFunc(s.transitions, func(t api.LayoutTransition) bool { return !over(&t) })
	if e := s.seen.Running; e != nil && !s.seen.Repairing && open >= 0 {
		st.Transition = &api.CurrentTransition{Name: s.transitions[open].Name, Phase: e.Phase, Flip: int32(e.Flip), Flips: int32(e.Flips),
			BytesDone: int64(e.BytesDone), BytesTotal: int64(e.BytesTotal)}
	}
}

// modeOf returns the mode of the active layout. A world of one rank has the desired mode.
func modeOf(d *api.MoEDeployment, l *tangramv1.Layout) api.Mode {
	switch wanted, err := layout.ParseMode(string(wantedMode(d))); {
	case l == nil:
		return ""
	case hybrid(d, l):
		return api.ModeHybrid
	case err == nil && layout.Is(l, wanted):
		return wantedMode(d)
	case layout.Is(l, layout.Expert):
		return api.ModeExpert
	case layout.Is(l, layout.Tensor):
		return api.ModeTensor
	}
	return api.ModeHybrid
}

func availableOf(d *api.MoEDeployment, s *scene) verdict {
	if was := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionAvailable); was != nil && (s.refused != nil || s.unknown || !s.seen.Looked) {
		return verdict{was.Status, was.Reason, was.Message} // nothing new is known
	}
	if s.seen.Layout == nil {
		return no(api.ReasonNoLayout, "No layout is active yet.")
	}
	accept := 0
	for _, status := range s.seen.Statuses {
		for _, rank := range status.Ranks {
			if rank.InWorld && rank.Engine.GetAttached() && !rank.Engine.GetStopped() {
				accept++
			}
		}
	}
	if accept == 0 || s.seen.Broken != nil {
		return no(api.ReasonEnginesNotReady, fmt.Sprintf("%d of %d ranks of the active layout are ready. A step requires all ranks.", accept, d.Status.Ranks))
	}
	if s.gateways == 0 {
		text := fmt.Sprintf("%d ranks accept requests, but no gateway does", accept)
		if len(s.gatewayProblems) > 0 {
			text += ": " + s.gatewayProblems[0].pod + ": " + s.gatewayProblems[0].text
		}
		return no(api.ReasonGatewayNotReady, text+".")
	}
	return yes(api.ReasonServing, fmt.Sprintf("%d of %d ranks accept requests at epoch %d.", accept, d.Status.Ranks, s.seen.Epoch))
}

func degradedOf(d *api.MoEDeployment, s *scene) verdict {
	switch {
	case s.refused != nil:
		return yes(s.refused.reason, s.refused.message)
	case s.decision.Repair && s.seen.RepairFailed != nil:
		return yes(api.ReasonRepairFailed, fmt.Sprintf("The repair failed: %v. The operator tries again.", s.seen.RepairFailed))
	case s.seen.Broken != nil:
		return yes(api.ReasonMemberLost, fmt.Sprintf("The world needs a repair: %v.", s.seen.Broken))
	case s.decision.Repair:
		return yes(api.ReasonMemberLost, fmt.Sprintf("%d pods of the active layout ended or were deleted (UIDs): %s.", len(s.decision.Lost), strings.Join(s.decision.Lost, ", ")))
	case s.misfit != nil:
		return yes(s.misfit.reason, s.misfit.message)
	case s.invalid != nil:
		return yes(s.invalid.reason, s.invalid.message)
	case s.seen.Failed != nil && noMemory(s.seen.Failed):
		return yes(api.ReasonInsufficientMemory, fmt.Sprintf("The memory does not suffice for the transition: %v.", s.seen.Failed))
	case s.seen.Failed != nil:
		return yes(api.ReasonTransitionFailed, fmt.Sprintf("The transition failed: %v. The operator tries again.", s.seen.Failed))
	case s.withheld != nil:
		return yes(s.withheld.reason, s.withheld.message)
	case len(s.problems) > 0:
		return yes(s.problems[0].reason, describe(int(d.DesiredReplicas()+d.Spec.StandbyReplicas), "pods", s.problems))
	}
	if len(s.gatewayProblems) > 0 {
		return yes(s.gatewayProblems[0].reason, describe(int(d.Spec.Gateway.Replicas), "gateway pods", s.gatewayProblems))
	}
	if len(s.silent) > 0 {
		return yes(api.ReasonAgentsUnreachable, fmt.Sprintf("%d agents of the active layout are unresponsive: %s.", len(s.silent), strings.Join(s.silent, "; ")))
	}
	return no(api.ReasonReconciled, "No failure was detected.")
}

// noMemory says whether an agent or the planner rejected a transition for lack of memory.
func noMemory(err error) bool {
	return agentclient.RefusalCode(err) == tangramv1.Refusal_CODE_NO_MEMORY || planner.IsNoMemory(err)
}

// describe summarizes the problems of pods: their number, and each text once.
func describe(all int, kind string, problems []problem) string {
	text := fmt.Sprintf("%d of %d %s cannot start", len(problems), max(all, len(problems)), kind)
	seen := map[string]bool{}
	for _, p := range problems {
		if !seen[p.text] {
			text += fmt.Sprintf("; %s: %s", p.pod, p.text)
		}
		seen[p.text] = true
	}
	return strings.TrimSuffix(text, ".") + "."
}

func progressingOf(d *api.MoEDeployment, s *scene) verdict {
	switch {
	case s.deleting:
		return yes(api.ReasonDeleting, fmt.Sprintf("%d pods have not ended yet.", len(s.pods)))
	case s.refused != nil:
		return no(s.refused.reason, s.refused.message)
	case s.sizing != "":
		return yes(api.ReasonSizing, s.sizing)
	case s.unknown:
		return no(api.ReasonAgentsUnreachable, "The state of the world is unknown because no agent responds. The operator changes nothing until one responds.")
	case s.seen.Repairing || s.decision.Repair:
		return yes(api.ReasonRepairing, "The world is being repaired: the surviving ranks switch to a layout without the lost ranks.")
	case s.seen.Running != nil && !s.seen.Rebalancing: // a rebalance changes neither ranks nor mode
		e := s.seen.Running
		text := fmt.Sprintf("Flip %d of %d is in phase %s.", e.Flip, e.Flips, e.Phase)
		if s.ending {
			text += " The transition is being aborted: no further flip starts."
		}
		return yes(api.ReasonTransition, text)
	case s.misfit != nil:
		return no(s.misfit.reason, s.misfit.message)
	case len(s.decision.Target) > 0 && d.Spec.Suspend:
		return no(api.ReasonSuspended, fmt.Sprintf("spec.suspend prevents a transition to %d ranks in mode %s. Set spec.suspend to false to start the transition.", len(s.decision.Target), wantedMode(d)))
	case len(s.decision.Target) > 0 && s.aborted != nil:
		return no(api.ReasonAborted, fmt.Sprintf("LayoutTransition %s was aborted. Change the spec or remove annotation %s to start a transition to %d ranks in mode %s.",
			s.aborted.Name, api.AbortAnnotation, len(s.decision.Target), wantedMode(d)))
	case len(s.decision.Target) > 0:
		return yes(api.ReasonTransition, fmt.Sprintf("A transition to %d ranks in mode %s starts next.", len(s.decision.Target), wantedMode(d)))
	case len(s.decision.Create)+len(s.decision.Waiting) > 0:
		n := len(s.decision.Create) + len(s.decision.Waiting)
		return yes(api.ReasonWaitingForPods, fmt.Sprintf("%d of %d pods are missing or have no attached engine.", n, d.DesiredReplicas()))
	case len(s.pods) > int(d.DesiredReplicas()+d.Spec.StandbyReplicas) || len(s.decision.Delete) > 0:
		return yes(api.ReasonReleasingPods, fmt.Sprintf("%d pods exist and %d are desired. The operator deletes the others.", len(s.pods), d.DesiredReplicas()+d.Spec.StandbyReplicas))
	case !s.seen.Looked:
		return yes(api.ReasonWaitingForPods, "The agents have not been queried yet.")
	case s.gateways == 0 && s.seen.Layout != nil:
		return yes(api.ReasonWaitingForPods, "No gateway accepts requests yet.")
	}
	return no(api.ReasonReconciled, "The world matches the spec.")
}

// repairReadyOf says whether the loss of any one rank of the active layout could be repaired.
func repairReadyOf(s *scene) verdict {
	room, l := s.seen.Headroom, s.seen.Layout
	switch {
	case s.seen.HeadroomError != nil:
		return verdict{metav1.ConditionUnknown, api.ReasonUnknown, fmt.Sprintf("The headroom for a repair is unknown: %v.", s.seen.HeadroomError)}
	case room == nil || l == nil:
		return verdict{metav1.ConditionUnknown, api.ReasonUnknown, "No layout is active, or the headroom of the active layout has not been computed yet."}
	}
	worst := room.Worst
	switch unread := unreadable(s); {
	case worst.Beyond != "":
		return no(api.ReasonNotRepairable, fmt.Sprintf("The loss of rank %d would restart the world from the checkpoint: %s.", worst.Rank, worst.Beyond))
	case !room.Enough:
		short := worst.Survivors[0]
		for _, n := range worst.Survivors {
			if n.ShortBytes > short.ShortBytes {
				short = n
			}
		}
		return no(api.ReasonNoHeadroom, fmt.Sprintf("The loss of rank %d cannot be repaired: rank %d would need %d bytes for weights and has %d. The missing %d bytes equal %d tokens of its KV cache.",
			worst.Rank, short.Rank, short.NeedBytes, short.MemoryBytes, short.ShortBytes, short.KVTokens))
	case unread != "":
		return no(api.ReasonNoCheckpoint, unread)
	}
	return yes(api.ReasonHeadroom, fmt.Sprintf("The loss of any rank can be repaired. In the worst case, rank %d, the other ranks fetch %d bytes.", worst.Rank, worst.BringBytes))
}

// unreadable says which agents cannot read the checkpoint, the source of a repair for pieces that no rank holds.
func unreadable(s *scene) string {
	var out []string
	for i := range s.pods {
		if why := s.seen.Statuses[string(s.pods[i].UID)].GetCheckpointError(); why != "" {
			out = append(out, s.pods[i].Name+": "+why)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("%d agents cannot read the checkpoint: %s.", len(out), strings.Join(out, "; "))
}
