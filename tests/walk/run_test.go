package walk

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// Mode switches under load, alternately with a permit for each flip and with one for all: clients get the same tokens,
// and with one permit no rank waits for the driver between two flips.
func TestSwitchUnderOnePermit(t *testing.T) {
	const turns = 5
	w := start(t, harness.Options{Pods: []int{1, 1}, SpareBanks: 1})
	apply(t, w, 2, "ExpertParallel")
	tokens := answers(t, w)
	trace := newTrace(t, 7, 10*time.Second)
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	go func() { played <- client(w).Play(t.Context(), trace, 4, halt) }()
	seconds := map[int][]float64{}
	for range turns {
		for _, most := range []int{1, 32} {
			for _, mode := range []string{"TensorParallel", "ExpertParallel"} {
				record, err := w.ApplyInRuns(t.Context(), 2, mode, most)
				require.NoError(t, err, w.Died())
				require.Equal(t, 6, record.PlannedFlips, "a layer each")
				require.Equal(t, record.FromEpoch+6, record.Epoch)
				require.Equal(t, map[int]int{1: 6, 32: 1}[most], record.Permits)
				require.Zero(t, record.Retries)
				require.NotZero(t, record.Bytes)
				seconds[most] = append(seconds[most], record.TotalSeconds)
				audit(t, w, 2)
			}
		}
		requireSame(t, answers(t, w), tokens)
	}
	close(halt)
	walked := <-played
	requireSame(t, walked, client(w).Repeat(t.Context(), trace, len(walked), 8))
	for _, most := range []int{1, 32} {
		slices.Sort(seconds[most])
		t.Logf("at most %d flips under a permit: %.3f s (median of %d switches; %.3f to %.3f)", most, seconds[most][turns], 2*turns,
			seconds[most][0], seconds[most][2*turns-1])
	}
}
