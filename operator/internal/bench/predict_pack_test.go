package bench

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every expert is placed, no expert has more replicas than there are ranks, and no slot is
// empty that another replica could use.
func TestGreedyPackIsWhole(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		ranks, slots := 1+random.IntN(8), 1+random.IntN(6)
		loads := make([]float64, 1+random.IntN(ranks*slots))
		for e := range loads {
			loads[e] = float64(random.IntN(5)) // ties and experts without load too
		}
		p := greedyPack(loads, ranks, slots)
		require.Len(t, p, ranks)
		seen := make([]int, len(loads))
		for _, rank := range p {
			require.LessOrEqual(t, len(rank), slots)
			for _, e := range rank {
				seen[e]++
			}
		}
		require.NotContains(t, seen, 0)
		total := 0
		for _, n := range seen {
			require.LessOrEqual(t, n, ranks)
			total += n
		}
		require.Equal(t, ranks*min(slots, len(loads)), total, "a slot is empty only when all ranks could hold all experts")
	}
	// No rank takes a second replica while another has room.
	p := greedyPack([]float64{9, 3, 3, 3}, 3, 2)
	for _, rank := range p {
		require.True(t, slices.Contains(rank, 0), "the hot one on each rank: %v", p)
	}
}
