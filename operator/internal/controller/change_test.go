package controller

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

func TestScaleUpAndDown(t *testing.T) {
	b := newBed(t)
	b.serve("w", 2)
	kept := []string{string(b.pod("w-0").UID), string(b.pod("w-1").UID)}
	b.scale(4)
	d := b.ready("w")
	require.Equal(t, []string{"w-0", "w-1", "w-2", "w-3"}, b.podNames("w"))
	require.EqualValues(t, 4, d.Status.Ranks)
	require.Greater(t, d.Status.Epoch, int64(1))
	released := b.pod("w-3")
	b.scale(2)
	d = b.ready("w")
	require.EqualValues(t, []int32{2, 2, 2}, []int32{d.Status.Ranks, d.Status.Replicas, d.Status.ReadyReplicas})
	require.Equal(t, kept, []string{string(b.pod("w-0").UID), string(b.pod("w-1").UID)}, "who stays is left alone")
	require.True(t, b.gone(&corev1.Pod{}, "w-3"))
	require.True(t, b.gone(&corev1.Secret{}, "w-3-tls"), "a released pod's key goes with it")
	require.False(t, b.gone(&corev1.Secret{}, "w-1-tls"))
	b.told(api.EventPodReleased, "w-3 (UID "+string(released.UID)+")")
	require.Equal(t, "4 ranks ExpertParallel -> 2 ranks ExpertParallel", d.Status.RecentTransitions[0].Summary)
	require.Equal(t, "2 ranks ExpertParallel -> 4 ranks ExpertParallel", d.Status.RecentTransitions[1].Summary)
	require.Len(t, d.Status.RecentTransitions, 3)
}

// Standby pods are in no layout, autoscalers do not count them, they join immediately, and leaving pods refill them.
func TestStandbyPodsJoinImmediately(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.StandbyReplicas = 1
	require.NoError(t, b.c.Create(t.Context(), d))
	standing := func(what string, replicas, standby int32, names ...string) {
		t.Helper()
		b.until("w", what, func(d *api.MoEDeployment) bool {
			return has(d, api.ConditionReady, metav1.ConditionTrue, api.ReasonServing) && d.Status.Ranks == replicas && d.Status.Replicas == replicas &&
				d.Status.ReadyStandbyReplicas == standby && slices.Equal(names, b.podNames("w"))
		})
	}
	standing("one stands by", 2, 1, "w-0", "w-1", "w-2")
	stands := b.pod("w-2")
	require.Equal(t, "true", stands.Labels[api.StandbyLabel])
	require.Empty(t, stands.Labels[api.MemberLabel])
	selector, err := k8slabels.Parse(b.get("w").Status.Selector)
	require.NoError(t, err)
	require.False(t, selector.Matches(k8slabels.Set(stands.Labels)))
	require.True(t, selector.Matches(k8slabels.Set(b.pod("w-0").Labels)))

	b.let(fate{hold: true}, "w-3") // the next standby pod starts slowly
	b.scale(3)
	standing("it is in", 3, 0, "w-0", "w-1", "w-2", "w-3")
	require.Equal(t, stands.UID, b.pod("w-2").UID)
	require.Empty(t, b.pod("w-2").Labels[api.StandbyLabel])
	b.let(fate{})
	standing("another stands by", 3, 1, "w-0", "w-1", "w-2", "w-3")

	b.scale(1)
	standing("one of those that left", 1, 1, "w-0", "w-1")
	b.change(`{"spec":{"standbyReplicas":0}}`)
	standing("none any more", 1, 0, "w-0")
}

func TestScaleDownPrefersCheapAndCordonedPods(t *testing.T) {
	b := newBed(t)
	b.serve("w", 4)
	cheap := b.pod("w-1")
	base := cheap.DeepCopy()
	cheap.Annotations = map[string]string{api.DeletionCostAnnotation: "-10"}
	require.NoError(t, b.c.Patch(t.Context(), cheap, client.MergeFrom(base)))
	b.seen(cheap)
	b.scale(3)
	b.ready("w")
	require.Equal(t, []string{"w-0", "w-2", "w-3"}, b.podNames("w"), "the cheapest to delete left")

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: b.node(0)}} // of w-0 and w-2
	require.NoError(t, b.c.Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":true}}`))))
	b.seen(node)
	b.scale(1)
	b.ready("w")
	require.Equal(t, []string{"w-3"}, b.podNames("w"), "those on the cordoned node left")
}

func TestModeSwitch(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 3)
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	d := b.ready("w")
	require.Equal(t, api.ModeTensor, d.Status.Mode)
	require.NotEqual(t, before.Status.LayoutHash, d.Status.LayoutHash)
	require.Equal(t, before.Status.Members, d.Status.Members, "the same pods, in the same order")
	b.change(`{"spec":{"parallelism":{"mode":"ExpertParallel"}}}`)
	require.Equal(t, api.ModeExpert, b.ready("w").Status.Mode)
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"},"replicas":2}}`)
	d = b.ready("w")
	require.EqualValues(t, 2, d.Status.Ranks)
	require.Equal(t, api.ModeTensor, d.Status.Mode)
}

