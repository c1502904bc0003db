package controller

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	decisions "tangram.dev/operator/pkg/policy"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// busy is a gateway of an overloaded world, with steady rates of steps, requests and tokens.
type busy struct {
	tangramv1.UnimplementedTelemetryServer
	b     *bed
	began time.Time
}

const (
	busySteps    = 10  // per second, of all ranks
	busyRequests = 50  // per second
	busyPrompt   = 512 // tokens
)

func (l *busy) Read(ctx context.Context, r *tangramv1.TelemetryRequest) (*tangramv1.TelemetryReport, error) {
	d := &api.MoEDeployment{}
	if err := l.b.c.Get(ctx, client.ObjectKey{Namespace: l.b.namespace, Name: "w"}, d); err != nil {
		return nil, err // the last reading of a finished test
	}
	at := time.Since(l.began).Seconds()
	report := &tangramv1.TelemetryReport{World: r.World, Gateway: "g", Incarnation: 1, At: at, Epoch: uint64(d.Status.Epoch)}
	steps := uint64(busySteps * at)
	for _, m := range d.Status.Members {
		n := uint64(busyRequests * at / float64(len(d.Status.Members)))
		report.Ranks = append(report.Ranks, &tangramv1.RankReport{Member: m.ID, Rank: uint32(m.Rank), Load: &tangramv1.Load{Running: 4, KvPages: 10, KvFreePages: 5,
			Telemetry: &tangramv1.RankTelemetry{Epoch: report.Epoch, Decoding: 4, ContextTokens: 4 * busyPrompt, Arrived: n, PromptTokens: n * busyPrompt, Finished: n, OutputTokens: n * 16,
				Steps: steps, StepSeconds: float64(steps) / busySteps,
				Cells: []*tangramv1.StepCell{{Octave: 9, Prefill: true, Steps: steps + 1, Seconds: float64(steps+1) / busySteps, Decode: 8 * (steps + 1), Context: 8 * busyPrompt * (steps + 1), PromptTokens: busyPrompt * (steps + 1)}}}}})
	}
	return report, nil
}

func (b *bed) busy(d *api.MoEDeployment) {
	b.t.Helper()
	listener, config := b.gatewayListens(d)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	tangramv1.RegisterTelemetryServer(server, &busy{b: b, began: time.Now().Add(-time.Second)})
	go func() { _ = server.Serve(listener) }() // until Stop
	b.t.Cleanup(server.Stop)
	b.gatewayRuns(d, listener.Addr())
	b.change(`{"metadata":{"annotations":{"gateways":"there"}}}`)
}

// scaled is a deployment with two to four pods, in the default mode.
func (b *bed) scaled(action api.Action) *api.MoEDeployment {
	d := b.deployment("w", 2)
	d.Spec.MinReplicas, d.Spec.MaxReplicas = ptr.To[int32](2), ptr.To[int32](4)
	d.Spec.Autoscaling = &api.Autoscaling{Action: action, SLO: api.SLO{TTFTMilliseconds: ptr.To[int32](2000), TPOTMilliseconds: ptr.To[int32](60000), AttainmentPercent: 90}}
	return d
}

func scalingIs(status metav1.ConditionStatus, reason string) func(*api.MoEDeployment) bool {
	return func(d *api.MoEDeployment) bool {
		c := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionScalingActive)
		return c != nil && c.Status == status && c.Reason == reason
	}
}

