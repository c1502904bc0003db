package walk

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	pacedModel = "Qwen3-30B-A3B"
	dilation   = 12
)

// paceTable writes a table like tangram pace-table.
func paceTable(t *testing.T, ranks int) (*kernels.Compiled, string) {
	t.Helper()
	table, err := kernels.Open(pacedModel)
	require.NoError(t, err)
	all, err := geometry.Public()
	require.NoError(t, err)
	for _, g := range all {
		if g.Model != pacedModel {
			continue
		}
		v, err := geometry.New(g)
		require.NoError(t, err)
		c, err := kernels.Compile(table, v, "vllm", "balanced", ranks)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "pace.json")
		file, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, c.WriteJSON(file))
		require.NoError(t, file.Close())
		return c, path
	}
	t.Fatal("no geometry of ", pacedModel)
	return nil, ""
}

// teller queries a world's gateway like its operator.
type teller struct {
	t      *testing.T
	w      *harness.World
	client tangramv1.TelemetryClient
	merger *telemetry.Merger
	born   time.Time
}

func newTeller(t *testing.T, w *harness.World) *teller {
	t.Helper()
	at := func(name string) string { return filepath.Join(w.CertificateDir(), name) }
	pair, err := tls.LoadX509KeyPair(at("driver.crt"), at("driver.key"))
	require.NoError(t, err)
	authority, err := os.ReadFile(at("ca.crt"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(authority))
	conn, err := grpc.NewClient(w.TelemetryAddress(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: "gateway." + w.Model()})))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return &teller{t: t, w: w, client: tangramv1.NewTelemetryClient(conn), merger: telemetry.NewMerger(w.Model()), born: time.Now()}
}

func (o *teller) take() *telemetry.Sample {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 10*time.Second)
	defer cancel()
	report, err := o.client.Read(ctx, &tangramv1.TelemetryRequest{World: o.w.Model()})
	require.NoError(o.t, err, o.w.Died())
	s, err := o.merger.Take(time.Since(o.born).Seconds(), []telemetry.Read{{Gateway: "the gateway", Report: report, Err: err}})
	require.NoError(o.t, err)
	return s
}

