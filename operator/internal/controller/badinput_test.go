package controller

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// crooked is a gateway whose reports are invalid for a while.
type crooked struct {
	tangramv1.UnimplementedTelemetryServer
	loaded *loaded

	mu    sync.Mutex
	reads int
	spoil func(r *tangramv1.TelemetryReport, n int) error // nil: reports are valid
}

func (c *crooked) Read(ctx context.Context, q *tangramv1.TelemetryRequest) (*tangramv1.TelemetryReport, error) {
	r, err := c.loaded.Read(ctx, q)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	r.Latencies = []*tangramv1.LatencyCell{{Requests: uint64(c.reads), Tokens: 10 * uint64(c.reads)}}
	if c.spoil != nil {
		if err := c.spoil(r, c.reads); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (c *crooked) set(spoil func(*tangramv1.TelemetryReport, int) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spoil = spoil
}

// Implausible or missing reports cause no switch, although the load would be a reason. The condition gives the cause
// and the layout stays. With valid reports the world switches.
func TestAutoMode_WhenReportsImplausibleOrMissing(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(r *tangramv1.TelemetryReport, n int) error
		words string
	}{
		"missing":           {func(*tangramv1.TelemetryReport, int) error { return errors.New("it is out") }, "it is out"},
		"no clock":          {func(r *tangramv1.TelemetryReport, _ int) error { r.At = math.NaN(); return nil }, "the gateways have sent no usable load report since"},
		"a clock that goes": {func(r *tangramv1.TelemetryReport, _ int) error { r.At = 1; return nil }, "its clock went from"},
		"a clock that jumps": {func(r *tangramv1.TelemetryReport, n int) error {
			r.At += float64(n%2) * 3600
			return nil
		}, "its clock"},
		"shrinks": {func(r *tangramv1.TelemetryReport, n int) error {
			r.Latencies[0].Requests, r.Latencies[0].Tokens = 1e6-uint64(n), 1e7
			return nil
		}, "a counter shrank"},
		"seconds that are none": {func(r *tangramv1.TelemetryReport, _ int) error {
			for _, rank := range r.Ranks {
				rank.Load.Telemetry.StepSeconds = math.NaN()
			}
			return nil
		}, "No decision was made"},
		"a rank that tells nothing": {func(r *tangramv1.TelemetryReport, _ int) error {
			r.Ranks[1].Load.Telemetry = nil
			return nil
		}, "1 of 2 ranks sent no load report"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			d := b.deployment("w", 2)
			d.Spec.Parallelism = auto(api.ActionApply)
			require.NoError(t, b.c.Create(t.Context(), d))
			d = b.ready("w")
			listener, config := b.gatewayListens(d)
			g := &crooked{loaded: &loaded{b: b, began: time.Now(), running: 400}}
			server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
			tangramv1.RegisterTelemetryServer(server, g)
			go func() { _ = server.Serve(listener) }() // until Stop
			t.Cleanup(server.Stop)
			b.gatewayRuns(d, listener.Addr())
			b.change(`{"metadata":{"annotations":{"gateways":"there"}}}`)
			optimal := func(status metav1.ConditionStatus, reason string) func(*api.MoEDeployment) bool {
				return func(d *api.MoEDeployment) bool { return has(d, api.ConditionModeOptimal, status, reason) }
			}
			b.until("w", "in the best mode", optimal(metav1.ConditionTrue, api.ReasonBestMode))

			g.set(c.spoil)
			g.loaded.set(4) // a reason to switch to TensorParallel
			// On a busy machine, the first message may be about a late answer.
			d = b.until("w", "told that nothing is decided, and why", func(d *api.MoEDeployment) bool {
				return optimal(metav1.ConditionUnknown, api.ReasonNoDecision)(d) && strings.Contains(message(d, api.ConditionModeOptimal), c.words)
			})
			require.Equal(t, api.OutcomeNoDecision, d.Status.Policy.Outcome)
			require.Equal(t, api.ModeExpert, d.Status.Mode)
			require.Len(t, b.history(), 1, "the layout stays")

			g.set(nil)
			b.until("w", "in mode TensorParallel", inMode(api.ModeTensor))
		})
	}
}

// A cost model that contradicts the latency of clients decides nothing. Minutes of readings are passed at once.
func TestAutoscaling_WhenCostModelContradictsLatency(t *testing.T) {
	b := newBed(t)
	require.NoError(t, b.c.Create(t.Context(), b.scaled(api.ActionApply)))
	d := b.ready("w")
	b.until("w", "asked", func(*api.MoEDeployment) bool { _, there := b.r.advices.Load(d.UID); return there })
	total := telemetry.Counters{}
	for second := range 600 {
		answers := telemetry.Latencies{}
		answers.Note(30, 9*.01, 10) // half a minute to the first token, with steps of milliseconds and an empty queue
		total.Arrived, total.PromptTokens, total.Finished, total.OutputTokens = total.Arrived+1, total.PromptTokens+100, total.Finished+1, total.OutputTokens+10
		total.Steps, total.StepSeconds = total.Steps+20, total.StepSeconds+.2
		b.r.advised(d.UID, client.ObjectKeyFromObject(d), &telemetry.Sample{At: float64(second), Seconds: 1, Epoch: uint64(d.Status.Epoch), Whole: true, Answers: answers, Total: total,
			Gauges: telemetry.Gauges{Running: 1, Decoding: 1, ContextTokens: 100, Ranks: 2},
			Steps: map[telemetry.StepKey]telemetry.Steps{{Epoch: uint64(d.Status.Epoch), Octave: 0}: {Steps: 19, Seconds: .19, Decode: 19, Context: 1900},
				{Epoch: uint64(d.Status.Epoch), Octave: 6, Prefill: true}: {Steps: 1, Seconds: .01, PromptTokens: 100}}})
	}
	b.change(`{"metadata":{"annotations":{"look":"again"}}}`)
	d = b.until("w", "told that the model contradicts", scalingIs(metav1.ConditionFalse, api.ReasonModelContradicted))
	require.Contains(t, message(d, api.ConditionScalingActive), "the cost model contradicts the measurements")
	require.Equal(t, api.OutcomeNoDecision, d.Status.Policy.Scaling.Outcome)
	require.EqualValues(t, 2, d.Status.DesiredReplicas)
	require.Empty(t, d.Status.Policy.Decisions)
	require.Len(t, b.history(), 1, "the layout stays")
}

// On a full cluster the world uses the pods that could be scheduled, and the policy abandons the larger number.
func TestAutoscaling_WhenClusterIsFull(t *testing.T) {
	b := newBed(t)
	b.let(fate{unschedulable: "0/2 nodes are available: 2 Insufficient memory."}, "w-3")
	require.NoError(t, b.c.Create(t.Context(), b.scaled(api.ActionApply)))
	d := b.ready("w")
	b.busy(d)
	b.degraded("w", api.ReasonPodsUnschedulable, "Insufficient memory")
	require.EqualValues(t, 4, b.get("w").Status.DesiredReplicas)
	d = b.until("w", "as wide as pods allow", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 3 && inMode(api.ModeExpert)(d) })
	require.EqualValues(t, 3, d.Status.Policy.Replicas)
	require.Contains(t, d.Status.Policy.Decisions[0].Message, "The cluster has no room for more pods.")
	require.Equal(t, []string{"w-0", "w-1", "w-2"}, b.podNames("w"))
	b.told(api.EventReplicasDecided, "scale from 4 to 3 replicas. The cluster has no room for more pods.")
}
