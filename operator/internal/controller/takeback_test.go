package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// modelView returns the small model of drivertest.
func modelView(t *testing.T) *geometry.View {
	t.Helper()
	w, err := drivertest.NewWorld("m")
	require.NoError(t, err)
	status, err := w.Start(drivertest.Pod{Name: "p", UID: "u", Node: "n", Address: "a", Ranks: 1}).Status(t.Context(), "m")
	require.NoError(t, err)
	view, err := geometry.New(status.Geometry)
	require.NoError(t, err)
	return view
}

// layoutIn returns a layout of the small model with this mode and number of ranks; Hybrid: its layers differ.
func layoutIn(t *testing.T, mode layout.Mode, ranks int, byData bool) *tangramv1.Layout {
	t.Helper()
	return firstLayout(t, mode, ranks, byData).Final
}

func firstLayout(t *testing.T, mode layout.Mode, ranks int, byData bool) *planner.Result {
	t.Helper()
	in := planner.Input{World: "m", Revision: "r", Geometry: modelView(t), Shape: layout.Shape{Mode: mode, AttentionByData: byData}}
	if mode == layout.Hybrid {
		in.Shape.Layers = map[uint32]layout.LayerShape{0: {ExpertGroup: 2, AttentionGroup: 1}}
	}
	for i := range ranks {
		m := &tangramv1.Member{Id: fmt.Sprintf("00000000-0000-4000-8000-%012d/0/1", i), Node: "n", Pod: fmt.Sprint("p-", i)}
		in.Members, in.Target = append(in.Members, planner.Member{Member: m}), append(in.Target, m.Id)
	}
	plan, err := planner.Plan(in)
	require.NoError(t, err)
	return plan
}

// choosesMode creates a world of two pods whose policy follows the number of requests.
func (b *bed) choosesMode() *api.MoEDeployment {
	b.t.Helper()
	d := b.deployment("w", 2)
	d.Spec.Parallelism = auto(api.ActionApply)
	require.NoError(b.t, b.c.Create(b.t.Context(), d))
	return b.ready("w")
}

// If a switch fails for a lasting reason, the world serves as before. No operator repeats the switch soon.
func TestAuto_WhenSwitchFails(t *testing.T) {
	b := newBed(t)
	d := b.choosesMode()
	b.agent("w-0").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "4096 bytes are short"})
	before := time.Now()
	b.loaded(d, 4)
	b.told(api.EventDecisionReverted, "4096 bytes are short")
	back := func(d *api.MoEDeployment) bool {
		return inMode(api.ModeExpert)(d) && d.Status.Policy.Mode == api.ModeExpert && len(d.Status.Policy.Backoff) == 1 &&
			strings.Contains(d.Status.Policy.Message, "the last switch to this shape failed")
	}
	d = b.until("w", "in the mode before, and told why", back)
	refused := d.Status.Policy.Backoff[0]
	require.Equal(t, []any{int32(2), api.ModeTensor, int32(1)}, []any{refused.Replicas, refused.Mode, refused.Failures})
	require.Contains(t, refused.Message, "4096 bytes are short")
	require.WithinRange(t, refused.Until.Time, before.Add(firstRefusal-time.Second), time.Now().Add(firstRefusal))
	b.stop()
	b.operator()
	b.until("w", "the same with another operator", back)
	require.Equal(t, refused, b.get("w").Status.Policy.Backoff[0])

	b.agent("w-0").Refuse(nil)
	d = b.get("w")
	earlier := d.DeepCopy()
	d.Status.Policy.Backoff[0].Until = metav1.NewTime(time.Now().Add(-time.Second))
	require.NoError(t, b.c.Status().Patch(t.Context(), d, client.MergeFrom(earlier)))
	b.until("w", "in mode TensorParallel, once the time is over", func(d *api.MoEDeployment) bool {
		return inMode(api.ModeTensor)(d) && len(d.Status.Policy.Backoff) == 0
	})
}

