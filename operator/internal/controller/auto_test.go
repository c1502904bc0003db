package controller

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/pkg/adviser"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/layout"
	decisions "tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// loaded is a gateway that reports a load: the number of running requests, on the ranks of the active layout.
type loaded struct {
	tangramv1.UnimplementedTelemetryServer
	b     *bed
	began time.Time

	mu      sync.Mutex
	running uint32
}

func (l *loaded) set(running uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = running
}

func (l *loaded) Read(ctx context.Context, r *tangramv1.TelemetryRequest) (*tangramv1.TelemetryReport, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := &api.MoEDeployment{}
	if err := l.b.c.Get(ctx, client.ObjectKey{Namespace: l.b.namespace, Name: "w"}, d); err != nil {
		return nil, err // the last reading of a finished test
	}
	report := &tangramv1.TelemetryReport{World: r.World, Gateway: "g", Incarnation: 1, At: time.Since(l.began).Seconds(), Epoch: uint64(d.Status.Epoch)}
	for _, m := range d.Status.Members {
		report.Ranks = append(report.Ranks, &tangramv1.RankReport{Member: m.ID, Rank: uint32(m.Rank),
			Load: &tangramv1.Load{Running: l.running / uint32(len(d.Status.Members)), KvPages: 10, KvFreePages: 5, Telemetry: &tangramv1.RankTelemetry{Epoch: report.Epoch}}})
	}
	return report, nil
}

func (b *bed) loaded(d *api.MoEDeployment, running uint32) *loaded {
	b.t.Helper()
	listener, config := b.gatewayListens(d)
	l := &loaded{b: b, began: time.Now(), running: running}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	tangramv1.RegisterTelemetryServer(server, l)
	go func() { _ = server.Serve(listener) }() // until Stop
	b.t.Cleanup(server.Stop)
	b.gatewayRuns(d, listener.Addr())
	b.change(`{"metadata":{"annotations":{"gateways":"there"}}}`)
	return l
}

func auto(action api.Action) api.Parallelism {
	return api.Parallelism{Mode: api.ModeAuto, Auto: &api.AutoMode{Policy: api.PolicyThreshold, Action: action}}
}

func inMode(mode api.Mode) func(*api.MoEDeployment) bool {
	return func(d *api.MoEDeployment) bool {
		return d.Status.Mode == mode && apimeta.IsStatusConditionTrue(d.Status.Conditions, api.ConditionReady)
	}
}

// In mode Auto, few requests lead to TensorParallel and many to ExpertParallel. The reason is reported.
func TestAutoModeFollowsLoad(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.Parallelism = auto(api.ActionApply)
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	require.Equal(t, api.ModeExpert, d.Status.Mode, "where it begins")
	require.Equal(t, api.OutcomeNoDecision, d.Status.Policy.Outcome)
	condition := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionModeOptimal)
	require.Equal(t, metav1.ConditionUnknown, condition.Status)
	require.Equal(t, api.ReasonNoDecision, condition.Reason)

	l := b.loaded(d, 4)
	d = b.until("w", "in mode TensorParallel", inMode(api.ModeTensor))
	require.Equal(t, api.ModeTensor, d.Status.Policy.Mode)
	require.Len(t, d.Status.Policy.Decisions, 1)
	require.Equal(t, api.ModeExpert, d.Status.Policy.Decisions[0].From)
	require.NotEmpty(t, d.Status.Policy.Decisions[0].Message)
	b.told(api.EventModeDecided, "switch from ExpertParallel to TensorParallel")

	l.set(400)
	d = b.until("w", "in mode ExpertParallel again", inMode(api.ModeExpert))
	require.Equal(t, api.ModeExpert, d.Status.Policy.Decisions[0].To)
	require.Len(t, b.history(), 3, "the first layout, and a transition for each decision")

	// A mode in the spec takes precedence: the policy's status is removed.
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel","auto":null}}}`)
	d = b.until("w", "in the mode that the spec says", inMode(api.ModeTensor))
	require.Nil(t, d.Status.Policy)
	require.Nil(t, apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionModeOptimal))
}

