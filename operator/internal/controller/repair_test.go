package controller

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/pkg/member"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// membersOf returns the members of a layout, by rank.
func membersOf(l *tangramv1.Layout) []string {
	var out []string
	for _, m := range l.GetMembers() {
		out = append(out, m.Id)
	}
	return out
}

// die kills the ranks of a pod and removes the pod, as the loss of a node does.
func (b *bed) die(pod string) {
	b.t.Helper()
	require.NoError(b.t, b.c.Delete(context.Background(), b.pod(pod), client.GracePeriodSeconds(0)))
}

// repaired waits until a world has its number of ranks again and nothing is in progress.
func (b *bed) repaired(width int32, epoch int64) *api.MoEDeployment {
	b.t.Helper()
	return b.until("w", "whole again", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionReady, metav1.ConditionTrue, api.ReasonServing) && d.Status.Ranks == width && d.Status.Epoch > epoch
	})
}

// Survivors immediately serve in a layout of their own; then the number of ranks returns. No survivor's pod is touched.
func TestRepair_WhenMemberDies(t *testing.T) {
	for name, die := range map[string]func(*bed){
		"container ends": func(b *bed) { b.crash("w-1", "engine-0", 139, "segmentation fault") },
		"pod is gone":    func(b *bed) { b.die("w-1") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.mayHarm = true
			before := b.serve("w", 3)
			uids := b.uids()
			die(b)
			b.told(api.EventRepaired, "1 members were lost and 2 ranks serve")
			d := b.repaired(3, before.Status.Epoch)
			after := b.uids()
			require.Len(t, after, 3)
			require.Equal(t, uids["w-0"], after["w-0"])
			require.Equal(t, uids["w-2"], after["w-2"])
			for _, m := range d.Status.Members {
				require.NotContains(t, m.ID, string(uids["w-1"]))
			}
			require.Zero(t, b.count(api.EventWorldRestarted))
			require.Eventually(t, func() bool { return b.count(api.EventRepaired) == 1 }, wait, tick)
			require.Eventually(t, func() bool { return len(b.repairs()) == 1 && over(&b.repairs()[0]) }, wait, tick)
			lt := b.repairs()[0]
			require.Equal(t, api.PhaseSucceeded, lt.Status.Phase)
			require.Len(t, lt.Status.Lost, 1)
			require.Contains(t, lt.Status.Lost[0].ID, string(uids["w-1"]))
			require.NotEmpty(t, lt.Status.Lost[0].Message)
			require.NotEmpty(t, lt.Status.Missed)
			require.Equal(t, api.MissedMember{By: lt.Status.Missed[0].By, ID: lt.Status.Lost[0].ID, Cause: "GaveUp", Doing: "Combine", Layer: ptr.To(int32(1))},
				lt.Status.Missed[0])
			b.told(api.EventRepaired, " reported "+lt.Status.Lost[0].ID+" gave up in combine of layer 1")
			require.Equal(t, "repair", lt.Status.Flips[0].Kind)
			require.GreaterOrEqual(t, lt.Status.SinceRequested.Duration, lt.Status.CompletionTime.Sub(lt.Status.StartTime.Time).Truncate(time.Second))
			require.NotNil(t, lt.Status.Phases.Fence)
			require.True(t, has(d, api.ConditionRepairReady, metav1.ConditionTrue, api.ReasonHeadroom), message(d, api.ConditionRepairReady))
		})
	}
}

func TestRepair_WhenTwoMembersDie(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	before := b.serve("w", 4)
	uids := b.uids()
	b.die("w-1")
	b.die("w-2")
	b.repaired(4, before.Status.Epoch)
	require.Equal(t, uids["w-0"], b.uids()["w-0"])
	require.Equal(t, uids["w-3"], b.uids()["w-3"])
	require.Zero(t, b.count(api.EventWorldRestarted))
}