// An overloaded world scales up; spec.replicas stays, and status, condition and event give the reason.
func TestAutoscalingScalesOverloadedWorld(t *testing.T) {
	b := newBed(t)
	require.NoError(t, b.c.Create(t.Context(), b.scaled(api.ActionApply)))
	d := b.ready("w")
	require.Equal(t, int32(2), d.Status.Ranks, "where it begins")
	require.True(t, scalingIs(metav1.ConditionUnknown, api.ReasonNoDecision)(d))
	require.Equal(t, int32(2), d.Status.DesiredReplicas)
	b.busy(d)
	d = b.until("w", "as wide as it may be", func(d *api.MoEDeployment) bool {
		return d.Status.Ranks == 4 && apimeta.IsStatusConditionTrue(d.Status.Conditions, api.ConditionReady)
	})
	require.Equal(t, int32(2), d.Spec.Replicas, "a GitOps tool has nothing to take back")
	require.Equal(t, int32(4), d.Status.Policy.Replicas)
	require.Equal(t, int32(4), d.Status.DesiredReplicas)
	require.Equal(t, api.ModeExpert, d.Status.Policy.Mode)
	said := d.Status.Policy.Decisions[len(d.Status.Policy.Decisions)-1]
	require.Less(t, said.FromReplicas, int32(4), "at once, or in two steps if the policy looks while the load begins")
	require.Contains(t, said.Message, "meet the SLO")
	b.told(api.EventReplicasDecided, "to 4 replicas")
	b.until("w", "decided", scalingIs(metav1.ConditionTrue, api.ReasonDecides))

	// The cluster counts evictions against spec.replicas, which is 2, so the budget sets the minimum number of pods.
	budget := &policyv1.PodDisruptionBudget{}
	require.Eventually(t, func() bool {
		require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: enginesName(d)}, budget))
		return budget.Spec.MinAvailable != nil && budget.Spec.MinAvailable.IntValue() == 3
	}, wait, tick)
	require.Nil(t, budget.Spec.MaxUnavailable)

	// New bounds apply immediately, and without spec.autoscaling the number of the spec applies again.
	b.change(`{"spec":{"maxReplicas":3}}`)
	b.until("w", "within its bounds", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 3 })
	b.change(`{"spec":{"autoscaling":null}}`)
	d = b.until("w", "as the spec says", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 2 && d.Status.Policy == nil })
	require.Nil(t, apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionScalingActive))
}

// Another autoscaler of the world is named, and the policy decides nothing while it exists.
func TestAutoscaling_WhenHPAExists(t *testing.T) {
	b := newBed(t)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "other"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 9,
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: api.GroupVersion.String(), Kind: "MoEDeployment", Name: "w"}}}
	require.NoError(t, b.c.Create(t.Context(), hpa))
	require.NoError(t, b.c.Create(t.Context(), b.scaled(api.ActionApply)))
	d := b.ready("w")
	b.busy(d)
	d = b.until("w", "told that two decide", scalingIs(metav1.ConditionFalse, api.ReasonTwoOwners))
	require.Contains(t, d.Status.Policy.Scaling.Message, "HorizontalPodAutoscaler other also scales this MoEDeployment")
	require.Never(t, func() bool { return b.get("w").Status.DesiredReplicas != 2 }, 15*time.Second, time.Second, "while both want to decide the width stays")
	require.NoError(t, b.c.Delete(t.Context(), hpa))
	b.change(`{"metadata":{"annotations":{"look":"again"}}}`)
	b.until("w", "wider", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 4 })
}

// A dry run of the number of ranks only reports.
func TestAutoscalingDryRunOnlyRecommends(t *testing.T) {
	b := newBed(t)
	require.NoError(t, b.c.Create(t.Context(), b.scaled(api.ActionRecommend)))
	d := b.ready("w")
	b.busy(d)
	d = b.until("w", "told what it would do", scalingIs(metav1.ConditionFalse, api.ReasonRecommended))
	require.Equal(t, int32(2), d.Status.DesiredReplicas)
	d = b.until("w", "told by a decision", func(d *api.MoEDeployment) bool { return len(d.Status.Policy.Decisions) > 0 })
	require.Equal(t, api.ActionRecommend, d.Status.Policy.Decisions[0].Action)
	require.Equal(t, int32(4), d.Status.Policy.Decisions[0].ToReplicas)
	b.told(api.EventReplicasDecided, "The policy recommends to scale")
	require.Len(t, b.history(), 1)
}

