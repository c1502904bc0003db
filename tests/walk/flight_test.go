package walk

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

const (
	flightTokens = 2048 // prompt and answer: many times the duration of a transition, also on a busy machine
	flightLimit  = worlds.Hang
	leastStep    = 20 * time.Millisecond
)

// flight is a request in flight.
type flight struct {
	counters load.Counters // only of this request
	cancel   context.CancelFunc
	done     chan *load.Result
}

// fly sends long requests and waits for a token of each. They end when they land.
func fly(t *testing.T, w *harness.World, source load.Source, first, n int) []*flight {
	t.Helper()
	return flyOf(t, w, source, first, n, flightTokens)
}

// flyOf is fly with this many tokens at most, prompt and answer.
func flyOf(t *testing.T, w *harness.World, source load.Source, first, n, tokens int) []*flight {
	t.Helper()
	out := make([]*flight, n)
	for i := range out {
		r := source.At(first + i)
		r.MaxTokens = tokens - len(r.Prompt)
		ctx, cancel := context.WithCancel(t.Context())
		f := &flight{cancel: cancel, done: make(chan *load.Result, 1)}
		c := client(w)
		c.Counters = &f.counters
		go func() { f.done <- c.Do(ctx, r) }()
		out[i] = f
	}
	for _, f := range out {
		f.await(t, 1)
	}
	return out
}

// await waits for this many tokens.
func (f *flight) await(t *testing.T, tokens int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		now := f.counters.Now()
		return now.Tokens >= tokens || now.Open == 0 && now.Done+now.Lost > 0
	},
		flightLimit, 5*time.Millisecond, "no token came")
	require.EqualValues(t, 1, f.counters.Now().Open, "it ended before the transition")
}

// land ends the request after its next token, and returns its result.
func (f *flight) land(t *testing.T) *load.Result {
	t.Helper()
	f.await(t, f.counters.Now().Tokens+1)
	f.cancel()
	result := <-f.done
	require.ErrorIs(t, result.Err, context.Canceled)
	// The same request with the length that was received, for the comparison.
	result.Err, result.Request.MaxTokens = nil, len(result.Tokens)
	return result
}

// work returns, for each rank of the active layout by member, the tokens that it prefilled as home and the tokens that
// its experts computed.
func work(t *testing.T, w *harness.World) map[string][2]float64 {
	t.Helper()
	out, urls := map[string][2]float64{}, w.AgentMetricsURLs()
	for pod, s := range status(t, w) {
		routed, err := worlds.CounterBy(t.Context(), urls[pod], "tangram_agent_expert_tokens_total", "device")
		require.NoError(t, err)
		executed, err := worlds.CounterBy(t.Context(), urls[pod], "tangram_agent_expert_tokens_executed_total", "device")
		require.NoError(t, err)
		for _, r := range s.Ranks {
			if device := fmt.Sprint(r.Device); r.InWorld {
				out[r.Member.Id] = [2]float64{routed[device], executed[device]}
			}
		}
	}
	return out
}

// requireAllWork: every rank of the active layout prefills tokens and computes since `before`.
func requireAllWork(t *testing.T, w *harness.World, before map[string][2]float64) {
	t.Helper()
	var now map[string][2]float64
	require.Eventually(t, func() bool {
		now = work(t, w)
		for member, is := range now {
			if was := before[member]; is[0] <= was[0] || is[1] <= was[1] {
				return false
			}
		}
		return true
	}, flightLimit, 50*time.Millisecond, "a rank does nothing: %v, then %v", before, &now)
}
