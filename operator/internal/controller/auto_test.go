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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/pkg/costmodel"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha1"
)

// loaded is a gateway that tells of a load: so many requests run, on the ranks of the layout in force.
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
		return nil, err // the last reading of a test that is over
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
	go func() { _ = server.Serve(listener) }() // ends with Stop
	b.t.Cleanup(server.Stop)
	b.gatewayRuns(d, listener.Addr())
	b.change(`{"metadata":{"annotations":{"gateways":"there"}}}`)
	return l
}

func auto(dryRun bool) (*api.Autoscaling, api.Mode) {
	return &api.Autoscaling{Policy: api.PolicyThreshold, DryRun: dryRun}, api.ModeAuto
}

func inMode(mode api.Mode) func(*api.MoEDeployment) bool {
	return func(d *api.MoEDeployment) bool {
		return d.Status.Mode == mode && apimeta.IsStatusConditionTrue(d.Status.Conditions, api.ConditionReady)
	}
}

// Nobody says in which mode a world serves: few requests take it to Tensor, many to Expert; status, condition and events say why.
func TestAWorldChoosesItsMode(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.Autoscaling, d.Spec.Mode = auto(false)
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	require.Equal(t, api.ModeExpert, d.Status.Mode, "where it begins")
	require.Equal(t, api.OutcomeNoDecision, d.Status.Policy.Outcome)
	condition := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionOptimal)
	require.Equal(t, metav1.ConditionUnknown, condition.Status)
	require.Equal(t, api.ReasonNoDecision, condition.Reason)

	l := b.loaded(d, 4)
	d = b.until("w", "in mode Tensor", inMode(api.ModeTensor))
	require.Equal(t, api.ModeTensor, d.Status.Policy.Mode)
	require.Len(t, d.Status.Policy.Decisions, 1)
	require.Equal(t, api.ModeExpert, d.Status.Policy.Decisions[0].From)
	require.NotEmpty(t, d.Status.Policy.Decisions[0].Why)
	b.told(api.EventModeDecided, "switch from Expert to Tensor")

	l.set(400)
	d = b.until("w", "in mode Expert again", inMode(api.ModeExpert))
	require.Equal(t, api.ModeExpert, d.Status.Policy.Decisions[0].To)
	require.Len(t, b.history(), 3, "the first layout, and a transition for each decision")

	// Who says a mode owns it: the policy's words go.
	b.change(`{"spec":{"mode":"Tensor","autoscaling":null}}`)
	d = b.until("w", "in the mode that the spec says", inMode(api.ModeTensor))
	require.Nil(t, d.Status.Policy)
	require.Nil(t, apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionOptimal))
}

// A dry run tells what it would do, and does nothing.
func TestADryRunOnlyTells(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.Autoscaling, d.Spec.Mode = auto(true)
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	b.loaded(d, 4)
	d = b.until("w", "told what it would do", func(d *api.MoEDeployment) bool { return len(d.Status.Policy.Decisions) > 0 })
	require.True(t, d.Status.Policy.Decisions[0].DryRun)
	require.Equal(t, api.ModeTensor, d.Status.Policy.Decisions[0].To)
	require.Equal(t, api.ModeExpert, d.Status.Policy.Mode)
	b.told(api.EventModeDecided, "would switch")
	b.until("w", "not optimal", func(d *api.MoEDeployment) bool {
		c := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionOptimal)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == api.ReasonDryRun
	})
	require.Len(t, b.history(), 1)
}

func TestRatesAreThoseOfTheNewestTransition(t *testing.T) {
	require.Equal(t, costmodel.Rates{BytesPerSecond: 1e9, FlipSeconds: .1, Hidden: .8}, ratesOf(nil))
	at := func(second int, bytes int64, from int64, kind api.TransitionKind) api.LayoutTransition {
		return api.LayoutTransition{Spec: api.LayoutTransitionSpec{Ranks: 2, FromEpoch: from, Kind: kind}, Status: api.LayoutTransitionStatus{Phase: api.PhaseSucceeded,
			CompletionTime: &metav1.MicroTime{Time: time.Unix(int64(second), 0)}, Bytes: api.BytesBySource{TCP: bytes}, Flips: make([]api.FlipStatus, 2),
			Phases: api.PhaseSeconds{Stage: metav1.Duration{Duration: 2 * time.Second}, Flip: metav1.Duration{Duration: time.Second}}}}
	}
	require.Equal(t, costmodel.Rates{BytesPerSecond: 100, FlipSeconds: .5, Hidden: .8},
		ratesOf([]api.LayoutTransition{at(5, 1, 0, ""), at(2, 400, 1, ""), at(1, 800, 1, ""), at(9, 800, 1, api.KindRepair)}))
}