// An SLO that no number of ranks meets even without load is reported, and the number stays.
func TestAutoscaling_WhenSLOOutOfReach(t *testing.T) {
	b := newBed(t)
	d := b.scaled(api.ActionApply)
	d.Spec.Autoscaling.SLO.TPOTMilliseconds = ptr.To[int32](1)
	require.NoError(t, b.c.Create(t.Context(), d))
	b.busy(b.ready("w"))
	d = b.until("w", "told that it is out of reach", scalingIs(metav1.ConditionFalse, api.ReasonSLOOutOfReach))
	require.Equal(t, int32(2), d.Status.DesiredReplicas)
}

func TestAutoscalingSpecIsValidated(t *testing.T) {
	b := newBed(t)
	for words, spoil := range map[string]func(*api.MoEDeploymentSpec){
		"minReplicas is above maxReplicas":   func(s *api.MoEDeploymentSpec) { s.MinReplicas = ptr.To[int32](5) },
		"Set minReplicas and maxReplicas":    func(s *api.MoEDeploymentSpec) { s.MaxReplicas = nil },
		"An SLO needs ttftMilliseconds":      func(s *api.MoEDeploymentSpec) { s.Autoscaling.SLO = api.SLO{} },
		"spec.autoscaling.slo.ttftMilliseco": func(s *api.MoEDeploymentSpec) { s.Autoscaling.SLO.TTFTMilliseconds = ptr.To[int32](0) },
		"replicas is outside minReplicas":    func(s *api.MoEDeploymentSpec) { s.Replicas = 5 },
	} {
		d := b.scaled(api.ActionApply)
		spoil(&d.Spec)
		err := b.c.Create(t.Context(), d)
		require.True(t, apierrors.IsInvalid(err), "%s: %v", words, err)
		require.ErrorContains(t, err, words)
	}
}

// The condition's reason follows from the cause, not from the text.
func TestScalingActiveReasonFollowsCause(t *testing.T) {
	d := &api.MoEDeployment{}
	d.Spec.Replicas, d.Spec.RanksPerPod = 2, 1
	d.Spec.MinReplicas, d.Spec.MaxReplicas = ptr.To[int32](2), ptr.To[int32](4)
	d.Spec.Autoscaling = &api.Autoscaling{Action: api.ActionApply, SLO: api.SLO{TTFTMilliseconds: ptr.To[int32](1000)}}
	held := func(cause decisions.Cause, text string) word {
		return word{taken: true, last: decisions.Decision{Held: true, Cause: cause, Why: decisions.Reason{Text: text}}}
	}
	for _, c := range []struct {
		said      word
		forbidden string
		status    metav1.ConditionStatus
		reason    string
	}{
		{held(decisions.Contradicted, "No decision was made: far off."), "", metav1.ConditionFalse, api.ReasonModelContradicted},
		{held(decisions.OutOfReach, "No decision was made: too much."), "", metav1.ConditionFalse, api.ReasonSLOOutOfReach},
		{held("", "No decision was made: 2 of 4 ranks sent no load report."), "", metav1.ConditionUnknown, api.ReasonNoDecision},
		{held("", "No decision was made: the cost model contradicts the measurements."), "", metav1.ConditionUnknown, api.ReasonNoDecision}, // words alone are none
		{word{taken: true, last: decisions.Decision{Why: decisions.Reason{Text: "The number of ranks is right."}}}, "another scales it", metav1.ConditionFalse, api.ReasonTwoOwners},
		{word{taken: true, last: decisions.Decision{Why: decisions.Reason{Text: "The number of ranks is right."}}}, "", metav1.ConditionTrue, api.ReasonDecides},
	} {
		st := &api.PolicyStatus{}
		scalingStatus(shapes{d: d}, st, c.said, c.forbidden)
		d.Status.Policy = st
		got := scalingOf(d)
		require.Equal(t, c.status, got.status, st.Scaling.Message)
		require.Equal(t, c.reason, got.reason)
	}
}
