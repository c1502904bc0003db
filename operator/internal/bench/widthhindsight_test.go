package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/simulator"
)

// Two minutes: any width suffices in the first, only three ranks in the second. A share of 1 needs three there and one
// before; a share of half needs one throughout.
func TestHindsightUsesFewestRanks(t *testing.T) {
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