// After a change of the spec during a transition, the running flip ends and the rest is planned again.
func TestSpecChange_WhenTransitionInProgress(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	require.NoError(t, b.c.Create(t.Context(), d))
	b.ready("w")
	b.world("w").HoldStage(true)
	b.scale(4)
	d = b.until("w", "a transition runs", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonTransition) && d.Status.Transition != nil && d.Status.Transition.Phase == "stage" && d.Status.Transition.BytesTotal > 0
	})
	require.Greater(t, d.Status.Transition.Flips, int32(1))
	require.EqualValues(t, 1, d.Status.Transition.Flip)
	require.Less(t, d.Status.Transition.BytesDone, d.Status.Transition.BytesTotal)
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing), "it serves while it changes")
	require.Equal(t, status.InProgressStatus, kstatus(t, d).Status)
	running := d.Status.Transition.Name
	require.Eventually(t, func() bool {
		lt := &api.LayoutTransition{}
		return b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: running}, lt) == nil && lt.Status.Phase == api.PhaseStaging && lt.Status.Progress != ""
	}, wait, tick)
	epoch := d.Status.Epoch
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"},"replicas":3}}`)
	b.until("w", "the operator has seen the change", func(d *api.MoEDeployment) bool { return d.Status.ObservedGeneration == d.Generation })
	require.Equal(t, epoch, b.get("w").Status.Epoch, "the running flip is not cut off")
	b.world("w").HoldStage(false)
	d = b.ready("w")
	require.EqualValues(t, 3, d.Status.Ranks)
	require.Equal(t, api.ModeTensor, d.Status.Mode)
	first := &api.LayoutTransition{}
	require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: running}, first))
	require.Equal(t, api.PhaseSuperseded, first.Status.Phase)
	require.Len(t, first.Status.Flips, 1)
	require.Equal(t, "join", first.Status.Flips[0].Kind)
	b.told(api.EventTransitionReplanned, "superseded")
	require.True(t, has(d, api.ConditionDegraded, metav1.ConditionFalse, api.ReasonReconciled), "a change of mind is no failure")
}

func TestTransition_WhenPrepareFails(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 2)
	b.agent("w-1").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "needs 7340032 bytes, has 5242880"})
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	d := b.degraded("w", api.ReasonInsufficientMemory, "needs 7340032 bytes, has 5242880")
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing))
	require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonInsufficientMemory))
	require.Equal(t, api.ReasonInsufficientMemory, d.Status.State)
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash)
	require.Equal(t, status.FailedStatus, kstatus(t, d).Status)
	b.told(api.ReasonTransitionFailed, "needs 7340032 bytes")
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(b.history(), func(lt api.LayoutTransition) bool {
			return lt.Status.Phase == api.PhaseFailed && lt.Status.Message != "" && lt.Status.CompletionTime != nil && lt.Status.Epoch == before.Status.Epoch
		})
	}, wait, tick)

	b.agent("w-1").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_BAD_PLAN, Message: "no such expert"})
	b.degraded("w", api.ReasonTransitionFailed, "no such expert")
	b.agent("w-1").Refuse(nil)
	d = b.ready("w")
	require.Equal(t, api.ModeTensor, d.Status.Mode, "it is tried again by itself")
	require.Equal(t, status.CurrentStatus, kstatus(t, d).Status)
}

// A failure is forgotten once the change is withdrawn.
func TestTransition_WhenFailedChangeReverted(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 2)
	b.agent("w-0").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_BAD_PLAN, Message: "no such expert"})
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	b.degraded("w", api.ReasonTransitionFailed, "no such expert")
	b.change(`{"spec":{"parallelism":{"mode":"ExpertParallel"}}}`)
	d := b.ready("w")
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash)
	require.True(t, has(d, api.ConditionDegraded, metav1.ConditionFalse, api.ReasonReconciled))
}

func TestFirstLayout_WhenMemoryIsShort(t *testing.T) {
	b := newBed(t)
	b.world("w").SetMemory(64 << 10)
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 2)))
	d := b.degraded("w", api.ReasonInsufficientMemory, "65536")
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionFalse, api.ReasonNoLayout))
	require.Empty(t, b.history(), "there was no plan")
	b.world("w").SetMemory(1 << 30)
	b.ready("w")
}

func TestHistoryIsCapped(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.Tuning.HistoryLimit = 2
	require.NoError(t, b.c.Create(t.Context(), d))
	b.ready("w")
	for _, n := range []int{2, 3, 2, 1} {
		b.scale(n)
		d = b.ready("w")
	}
	require.Eventually(t, func() bool { return len(b.history()) == 2 }, wait, tick)
	require.Eventually(t, func() bool { d = b.get("w"); return len(d.Status.RecentTransitions) == 2 }, wait, tick)
	require.Equal(t, "2 ranks ExpertParallel -> 1 ranks ExpertParallel", d.Status.RecentTransitions[0].Summary, "the newest are kept")
}