func TestPolicies_WhenSpecNamesNoAction(t *testing.T) {
	d := &api.MoEDeployment{}
	d.Spec.Parallelism.Mode = api.ModeAuto
	require.False(t, d.AppliesMode(), "without auto")
	d.Spec.Parallelism.Auto = &api.AutoMode{}
	require.False(t, d.AppliesMode())
	d.Spec.Parallelism.Auto.Action = api.ActionApply
	require.True(t, d.AppliesMode())
	d.Spec.Autoscaling, d.Spec.MinReplicas, d.Spec.MaxReplicas = &api.Autoscaling{}, ptr.To[int32](1), ptr.To[int32](2)
	require.False(t, d.AppliesReplicas())
}

// A dry run, the default of the spec, reports the decision and does nothing.
func TestAutoModeDryRunOnlyRecommends(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.Parallelism = auto("")
	require.NoError(t, b.c.Create(t.Context(), d))
	require.Equal(t, api.ActionRecommend, d.Spec.Parallelism.Auto.Action, "the default")
	d = b.ready("w")
	b.loaded(d, 4)
	d = b.until("w", "told what it would do", func(d *api.MoEDeployment) bool { return len(d.Status.Policy.Decisions) > 0 })
	require.Equal(t, api.ActionRecommend, d.Status.Policy.Decisions[0].Action)
	require.Equal(t, api.ModeTensor, d.Status.Policy.Decisions[0].To)
	require.Equal(t, api.ModeExpert, d.Status.Policy.Mode)
	b.told(api.EventModeDecided, "The policy recommends to switch")
	b.until("w", "not optimal", func(d *api.MoEDeployment) bool {
		c := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionModeOptimal)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == api.ReasonRecommended
	})
	require.Len(t, b.history(), 1)
}

// An unknown profile is reported with the known names. The world stays as it is until the name is right.
func TestKernelProfile_WhenUnknown(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.Parallelism = auto(api.ActionApply)
	d.Spec.Parallelism.Auto.Policy, d.Spec.Parallelism.Auto.KernelProfile = api.PolicyCalibrated, "Qwen3-30B-A3B/abacus/balanced"
	require.NoError(t, b.c.Create(t.Context(), d))
	b.degraded("w", api.ReasonInvalidSpec, "spec.parallelism.auto", "abacus", "vllm")
	b.until("w", "serving", func(d *api.MoEDeployment) bool {
		return apimeta.IsStatusConditionTrue(d.Status.Conditions, api.ConditionAvailable) || d.Status.Ranks == 2
	})
	b.change(`{"spec":{"parallelism":{"auto":{"kernelProfile":"Qwen3-30B-A3B/trtllm/balanced"}}}}`)
	d = b.ready("w")
	require.Equal(t, api.ModeExpert, d.Status.Policy.Mode)
}

