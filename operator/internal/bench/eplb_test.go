package bench

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/bench/peers"
	"tangram.dev/operator/pkg/migration"
)

// A small workload through the code of the bench: results of the planner and of a baseline, and completeness of every
// layout that it scores.
func TestEplbWorkload(t *testing.T) {
	defer alone()()
	w := eplbWorkload{"small", 3, 64, 16, 5, 4, 1, .9, true}
	windows, err := w.windows(3)
	require.NoError(t, err)
	players := w.players(false)
	require.NoError(t, w.play(players, windows, 2))
	of := func(name string) *player {
		i := slices.IndexFunc(players, func(p *player) bool { return p.name == name })
		require.GreaterOrEqual(t, i, 0, name)
		return players[i]
	}
	for _, p := range players {
		require.Zero(t, p.score.layersUnderFloor, p.name)
		require.Equal(t, 4*3*16*5, p.score.slots, p.name)
		require.LessOrEqual(t, p.score.mean, p.score.peak, p.name)
		require.Len(t, p.score.millis, 4*2, p.name)
		require.Positive(t, middle(p.score.millis), p.name)
	}
	require.GreaterOrEqual(t, of("flashlb").score.peak, of("full").score.peak)
	require.Greater(t, of("flashlb").score.moved, 2*of("incremental").score.moved)
}

// Timing does not influence plans: FlashLB-like uses its past, and repeated calls must not change it.
func TestTimingDoesNotChangePlans(t *testing.T) {
	defer alone()()
	w := eplbWorkload{"small", 3, 64, 16, 5, 4, 1, .9, true}
	windows, err := w.windows(5)
	require.NoError(t, err)
	var layouts [2][][]peers.Layout
	for i, rounds := range []int{1, 4} {
		players := w.players(i == 0)
		require.NoError(t, w.play(players, windows, rounds))
		for _, p := range players[:4] {
			layouts[i] = append(layouts[i], p.old)
		}
	}
	require.Equal(t, layouts[0], layouts[1])
}

// Works alternate, and every round but the first is reported.
func TestAlternatingRunsWorksInTurn(t *testing.T) {
	defer alone()()
	var order []string
	work := func(name string) func() error {
		return func() error { order = append(order, name); return nil }
	}
	times, err := alternating(2, work("a"), work("b"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "a", "b", "a", "b"}, order)
	require.Len(t, times, 2)
	require.Len(t, times[0], 2)
	require.Len(t, times[1], 2)
}

// The clock resolves less than a millisecond of work, and does not count waiting.
func TestRealTime_ThreadClockCountsCPUTimeOnly(t *testing.T) {
	defer alone()()
	for range 20 {
		begin, wall := threadMillis(), time.Now()
		for threadMillis()-begin < .3 {
		}
		took, passed := threadMillis()-begin, float64(time.Since(wall).Nanoseconds())/1e6
		require.GreaterOrEqual(t, took, .3)
		require.LessOrEqual(t, took, passed+.05)
	}
	times, err := alternating(3, func() error { time.Sleep(20 * time.Millisecond); return nil })
	require.NoError(t, err)
	require.Len(t, times[0], 3)
	require.Less(t, slices.Max(times[0]), 10.0)
}

// A date always gives the same seeds and another date gives others; the fixed seeds are always included.
func TestSeedsDependOnDate(t *testing.T) {
	a := seedsOf("2026-11-22", 20)
	require.Len(t, a, 20+len(eplbFixed))
	require.Equal(t, a, seedsOf("2026-11-22", 20))
	require.Equal(t, eplbFixed, a[:len(eplbFixed)])
	for _, seed := range seedsOf("2026-11-23", 20)[len(eplbFixed):] {
		require.NotContains(t, a, seed)
	}
	require.ErrorContains(t, Eplb(io.Discard, io.Discard, "22.11.2026", true), "DATE")
}

// Medians and worst values, and the seeds that miss a goal by themselves.
func TestSeedStatistics(t *testing.T) {
	f := &eplbSeeds{}
	score := func(millis, peak, floor float64, moved int) *eplbScore {
		return &eplbScore{millis: []float64{millis}, peak: peak, mean: .9, floor: floor, moved: moved, slots: 100, seeds: 1}
	}
	for i, peak := range []float64{1, 1, 1.002} {
		f.add(uint64(7+i), map[string]*eplbScore{"greedy": score(1, 1, 1, 0), "full": score(2+float64(i), peak, 1, 50),
			"incremental": score(5, .91/.9, 1, 5), "flashlb": score(60, 1, 1, 50)})
	}
	require.InDelta(t, 3, f.median("full_over_greedy"), 1e-9)
	require.InDelta(t, 4, f.worst("full_over_greedy"), 1e-9)
	require.InDelta(t, 1, f.median("balance_over_floor"), 1e-9)
	require.InDelta(t, 1/1.002, f.worst("balance_over_floor"), 1e-9)
	require.InDelta(t, .1, f.median("moves_over_flashlb"), 1e-9)
	require.Equal(t, []uint64{9}, f.missed())
}

func TestCountRoundsRejectsConflictingMoves(t *testing.T) {
	moves := []migration.Move{{To: 0, Source: 1, Round: 0}, {To: 2, Source: 1, Round: 0}}
	_, _, err := countRounds(moves, 3)
	require.ErrorContains(t, err, "rank 1 has two moves in round 0")
	moves[1].Round = 1
	rounds, degree, err := countRounds(moves, 3)
	require.NoError(t, err)
	require.Equal(t, 2, rounds)
	require.Equal(t, 2, degree)
}
