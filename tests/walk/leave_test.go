package walk

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

func freePages(t *testing.T, w *harness.World) uint64 {
	t.Helper()
	free := uint64(0)
	for _, s := range status(t, w) {
		for _, r := range s.Ranks {
			free += r.Engine.GetKvFreePages()
		}
	}
	return free
}

// idlePages waits until no rank has a request, and returns the free pages when two statuses agree, because an engine's
// figures are not taken at one moment.
func idlePages(t *testing.T, w *harness.World) (free uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		was, requests := free, uint64(0)
		free = 0
		for _, s := range status(t, w) {
			for _, r := range s.Ranks {
				free += r.Engine.GetKvFreePages()
				requests += r.Engine.GetRunning() + r.Engine.GetWaiting()
			}
		}
		return requests == 0 && free == was
	}, worlds.Hang, 100*time.Millisecond, "the ranks still have requests")
	return free
}

// Clients that disconnect in the middle of their answers free their KV on all ranks that hold a part of it; concurrent
// requests are unaffected.
func TestDisconnectedClientsFreeKV(t *testing.T) {
	w := start(t, harness.Options{Pods: []int{2}})
	for _, mode := range []string{"ExpertParallel", "TensorParallel"} {
		t.Run(mode, func(t *testing.T) {
			apply(t, w, 2, mode)
			tokens := answers(t, w)
			idle := idlePages(t, w)

			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			gone := make(chan *load.Result, 4)
			for i := range 4 {
				request := newTrace(t, 9, time.Minute).At(i)
				request.MaxTokens = 400
				go func() { gone <- client(w).Do(ctx, request) }()
			}
			require.Eventually(t, func() bool { return freePages(t, w) < idle }, worlds.Hang, 20*time.Millisecond, "no KV is used")
			leave()
			for range 4 {
				result := <-gone
				require.ErrorIs(t, result.Err, context.Canceled)
				require.Less(t, len(result.Tokens), 400)
			}
			require.Eventually(t, func() bool { return freePages(t, w) == idle }, worlds.Hang, 100*time.Millisecond,
				"%d pages free while idle", idle)
			requireSame(t, answers(t, w), tokens)
		})
	}
}