// The time for which an option is blocked grows from a minute to an hour; each option has its own.
func TestRefuse_WhenFailuresRepeat(t *testing.T) {
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{Parallelism: api.Parallelism{Mode: api.ModeAuto}, Replicas: 4, RanksPerPod: 1}}
	d.Status.Policy = &api.PolicyStatus{Mode: api.ModeTensor}
	x, now := shapes{d: d}, time.Unix(1000, 0)
	for i, minutes := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		until := refuse(x, d.Status.Policy, kernels.Tensor(4), "no", now)
		require.Equal(t, time.Duration(minutes)*time.Minute, until.Sub(now))
		require.EqualValues(t, i+1, d.Status.Policy.Backoff[0].Failures)
	}
	refuse(x, d.Status.Policy, kernels.Tensor(2), "no", now)
	require.Len(t, d.Status.Policy.Backoff, 2)
	s := &scene{}
	s.seen.Layout = layoutIn(t, layout.Tensor, 4, false)
	require.Empty(t, takeBack(x, s, now))
	require.Len(t, d.Status.Policy.Backoff, 1, "a switch that succeeded clears its option")
	require.EqualValues(t, 2, d.Status.Policy.Backoff[0].Replicas)

	s.seen.Failed, d.Status.Policy.Mode = errors.New("a disk"), api.ModeExpert
	require.Contains(t, takeBack(x, s, now), "a disk")
	require.Equal(t, api.ModeTensor, d.Status.Policy.Mode)
	s.seen.Failed, d.Status.Policy.Mode = errors.New("a disk"), api.ModeExpert
	s.seen.Broken = errors.New("a rank is lost")
	require.Empty(t, takeBack(x, s, now), "first the repair")
}

// Which parts of a decision on mode and replicas are withdrawn.
func TestTakeBack_WhenReplicasWereDecided(t *testing.T) {
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{Parallelism: api.Parallelism{Mode: api.ModeAuto}, Replicas: 2, RanksPerPod: 1,
		MinReplicas: ptr.To[int32](2), MaxReplicas: ptr.To[int32](8), Autoscaling: &api.Autoscaling{Action: api.ActionApply}}}
	begin := func() *scene {
		d.Status.Policy = &api.PolicyStatus{Mode: api.ModeTensor, Replicas: 4, Decisions: []api.PolicyDecision{{From: api.ModeExpert, To: api.ModeTensor, FromReplicas: 2, ToReplicas: 4, Action: api.ActionApply}}}
		s := &scene{}
		s.seen.Layout, s.seen.Failed = layoutIn(t, layout.Expert, 2, false), errors.New("a disk")
		return s
	}
	x, now := shapes{d: d}, time.Unix(1000, 0)
	said := takeBack(x, begin(), now)
	require.Contains(t, said, "The world continues with 2 replicas in mode ExpertParallel.")
	require.Equal(t, []any{api.ModeExpert, int32(2)}, []any{d.Status.Policy.Mode, d.Status.Policy.Replicas})
	require.Equal(t, []any{int32(4), api.ModeTensor}, []any{d.Status.Policy.Backoff[0].Replicas, d.Status.Policy.Backoff[0].Mode})

	d.Spec.Parallelism.Mode = api.ModeExpert
	s := begin()
	d.Spec.MinReplicas = ptr.To[int32](4)
	require.Empty(t, takeBack(x, s, now), "the bounds want it")
	require.EqualValues(t, 4, d.Status.Policy.Replicas)
	d.Spec.MinReplicas = ptr.To[int32](2)
	s = begin()
	d.Status.Policy.Decisions = nil
	require.Empty(t, takeBack(x, s, now), "the policy did not decide it")
}

