package gateway

import (
	"context"
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/testkit"
	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func (r *rig) load(e *engine, l *tangramv1.Load) {
	e.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Load{Load: l}})
}

// The report counts a client's request and latency once, however often the request was placed.
func TestReportCountsClientRequestsAndLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		began := time.Now()
		c := r.client()
		home, other, _ := r.home()
		r.emit(home, 1, 2, 4)
		c.has(2)
		first := time.Since(began)
		require.Eventually(t, func() bool { return r.pool.Telemetry().OutputTokens == 2 }, soon, time.Millisecond, "while it runs")
		r.epoch(2, nil, other) // its home died; a replay
		require.Equal(t, []uint32{9, 8, id(2), id(3)}, r.submitted(other).Prompt)
		time.Sleep(60 * time.Millisecond)
		r.emit(other, 2, 4, 8)
		c.has(6)
		require.NoError(t, <-c.err)
		rest := time.Since(began)

		report := r.pool.Telemetry()
		require.EqualValues(t, 1, report.Arrived)
		require.EqualValues(t, 1, report.Answered)
		require.EqualValues(t, 6, report.OutputTokens)
		require.Zero(t, report.Failed+report.Left)
		require.Len(t, report.Latencies, 1)
		cell := report.Latencies[0]
		require.EqualValues(t, 6, cell.Tokens)
		require.LessOrEqual(t, cell.First, telemetry.Bucket(first.Seconds()))
		require.GreaterOrEqual(t, cell.Between, telemetry.Bucket(.06/5))
		require.LessOrEqual(t, cell.Between, telemetry.Bucket(rest.Seconds()/5))
		require.InDelta(t, 1, testutil.CollectAndCount(r.m.ttft), 0)

		// One whose client disconnects, and an invalid one.
		gone := &client{r: r, tokens: make(chan uint32, 9), err: make(chan error, 1)}
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			gone.err <- r.pool.Run(ctx, &tangramv1.Submit{Request: "s", Prompt: []uint32{1}, MaxTokens: 6}, func(*tangramv1.Token) error { return nil }, time.Hour, nil)
		}()
		r.submitted(other)
		leave()
		require.ErrorIs(t, <-gone.err, context.Canceled)
		failed := make(chan error, 1)
		go func() {
			failed <- r.pool.Run(t.Context(), &tangramv1.Submit{Request: "t", Prompt: []uint32{1}, MaxTokens: 6}, func(*tangramv1.Token) error { return nil }, time.Hour, nil)
		}()
		r.submitted(other)
		other.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Refused{Refused: &tangramv1.Refused{Request: "t", Code: tangramv1.Refused_CODE_INVALID}}})
		require.ErrorIs(t, <-failed, ErrInvalid)
		report = r.pool.Telemetry()
		require.EqualValues(t, 3, report.Arrived)
		require.EqualValues(t, 1, report.Left)
		require.EqualValues(t, 1, report.Failed)
		r.pool.felt.start(r.m, 1).end(nil) // an end without a token is no answer
		report = r.pool.Telemetry()
		require.EqualValues(t, 2, report.Failed)
		_, err := telemetry.NewMerger("w").Take(1, []telemetry.Read{{Gateway: "g", Report: report}})
		require.NoError(t, err)
	})
}

// The report has the last load of each rank, and none for ranks without a report. It counts requests without a rank.
func TestReportContainsRankLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		r.load(r.engines[1], &tangramv1.Load{Running: 4, KvPages: 8, KvFreePages: 2, Telemetry: &tangramv1.RankTelemetry{Decoding: 3, Arrived: 9, Epoch: 1}})
		var report *tangramv1.TelemetryReport
		require.Eventually(t, func() bool {
			report = r.pool.Telemetry()
			return report.Ranks[1].Load != nil
		}, soon, time.Millisecond)
		require.Nil(t, report.Ranks[0].Load)
		require.EqualValues(t, 4, report.Ranks[1].Load.Running)
		require.Equal(t, "m1", report.Ranks[1].Member)
		require.Less(t, report.Ranks[1].Age, soon.Seconds())
		require.Zero(t, report.Unassigned)

		c := r.client()
		home, other, _ := r.home()
		r.emit(home, 1, 2, 4)
		c.has(2)
		w := r.world(2, other)
		w.Members[0].Accepts = false // between two layouts no rank accepts it
		r.enter(other, w)
		r.counted(2)
		require.Eventually(t, func() bool {
			report = r.pool.Telemetry()
			return report.Unassigned == 1 && report.UnassignedAgeSeconds > .05
		}, soon, time.Millisecond)
		require.Len(t, report.Ranks, 1)
		require.EqualValues(t, 2, report.Epoch)
		s, err := telemetry.NewMerger("w").Take(1, []telemetry.Read{{Gateway: "g", Report: report}})
		require.NoError(t, err)
		require.Equal(t, 1, s.Gauges.Homeless)
		c.leave()
		require.Error(t, <-c.err)
		require.Zero(t, r.pool.Telemetry().Unassigned)
	})
}