// Real processes with paced steps: the reports of engines and gateway match the requests and the table, in both modes,
// and clients see the difference.
func TestPacedRanks(t *testing.T) {
	const ranks, requests, tokens = 2, 6, 24
	compiled, path := paceTable(t, ranks)
	w := startTiny(t, harness.Options{Pods: []int{1, 1}, EngineFlags: []string{"--pace", path, "--dilation", fmt.Sprint(dilation)}})
	apply(t, w, ranks, "ExpertParallel")
	o := newTeller(t, w)
	for _, mode := range []struct {
		name  string
		shape kernels.Shape
	}{{"ExpertParallel", kernels.Expert(ranks)}, {"TensorParallel", kernels.Tensor(ranks)}} {
		apply(t, w, ranks, mode.name)
		step, err := compiled.Step(mode.shape)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return o.take().Whole }, time.Minute, 300*time.Millisecond)
		time.Sleep(time.Second) // load reports of the new epoch
		before := o.take()
		began := time.Now()
		answered := make(chan *load.Result, requests)
		for i := range requests {
			go func() {
				answered <- client(w).Do(t.Context(), load.Request{Index: i, Prompt: []uint32{uint32(i), 3, 4, 5, 6, 7, 8, 9}, MaxTokens: tokens, TopP: 1})
			}()
		}
		for range requests {
			r := <-answered
			require.NoError(t, r.Err, w.Died())
			require.Len(t, r.Tokens, tokens)
		}
		took := time.Since(began).Seconds()
		var s *telemetry.Sample
		felt, steps := telemetry.Latencies{}, map[telemetry.StepKey]telemetry.Steps{}
		require.Eventually(t, func() bool { // engines report four times a second
			s = o.take()
			felt.Merge(s.Answers)
			for k, n := range s.Steps {
				was := steps[k]
				steps[k] = telemetry.Steps{Steps: n.Steps + was.Steps, Seconds: n.Seconds + was.Seconds, Decode: n.Decode + was.Decode, Context: n.Context + was.Context,
					PromptTokens: n.PromptTokens + was.PromptTokens, Before: n.Before + was.Before}
			}
			return s.Total.Finished-before.Total.Finished == requests
		}, time.Minute, 300*time.Millisecond)

		grown := s.Total
		require.EqualValues(t, requests*tokens, grown.Written-before.Total.Written)
		require.EqualValues(t, requests*tokens, grown.OutputTokens-before.Total.OutputTokens)
		require.EqualValues(t, requests, grown.Answered-before.Total.Answered)
		prompts := grown.PromptTokens - before.Total.PromptTokens - (grown.ReusedTokens - before.Total.ReusedTokens)
		require.EqualValues(t, prompts, grown.PrefillTokens-before.Total.PrefillTokens)
		require.Equal(t, grown.Steps, grown.PacedSteps)
		overran := float64(grown.Overruns-before.Total.Overruns) / float64(grown.Steps-before.Total.Steps)

		// Measured durations of steps, over those of the table.
		measured, said := 0., 0.
		for k, n := range steps {
			if k.Prefill || n.Decode == 0 {
				continue
			}
			_, decode, context, _, _ := n.Mean()
			each := (decode + mode.shape.Groups() - 1) / mode.shape.Groups()
			measured += n.Seconds
			said += float64(n.Steps) * dilation * step.Even(kernels.Load{Decode: each, Context: each * context}, decode)
		}
		ttft, _ := felt.FirstToken(.5)
		tpot, known := felt.BetweenTokens(.5)
		require.True(t, known)
		t.Logf("%s: %d requests in %.2f s; %d steps took %.3f of the table's time, %.0f %% overran; TTFT %.3f s, TPOT %.3f s", mode.name, requests, took,
			grown.Steps-before.Total.Steps, measured/said, 100*overran, ttft, tpot)
		require.Positive(t, said)
		require.GreaterOrEqual(t, measured/said, .95, "no step is shorter than its time")
		if overran < .05 {
			require.LessOrEqual(t, measured/said, 1.15)
		}
		at, ok := felt.Attainment(telemetry.SLO{TTFT: telemetry.Bound(96), TPOT: telemetry.Bound(telemetry.Bucket(tpot) + 8)}).Share()
		require.True(t, ok)
		require.Positive(t, at)
	}

	// A switch under load: permits do not wait for steps, and nothing is lost.
	before := o.take().Total
	answered := make(chan *load.Result, requests)
	for i := range requests {
		go func() {
			answered <- client(w).Do(t.Context(), load.Request{Index: i, Prompt: []uint32{uint32(i), 3, 4}, MaxTokens: 60, TopP: 1})
		}()
	}
	require.Eventually(t, func() bool { return o.take().Gauges.Decoding == requests }, time.Minute, 100*time.Millisecond)
	record := apply(t, w, ranks, "ExpertParallel")
	for range requests {
		r := <-answered
		require.NoError(t, r.Err, w.Died())
		require.Len(t, r.Tokens, 60)
	}
	require.Eventually(t, func() bool { return o.take().Total.Finished-before.Finished == requests }, time.Minute, 300*time.Millisecond)
	after := o.take().Total
	t.Logf("a switch of %d flips under load cut %d of %d steps short", record.PlannedFlips, after.Cut-before.Cut, after.Steps-before.Steps)
	require.LessOrEqual(t, after.Cut-before.Cut, uint64(2*record.PlannedFlips), "two for each attempt at most")

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.MetricsURL(), nil)
	require.NoError(t, err)
	reply, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, reply.Body.Close()) }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(reply.Body)
	require.NoError(t, err)
	for name, least := range map[string]float64{"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0,
		"vllm:generation_tokens_total": requests * (2*tokens + 60)} {
		require.NotNil(t, families[name], name)
		m := families[name].Metric[0]
		require.GreaterOrEqual(t, m.GetGauge().GetValue()+m.GetCounter().GetValue(), least, name)
	}
	for _, name := range []string{"vllm:time_to_first_token_seconds", "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds"} {
		require.EqualValues(t, 3*requests, families[name].Metric[0].GetHistogram().GetSampleCount(), name)
	}
}