// A failed number of replicas is withdrawn like a mode; otherwise the policy could not decide anything else.
func TestAuto_WhenDecidedReplicasFail(t *testing.T) {
	b := newBed(t)
	require.NoError(t, b.c.Create(t.Context(), b.scaled(api.ActionApply)))
	d := b.ready("w")
	b.agent("w-0").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "4096 bytes are short"})
	b.busy(d)
	b.told(api.EventDecisionReverted, "The transition to 4 replicas failed and was reverted")
	// The policy then tries three, which also fails and is blocked in addition to four.
	refused := func(d *api.MoEDeployment, replicas int32) bool {
		return slices.ContainsFunc(d.Status.Policy.Backoff, func(o api.FailedOption) bool {
			return o.Replicas == replicas && o.Mode == api.ModeExpert && o.Failures > 0 && strings.Contains(o.Message, "4096 bytes are short")
		})
	}
	d = b.until("w", "at its width, with both refused", func(d *api.MoEDeployment) bool {
		return d.Status.DesiredReplicas == 2 && refused(d, 3) && refused(d, 4)
	})
	require.EqualValues(t, 2, d.Status.Ranks)

	b.agent("w-0").Refuse(nil)
	require.Eventually(t, func() bool { // the operator writes the status too
		d := b.get("w")
		earlier := d.DeepCopy()
		for i := range d.Status.Policy.Backoff {
			d.Status.Policy.Backoff[i].Until = metav1.NewTime(time.Now().Add(-time.Second))
		}
		return b.c.Status().Patch(t.Context(), d, client.MergeFromWithOptions(earlier, client.MergeFromWithOptimisticLock{})) == nil
	}, wait, tick)
	b.until("w", "wider, once the time is over", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 4 && !refused(d, 4) })
}

// The policy does not choose a switch for which agents lack memory: the planner gets the actual memory.
func TestAuto_WhenMemoryIsShort(t *testing.T) {
	b := newBed(t)
	var peak uint64
	for _, part := range firstLayout(t, layout.Expert, 2, false).Plan.Flips[0].Parts {
		peak = max(peak, part.PeakBytes)
	}
	b.world("w").SetMemory(peak) // enough for the initial layout
	d := b.choosesMode()
	b.loaded(d, 4)
	d = b.until("w", "told why it stays", func(d *api.MoEDeployment) bool {
		return d.Status.Policy.Outcome == api.OutcomeStay && len(d.Status.Policy.Rejected) == 1 || len(d.Status.Policy.Decisions) > 0
	})
	require.Empty(t, d.Status.Policy.Decisions)
	require.Contains(t, d.Status.Policy.Rejected[0].Message, "The planner or the memory limit rejects this shape")
	require.True(t, inMode(api.ModeExpert)(d))
	require.Len(t, b.history(), 1)
}

// If the write of a decision conflicts with another write of the status, the next reconcile repeats it.
func TestAuto_WhenDecisionWriteConflicts(t *testing.T) {
	var refused atomic.Int32
	b := newBedWith(t, interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
		if data, err := p.Data(o); err == nil && strings.Contains(string(data), `"decisions"`) && refused.Add(1) <= 3 {
			return apierrors.NewConflict(schema.GroupResource{Resource: "moedeployments"}, o.GetName(), errors.New("another wrote it"))
		}
		return c.SubResource(sub).Patch(ctx, o, p, options...)
	}})
	d := b.choosesMode()
	b.loaded(d, 4)
	d = b.until("w", "in mode TensorParallel", inMode(api.ModeTensor))
	require.Greater(t, refused.Load(), int32(3))
	require.Len(t, d.Status.Policy.Decisions, 1)
}

// A TensorParallel world that changes to mode Auto stays so, even if a new operator has not seen the layout yet.
func TestAuto_WhenLayoutUnknown(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.Parallelism.Mode = api.ModeTensor
	require.NoError(t, b.c.Create(t.Context(), d))
	before := b.ready("w")
	b.stop()
	b.change(`{"spec":{"parallelism":{"mode":"Auto","auto":{"policy":"Threshold","action":"Apply"}}}}`)
	b.operator()
	d = b.until("w", "its policy begins", func(d *api.MoEDeployment) bool {
		return d.Status.Policy != nil && d.Status.ObservedGeneration == d.Generation && inMode(api.ModeTensor)(d)
	})
	require.Equal(t, api.ModeTensor, d.Status.Policy.Mode)
	require.Equal(t, before.Status.Epoch, d.Status.Epoch)
	require.Len(t, b.history(), 1)
}

