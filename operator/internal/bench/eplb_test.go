package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/bench/peers"
	"tangram.dev/operator/pkg/migration"
)

// A small workload through the same path as the bench: what it says of the planner and of a
// baseline, and that every layout it scores is whole.
func TestEplbWorkload(t *testing.T) {
	w := eplbWorkload{"small", 3, 64, 16, 5, 4, 1, .9}
	windows, err := w.windows(3)
	require.NoError(t, err)
	floors := w.floors(windows)
	full, err := w.ours("full", windows, floors, true)
	require.NoError(t, err)
	incr, err := w.ours("incremental", windows, floors, true)
	require.NoError(t, err)
	flash := w.peer(&peers.FlashLB{}, windows, floors)
	for _, s := range []*eplbScore{full, incr, flash} {
		require.Zero(t, s.layersUnderFloor)
		require.Equal(t, 4*3*16*5, s.slots)
		require.LessOrEqual(t, s.mean, s.peak)
	}
	require.GreaterOrEqual(t, flash.peak, full.peak)
	require.Greater(t, flash.moved, 2*incr.moved)
}

func TestCountRoundsSeesClashes(t *testing.T) {
	moves := []migration.Move{{To: 0, Source: 1, Round: 0}, {To: 2, Source: 1, Round: 0}}
	_, _, err := countRounds(moves, 3)
	require.ErrorContains(t, err, "rank 1 has two moves in round 0")
	moves[1].Round = 1
	rounds, degree, err := countRounds(moves, 3)
	require.NoError(t, err)
	require.Equal(t, 2, rounds)
	require.Equal(t, 2, degree)
}
