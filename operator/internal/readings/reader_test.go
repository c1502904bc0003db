package readings

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/gateway"
	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/testkit"
	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const soon = time.Minute // on the bubble's clock: only a hang waits this long

type world struct {
	t      *testing.T
	folder *pki.Folder
}

// gateway starts a real gateway of the world, without engines.
func (w *world) gateway(name string) (pool *gateway.Pool, address string, stop func()) {
	w.t.Helper()
	files, err := w.folder.Issue(name, "gateway", nil)
	require.NoError(w.t, err)
	config, err := pki.Server(files, "w", "driver")
	require.NoError(w.t, err)
	pool = gateway.NewPool(gateway.Options{World: "w", Gateway: name, Log: slog.New(slog.DiscardHandler), Metrics: gateway.NewMetrics(prometheus.NewRegistry(), "w")})
	l, err := testkit.Listen("")
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- pool.ServeTelemetry(ctx, l, config) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(w.t, <-done)
			pool.Close()
		}
	}
	w.t.Cleanup(stop)
	return pool, l.Addr().String(), stop
}

// leave submits a request whose client disconnects.
func leave(t *testing.T, p *gateway.Pool, id string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, p.Run(ctx, &tangramv1.Submit{Request: id, Prompt: []uint32{1}, MaxTokens: 1}, func(*tangramv1.Token) error { return nil }, time.Hour, nil))
}

func TestReadsAllGateways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, err := pki.OpenFolder(t.TempDir(), "w")
		require.NoError(t, err)
		w := &world{t, folder}
		files, err := folder.Issue("driver", "driver", nil)
		require.NoError(t, err)
		config, err := pki.Client(files, "w", "gateway")
		require.NoError(t, err)
		r, err := Open(Options{World: "w", TLS: config, connect: testkit.Dial, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		defer r.Close()
		_, _, err = r.Last(60)
		require.ErrorContains(t, err, "no report was read yet")
		require.Eventually(t, func() bool {
			_, _, err := r.Last(60)
			return err != nil && err.Error() == "telemetry: no report was read yet; last reading: telemetry: no gateway was queried"
		}, soon, time.Millisecond)

		one, at, stop := w.gateway("one")
		two, other, _ := w.gateway("two")
		r.SetGateways([]string{at, other})
		until := func(what string, is func(*telemetry.Sample, *telemetry.Window) bool) {
			t.Helper()
			require.Eventually(t, func() bool {
				s, w, err := r.Last(60)
				return err == nil && is(s, w)
			}, soon, 5*time.Millisecond, what)
		}
		until("both are heard", func(s *telemetry.Sample, _ *telemetry.Window) bool { return s.Whole })
		leave(t, one, "a")
		leave(t, two, "b")
		leave(t, two, "c")
		until("all that was felt is counted", func(s *telemetry.Sample, w *telemetry.Window) bool {
			return s.Total.Left == 3 && w.Grown.Sent == 3 && s.Whole
		})
		stop()
		until("one that is gone is told, and the other is heard", func(s *telemetry.Sample, _ *telemetry.Window) bool {
			return !s.Whole && len(s.Problems) == 1 && s.Problems[0].Source == at
		})
		leave(t, two, "d")
		until("what it said stays counted", func(s *telemetry.Sample, _ *telemetry.Window) bool { return s.Total.Left == 4 })
		r.SetGateways([]string{other})
		until("nobody asks it any more", func(s *telemetry.Sample, _ *telemetry.Window) bool { return s.Whole })
	})
}
