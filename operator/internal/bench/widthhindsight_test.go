package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/simulator"
)

// Two minutes: in the first any width does, in the second three ranks alone. Who wants all pays for three there and for one before; who wants half pays for one all the time.
func TestHindsightTakesTheFewestRanks(t *testing.T) {
	run := func(second bool) []simulator.Answer {
		return []simulator.Answer{{Arrival: 1, Within: true}, {Arrival: 70, Within: second}}
	}
	widths, answers := []int{1, 2, 3}, [][]simulator.Answer{run(false), run(false), run(true)}
	all := hindsight(widths, answers, 1)
	require.InDelta(t, 1, all.Within, 1e-9)
	require.InDelta(t, 4./60, all.RankHours, 1e-9)
	half := hindsight(widths, answers, .5)
	require.InDelta(t, .5, half.Within, 1e-9)
	require.InDelta(t, 2./60, half.RankHours, 1e-9)
}