// Requests of this gateway's clients run once a rank has accepted them, and wait until then.
func TestRequestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		registry := prometheus.NewPedanticRegistry()
		NewMetrics(registry, "m")
		registry.MustRegister(NewRequestMetrics(r.pool, "m"))
		want := func(running, waiting float64) {
			t.Helper()
			families, err := registry.Gather()
			require.NoError(t, err)
			got := map[string]float64{}
			for _, f := range families {
				if strings.HasPrefix(f.GetName(), "vllm:num_requests_") {
					require.Equal(t, "m", f.Metric[0].Label[0].GetValue())
					got[f.GetName()] = f.Metric[0].GetGauge().GetValue()
				}
			}
			require.Equal(t, map[string]float64{"vllm:num_requests_running": running, "vllm:num_requests_waiting": waiting}, got)
		}
		r.load(r.engines[0], &tangramv1.Load{Running: 7, Waiting: 3, Telemetry: &tangramv1.RankTelemetry{Epoch: 1}}) // also of other gateways
		want(0, 0)
		c := r.client()
		home, other, _ := r.home()
		want(0, 1)
		r.emit(home, 1, 2, 4)
		c.has(2)
		want(1, 0)
		w := r.world(2, other)
		w.Members[0].Accepts = false // between two layouts no rank accepts it
		r.enter(other, w)
		r.counted(2)
		want(0, 1)
		c.leave()
		require.Error(t, <-c.err)
		want(0, 0)
		problems, err := testutil.GatherAndLint(registry)
		require.NoError(t, err)
		for _, p := range problems {
			require.True(t, strings.HasPrefix(p.Metric, "vllm:"), "%+v", p) // their names are not ours to choose
		}
	})
}

// Only the operator can connect.
func TestTelemetryAcceptsOnlyOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, time.Hour)
		folder, err := pki.OpenFolder(t.TempDir(), "w")
		require.NoError(t, err)
		issue := func(name, role string) pki.Files {
			files, err := folder.Issue(name, role, nil)
			require.NoError(t, err)
			return files
		}
		config, err := pki.Server(issue("gateway", "gateway"), "w", "driver")
		require.NoError(t, err)
		l, err := testkit.Listen("")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- r.pool.ServeTelemetry(ctx, l, config) }()
		ask := func(config *tls.Config, world string) (*tangramv1.TelemetryReport, error) {
			conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithContextDialer(testkit.Dial))
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			within, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			return tangramv1.NewTelemetryClient(conn).Read(within, &tangramv1.TelemetryRequest{World: world})
		}
		as := func(role string) *tls.Config {
			config, err := pki.Client(issue(strings.ReplaceAll(role, "/", "-"), role), "w", "gateway")
			require.NoError(t, err)
			return config
		}
		report, err := ask(as("driver"), "w")
		require.NoError(t, err)
		require.Equal(t, "g", report.Gateway)
		require.Len(t, report.Ranks, 1)
		_, err = ask(as("driver"), "v")
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.ErrorContains(t, err, `belongs to world "w", not "v"`)
		for _, role := range []string{"engine/p", "gateway", "agent/p"} {
			_, err = ask(as(role), "w")
			require.Equal(t, codes.Unavailable, status.Code(err), role)
		}
		cancel()
		require.NoError(t, <-served)
	})
}

// 256 ranks in one report: it is small, and takes little work.
func TestReportSize_WhenWorldHas256Ranks(t *testing.T) {
	w := newWide(t, 256, 1000)
	w.pool.mu.Lock()
	for _, s := range w.pool.sessions {
		s.load = &tangramv1.Load{Running: 1000, Telemetry: &tangramv1.RankTelemetry{Arrived: 1e6, PromptTokens: 1e9, Steps: 1e7, StepSeconds: 1e5, Epoch: 9,
			Cells: make([]*tangramv1.StepCell, 0)}}
		s.loaded = time.Now()
	}
	w.pool.mu.Unlock()
	for i := range 5000 {
		c := w.pool.felt.start(w.pool.o.Metrics, 1)
		c.tokens, c.first = 10, c.born.Add(time.Duration(i)*time.Millisecond)
		c.end(nil)
	}
	report := w.pool.Telemetry()
	require.Len(t, report.Ranks, 256)
	require.Less(t, proto.Size(report), 64<<10)
	allocations := testing.AllocsPerRun(20, func() { w.pool.Telemetry() })
	t.Logf("a report of 256 ranks: %d bytes, %v allocations", proto.Size(report), allocations)
	require.Less(t, allocations, 4.0*256, "the work is a few steps for each rank")
}

// The gateway exports vLLM's metric names where vLLM has one.
func TestMetricsUseVLLMNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(s, 0, 'z', tangramv1.Finish_FINISH_STOP))
		}}
		e.listen(t, "")
		e.world = &tangramv1.World{World: "w", Epoch: 1, MaxTokens: 64, Vocabulary: 256, Members: []*tangramv1.WorldMember{{Member: "m0", Frontend: e.address, Accepts: true}}}
		s, m, pool := before(t, Options{}, e)
		require.Eventually(t, func() bool { return pool.Ready() }, soon, time.Millisecond)
		code, _, body := post(t, s, `{"prompt":"four","max_tokens":3}`)
		require.Equal(t, http.StatusOK, code, body)
		require.InDelta(t, 4, testutil.ToFloat64(m.prompts), 0)
		require.InDelta(t, 1, testutil.ToFloat64(m.generated), 0)
		require.Equal(t, 1, testutil.CollectAndCount(m.total, "vllm:e2e_request_latency_seconds"))
	})
}