func TestRepair_WhenAllMembersDie(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	b.serve("w", 2)
	uids := b.uids()
	b.die("w-0")
	b.die("w-1")
	b.told(api.EventWorldRestarted, "The world restarts from the checkpoint")
	d := b.until("w", "it serves again", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionReady, metav1.ConditionTrue, api.ReasonServing) && len(d.Status.Members) == 2 &&
			member.PodOf(d.Status.Members[0].ID) != string(uids["w-0"])
	})
	require.EqualValues(t, 2, d.Status.Ranks)
	require.Eventually(t, func() bool { return b.count(api.EventWorldRestarted) == 1 }, wait, tick)
}

// An engine that dies alone restarts in its pod and finds its weights: nothing moves and no member is replaced.
func TestRepair_WhenOnlyEngineDies(t *testing.T) {
	b := keeping(t)
	before := b.serve("w", 3)
	uids := b.uids()
	b.agent("w-1").Detach(true) // then the kubelet restarts it
	d := b.repaired(3, before.Status.Epoch)
	require.Equal(t, uids, b.uids())
	require.Equal(t, before.Status.Members, d.Status.Members)
	require.Eventually(t, func() bool { return len(b.repairs()) == 1 && over(&b.repairs()[0]) }, wait, tick)
	lt := b.repairs()[0]
	require.Empty(t, lt.Status.Lost)
	require.Zero(t, lt.Spec.ExpertBytes)
}

// An engine that stays away too long is removed; its rank joins again as a new member in the same pod.
func TestRepair_WhenEngineReattachesLate(t *testing.T) {
	b := keeping(t)
	before := b.serve("w", 3)
	uids := b.uids()
	b.let(fate{detached: true}, "w-1")
	b.agent("w-1").Detach(true)
	b.until("w", "the others serve on", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 2 })
	require.Equal(t, uids, b.uids())
	b.let(fate{})
	d := b.repaired(3, before.Status.Epoch)
	require.Equal(t, uids, b.uids())
	ids := membersOf(b.world("w").Layout())
	require.Contains(t, ids, string(uids["w-1"])+"/0/2")
	require.Len(t, d.Status.Members, 3)
}

// A partitioned pod is removed although its containers run. When it is back, its reports do not count, it is released,
// and joins again.
func TestRepair_WhenPartitionedPodReturns(t *testing.T) {
	b := keeping(t)
	before := b.serve("w", 3)
	uids := b.uids()
	ids := membersOf(b.world("w").Layout())
	zombie := b.agent("w-1")
	zombie.Deaf(true)
	for _, id := range ids {
		if member.PodOf(id) != string(uids["w-1"]) {
			b.world("w").Cut(id, string(uids["w-1"])+"/0/1", true)
		}
	}
	d := b.until("w", "the others serve on", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 2 })
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing) || d.Status.Epoch > before.Status.Epoch)
	zombie.Deaf(false)
	b.repaired(3, d.Status.Epoch)
	require.Equal(t, uids, b.uids(), "its pod was never at fault")
	require.Contains(t, membersOf(b.world("w").Layout()), string(uids["w-1"])+"/0/2")
	require.Contains(t, zombie.Calls(), "release")
}

func TestRepairIsRetriedAfterFailure(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	before := b.serve("w", 3)
	b.agent("w-0").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "4096 bytes are short"})
	b.die("w-1")
	d := b.degraded("w", api.ReasonRepairFailed, "4096 bytes are short")
	require.True(t, has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonRepairing))
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionFalse, api.ReasonEnginesNotReady))
	require.Equal(t, api.ReasonRepairFailed, d.Status.State)
	b.told(api.ReasonRepairFailed, "4096 bytes are short")
	b.agent("w-0").Refuse(nil)
	b.repaired(3, before.Status.Epoch)
	require.Zero(t, b.count(api.EventWorldRestarted))
}

