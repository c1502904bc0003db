package controller

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/layout"
	decisions "tangram.dev/operator/pkg/policy"

	api "tangram.dev/api/v1alpha2"
)

// choosing returns a deployment in mode Auto that may choose hybrids.
func choosing(d *api.MoEDeployment, groups ...api.Groups) *api.MoEDeployment {
	d.Spec.Parallelism.Mode = api.ModeAuto
	d.Spec.Parallelism.Auto = &api.AutoMode{Policy: api.PolicyCalibrated, Action: api.ActionApply, Hybrids: groups}
	return d
}

func groupsOf(experts, attention intstr.IntOrString) api.Groups {
	return api.Groups{ExpertGroup: &experts, AttentionGroup: &attention}
}

// A shape of a policy survives a round trip through the status. Hybrids of the spec that equal a mode are modes.
func TestShapesRoundTripThroughStatus(t *testing.T) {
	all := intstr.FromString(api.AllRanks)
	d := choosing(&api.MoEDeployment{}, groupsOf(all, intstr.FromInt32(1)), groupsOf(intstr.FromInt32(2), intstr.FromInt32(4)), groupsOf(all, all), groupsOf(intstr.FromInt32(1), intstr.FromInt32(1)))
	d.Spec.Replicas, d.Spec.RanksPerPod = 8, 1
	require.Equal(t, []kernels.Kind{{ExpertGroup: kernels.AllRanks, AttentionGroup: 1}, {ExpertGroup: 2, AttentionGroup: 4}}, hybridsOf(d))
	for _, c := range []struct {
		shape kernels.Shape
		mode  api.Mode
		short string
	}{
		{kernels.Expert(8), api.ModeExpert, ""},
		{kernels.Tensor(8), api.ModeTensor, ""},
		{kernels.Shape{Ranks: 8, ExpertGroup: 8, AttentionGroup: 1}, api.ModeHybrid, "0-=all/1"},
		{kernels.Shape{Ranks: 8, ExpertGroup: 2, AttentionGroup: 4}, api.ModeHybrid, "0-=2/4"},
	} {
		st := &api.PolicyStatus{}
		shapes{d: d}.become(st, c.shape)
		d.Status.Policy = st
		require.Equal(t, c.mode, st.Mode)
		require.Equal(t, c.short, shapes{d: d}.short(c.shape))
		require.Equal(t, c.mode, wantedMode(d))
		require.Equal(t, c.shape, shapes{d: d}.wanted().On(8))
		require.True(t, shapes{d: d}.allowed(c.shape))
	}
	require.False(t, shapes{d: d}.allowed(kernels.Shape{Ranks: 8, ExpertGroup: 4, AttentionGroup: 1}), "nobody allowed it")
	require.False(t, shapes{d: d}.allowed(kernels.Shape{}))
	d.Spec.Replicas = 6 // a user scales the world, and groups of four do not divide six ranks
	require.Equal(t, api.ModeExpert, wantedMode(d))
	d.Spec.Replicas = 12
	require.Equal(t, api.ModeHybrid, wantedMode(d))
	require.Equal(t, kernels.Shape{Ranks: 12, ExpertGroup: 2, AttentionGroup: 4}, shapes{d: d}.wanted().On(12))
}

// A decision on mode and replicas is one entry in the status, and both parts are applied.
func TestDecisionOnModeAndReplicas(t *testing.T) {
	b := &api.MoEDeployment{}
	b.Spec.Replicas, b.Spec.RanksPerPod, b.Spec.MinReplicas, b.Spec.MaxReplicas = 4, 1, ptr.To[int32](2), ptr.To[int32](8)
	said := decisions.Decision{Switch: true, To: kernels.Expert(6), Why: decisions.Reason{Text: "More ranks are needed."},
		Rejected: []decisions.Rejected{{Shape: kernels.Tensor(6), Why: decisions.Reason{Text: "its KV"}}}}
	for _, action := range []api.Action{api.ActionApply, api.ActionRecommend} {
		b.Spec.Autoscaling, b.Spec.Parallelism = &api.Autoscaling{Action: action, SLO: api.SLO{TTFTMilliseconds: ptr.To[int32](1000)}}, auto(action)
		st := &api.PolicyStatus{Mode: api.ModeTensor}
		scalingStatus(shapes{d: b}, st, word{pending: &said}, "")
		require.Len(t, st.Decisions, 1)
		x := st.Decisions[0]
		require.Equal(t, []any{api.ModeTensor, api.ModeExpert, int32(4), int32(6), action}, []any{x.From, x.To, x.FromReplicas, x.ToReplicas, x.Action})
		require.Equal(t, []api.RejectedReplicas{{Replicas: 6, Mode: api.ModeTensor, Message: "its KV"}}, st.Scaling.Rejected)
		want := []any{api.ModeExpert, int32(6)}
		if action == api.ActionRecommend {
			want = []any{api.ModeTensor, int32(4)}
		}
		require.Equal(t, want, []any{st.Mode, st.Replicas})
	}
}

// Mode Auto follows a previous operator's hybrid. If its groups do not divide the ranks, the mode is ExpertParallel.
func TestAuto_WhenPreviousLayoutIsHybrid(t *testing.T) {
	b := newBed(t)
	two := intstr.FromInt32(2)
	require.NoError(t, b.c.Create(t.Context(), choosing(b.deployment("w", 4), groupsOf(two, intstr.FromInt32(1)))))
	d := b.ready("w")
	require.Equal(t, api.ModeExpert, d.Status.Mode)
	before := d.DeepCopy()
	shapes{d: d}.become(d.Status.Policy, kernels.Shape{Ranks: 4, ExpertGroup: 2, AttentionGroup: 1})
	require.NoError(t, b.c.Status().Patch(t.Context(), d, client.MergeFrom(before)))
	b.change(`{"metadata":{"annotations":{"look":"again"}}}`)
	d = b.until("w", "in the hybrid", inMode(api.ModeHybrid))
	require.Equal(t, layout.Ranges{{First: 0, Last: 1, ExpertGroup: 2, AttentionGroup: 1}}, b.inForce())
	require.Equal(t, api.ModeHybrid, d.Status.Policy.Mode)
	b.scale(3)
	b.until("w", "in mode ExpertParallel, as two do not divide three", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 3 && inMode(api.ModeExpert)(d) })
}