// During a transition, mode Auto starts in the mode of its target.
func TestBeginsIn_WhenTransitionInProgress(t *testing.T) {
	x := shapes{d: &api.MoEDeployment{Spec: api.MoEDeploymentSpec{Parallelism: api.Parallelism{Mode: api.ModeAuto}, Replicas: 4, RanksPerPod: 1}}}
	s := &scene{}
	s.seen.Layout = layoutIn(t, layout.Hybrid, 4, false) // the layers differ
	_, is := beginsIn(x, s)
	require.False(t, is)
	s.transitions = []api.LayoutTransition{{Spec: api.LayoutTransitionSpec{To: api.TransitionEnd{Mode: api.ModeTensor}}}}
	begins, is := beginsIn(x, s)
	require.True(t, is)
	require.Equal(t, kernels.Tensor(4), begins)
}

func TestDataParallelAttentionIsModeTensor(t *testing.T) {
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{Parallelism: api.Parallelism{Mode: api.ModeAuto}, Replicas: 4, RanksPerPod: 1}}
	byData, split := layoutIn(t, layout.Tensor, 4, true), layoutIn(t, layout.Tensor, 4, false)
	require.Equal(t, kernels.TensorByData(4), shapeOf(byData))
	require.Equal(t, kernels.Tensor(4), shapeOf(split))
	x := shapes{d: d, byData: true}
	require.Equal(t, api.ModeTensor, x.mode(shapeOf(byData)))
	require.True(t, x.allowed(shapeOf(byData)))
	d.Status.Policy = &api.PolicyStatus{}
	x.become(d.Status.Policy, kernels.TensorByData(4))
	require.Equal(t, api.ModeTensor, d.Status.Policy.Mode)
	require.Equal(t, kernels.TensorByData(4), x.wanted().On(4))
	require.Equal(t, api.ModeHybrid, shapes{d: d}.mode(kernels.TensorByData(4)), "where the engines could split attention, it is another thing")

	seen := &scene{}
	_, known := attentionByData(&seen.seen)
	require.False(t, known)
}

// A world of such engines switches to TensorParallel and back, and its prices are for that layout.
func TestAuto_WhenAttentionIsDataParallel(t *testing.T) {
	b := newBed(t)
	d := b.choosesMode()
	for _, p := range b.ranks("w") {
		b.agent(p.Name).AttentionDataOnly()
	}
	l := b.loaded(d, 4)
	d = b.until("w", "in mode TensorParallel", inMode(api.ModeTensor))
	require.Equal(t, told([4]int32{0, 1, 2, 1}), d.Status.Layers)
	b.until("w", "at rest there", func(d *api.MoEDeployment) bool { return d.Status.Policy.Outcome == api.OutcomeStay })
	l.set(400)
	b.until("w", "in mode ExpertParallel again", inMode(api.ModeExpert))
}

// A driver does not share experts if an agent cannot read the checkpoint, so the policy blocks such shapes meanwhile.
func TestRefused_WhenCheckpointCannotBeRead(t *testing.T) {
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{Parallelism: api.Parallelism{Mode: api.ModeAuto}, Replicas: 2, RanksPerPod: 1}}
	p := pricing{shapes: shapes{d: d}, view: modelView(t)}
	require.Empty(t, p.refused(kernels.Tensor(2)))
	p.seen.Statuses = map[string]*tangramv1.StatusResponse{"u": {CheckpointError: "model-00003.safetensors: no such file"}}
	require.Contains(t, p.refused(kernels.Tensor(2)), "model-00003.safetensors: no such file")
	require.Empty(t, p.refused(kernels.Expert(2)))

	d.Status.Policy = &api.PolicyStatus{}
	refuse(p.shapes, d.Status.Policy, kernels.Expert(2), "a disk", time.Now())
	require.Contains(t, p.refused(kernels.Expert(2)), "a disk")
	refuse(p.shapes, d.Status.Policy, kernels.Expert(2), "a disk", time.Now().Add(-lastRefusal))
	require.Empty(t, p.refused(kernels.Expert(2)), "its time is over")
}