// A new operator continues a repair that another one left half done. Before the permit it may abort the repair; after
// the permit it proceeds as after a killed operator.
func TestRepair_WhenOperatorRestarts(t *testing.T) {
	for phase, hold := range map[tangramv1.Phase]func(*bed, bool){
		tangramv1.Phase_PHASE_STAGING:   func(b *bed, yes bool) { b.world("w").HoldStage(yes) },
		tangramv1.Phase_PHASE_PERMITTED: func(b *bed, yes bool) { b.world("w").HoldGate(yes) },
	} {
		t.Run(phase.String(), func(t *testing.T) {
			b := newBed(t)
			b.mayHarm = true
			before := b.serve("w", 3)
			hold(b, true)
			b.die("w-1")
			require.Eventually(t, func() bool { return b.agent("w-0").Phase() == phase }, wait, tick)
			b.stop()
			hold(b, false)
			b.operator()
			b.repaired(3, before.Status.Epoch)
			require.Zero(t, b.count(api.EventWorldRestarted))
		})
	}
}

// A member dies in a transition: its attempt is aborted, the survivors are repaired, and the transition is retried.
func TestTransition_WhenMemberDies(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	b.serve("w", 3)
	b.world("w").HoldStage(true)
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	b.until("w", "a transition runs", func(d *api.MoEDeployment) bool {
		return d.Status.Transition != nil && d.Status.Transition.Phase == "stage"
	})
	b.die("w-2")
	require.Eventually(t, func() bool { return len(b.podNames("w")) >= 2 && b.get("w").Status.Transition == nil }, wait, tick)
	b.world("w").HoldStage(false)
	d := b.ready("w")
	require.EqualValues(t, 3, d.Status.Ranks)
	require.Equal(t, api.ModeTensor, d.Status.Mode)
	require.Zero(t, b.count(api.EventWorldRestarted))
}

// Containers restart in place. The pod's own policy is Never, so a pod that a kubelet ends stays ended.
func TestContainersRestartInPlace(t *testing.T) {
	b := newBed(t)
	b.serve("w", 1)
	p := b.pod("w-0")
	require.Equal(t, corev1.RestartPolicyNever, p.Spec.RestartPolicy)
	for _, c := range p.Spec.Containers {
		require.NotNil(t, c.RestartPolicy, "the API server of this version keeps it")
		require.Equal(t, corev1.ContainerRestartPolicyAlways, *c.RestartPolicy)
	}
}

func TestTensorParallelRequiresReadableCheckpoint(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 3)
	b.agent("w-1").BreakCheckpoint("model-2.safetensors: Input/output error")
	b.until("w", "it is told", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionRepairReady, metav1.ConditionFalse, api.ReasonNoCheckpoint)
	})
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	d := b.degraded("w", api.ReasonTransitionFailed, "cannot read the checkpoint", "model-2.safetensors: Input/output error")
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash)
	b.agent("w-1").BreakCheckpoint("")
	require.Equal(t, api.ModeTensor, b.ready("w").Status.Mode)
}

func TestRepairReady(t *testing.T) {
	b := newBed(t)
	b.world("w").SetMemory(100 << 10) // half of the experts and the dense weights fit, but not all experts
	b.serve("w", 1+1)
	d := b.until("w", "no room", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionRepairReady, metav1.ConditionFalse, api.ReasonNoHeadroom)
	})
	require.Regexp(t, `The loss of rank \d cannot be repaired: rank \d would need \d+ bytes for weights and has 102400\. The missing \d+ bytes`, message(d, api.ConditionRepairReady))
	require.True(t, has(d, api.ConditionReady, metav1.ConditionTrue, api.ReasonServing), "it serves all the same")
	b.world("w").SetMemory(1 << 30)
	b.scale(3)
	b.until("w", "room", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionRepairReady, metav1.ConditionTrue, api.ReasonHeadroom)
	})
}

func TestRepairReady_WhenSingleRank(t *testing.T) {
	b := newBed(t)
	b.serve("w", 1)
	d := b.until("w", "one rank", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionRepairReady, metav1.ConditionFalse, api.ReasonNotRepairable)
	})
	require.Contains(t, message(d, api.ConditionRepairReady), "no other rank exists")
}