// A dry run records a repeated decision once, and the world is not called optimal while the decision is not followed.
func TestDryRun_WhenDecisionRepeats(t *testing.T) {
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{Parallelism: api.Parallelism{Mode: api.ModeAuto}, Replicas: 2, RanksPerPod: 1}}
	d.Spec.Parallelism = auto(api.ActionRecommend)
	options := adviserOptions(d)
	made, err := adviser.New(options)
	require.NoError(t, err)
	a, x := &advice{options: options, adviser: made}, shapes{d: d}
	serves, view := layoutIn(t, layout.Expert, 2, false), modelView(t)
	w := adviser.World{View: view, Shape: shapeOf(serves), Epoch: 1, KVBytes: 1 << 30, Rates: ratesOf(nil), DryRun: true,
		Price: func(kernels.Shape, kernels.Shape) (costmodel.Transition, error) { return costmodel.Transition{}, nil }}
	s := &scene{}
	s.seen.Layout = serves
	woken := 0
	a.set(w, true, false, "", "")
	for second := range 60 {
		running := 4
		if second >= 40 {
			running = 250 // between the thresholds: a reason for neither mode
		}
		sample := &telemetry.Sample{At: float64(second), Seconds: 1, Epoch: 1, Whole: true, Gauges: telemetry.Gauges{Running: running, Ranks: 2}}
		if a.take(sample) {
			woken++
		}
		said := a.set(w, true, false, "", "")
		d.Status.Policy = policyStatus(x, s, said.mode)
		a.followed(said, w)
		if second > 10 && second < 40 {
			require.Equal(t, api.OutcomeSwitch, d.Status.Policy.Outcome, "second %d", second)
			require.Equal(t, api.ReasonRecommended, optimalOf(d).reason)
		}
		require.LessOrEqual(t, len(d.Status.Policy.Decisions), 1, "second %d", second)
	}
	require.Equal(t, 1, woken, "nothing is new")
	require.Equal(t, api.OutcomeStay, d.Status.Policy.Outcome)
	require.Equal(t, metav1.ConditionTrue, optimalOf(d).status)
	require.Equal(t, api.ModeExpert, d.Status.Policy.Mode)
}

// If a useful switch must wait because the last one is recent, the world does not count as optimal.
func TestOptimal_WhenSwitchIsWithheld(t *testing.T) {
	d := &api.MoEDeployment{Spec: api.MoEDeploymentSpec{Parallelism: api.Parallelism{Mode: api.ModeAuto}, Replicas: 2, RanksPerPod: 1}}
	d.Status.Policy = &api.PolicyStatus{Mode: api.ModeExpert}
	d.Status.Policy = policyStatus(shapes{d: d}, &scene{}, word{taken: true, last: decisions.Decision{Withheld: true, Why: decisions.Reason{Text: "The last switch is too recent."}}})
	require.Equal(t, verdict{metav1.ConditionUnknown, api.ReasonNoDecision, "The last switch is too recent."}, optimalOf(d))
}

// Rates come from transitions that moved many bytes; the time of a small one goes to messages and counts little.
func TestRates_WhenTransitionsDiffer(t *testing.T) {
	require.InEpsilon(t, assumedRate, ratesOf(nil).BytesPerSecond, 1e-9)
	require.InEpsilon(t, assumedFlip, ratesOf(nil).FlipSeconds, 1e-9)
	one := func(bytes int64, seconds float64, from int64, kind api.TransitionKind) api.LayoutTransition {
		return api.LayoutTransition{Spec: api.LayoutTransitionSpec{To: api.TransitionEnd{Ranks: 2}, From: api.TransitionEnd{Epoch: from}, Kind: kind}, Status: api.LayoutTransitionStatus{Phase: api.PhaseSucceeded,
			Bytes: api.TransferredBytes{TCP: bytes}, Flips: make([]api.FlipStatus, 2),
			Phases: api.PhaseDurations{Stage: duration(seconds), Flip: metav1.Duration{Duration: time.Second}}}}
	}
	large := ratesOf([]api.LayoutTransition{one(200e9, 50, 1, "")})
	require.InEpsilon(t, 2e9, large.BytesPerSecond, .01)
	require.InEpsilon(t, .5, large.FlipSeconds, 1e-9)
	require.InEpsilon(t, large.BytesPerSecond, ratesOf([]api.LayoutTransition{one(1<<20, .2, 1, ""), one(200e9, 50, 1, "")}).BytesPerSecond, .01, "a rebalance of 1 MiB")
	require.Greater(t, ratesOf([]api.LayoutTransition{one(1<<20, .2, 1, "")}).BytesPerSecond, 2e8, "and alone")
	require.Equal(t, ratesOf(nil), ratesOf([]api.LayoutTransition{one(1e12, 1, 0, ""), one(1e12, 1, 1, api.KindRepair)}), "a first layout, a repair")
}
