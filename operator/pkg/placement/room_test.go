package placement

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// One expert has nearly all load, and the experts that must leave for its copies have no copy. Without a price, steps
// reach the best possible balance from any placement with empty or useless slots.
func TestIncremental_WhenSlotsMustBeFreed(t *testing.T) {
	var p Planner
	for seed := range worlds(300) {
		r := rand.New(rand.NewPCG(seed, 41))
		ranks, slots := 2+r.IntN(5), 2+r.IntN(4)
		experts := ranks*slots - (ranks - 1) - r.IntN(ranks)
		if experts < ranks {
			continue
		}
		load := make([]float64, experts)
		hot := r.IntN(experts)
		load[hot] = 1000
		lists := make([][]int32, ranks) // one copy of each in random order, then useless copies or nothing
		free := r.Perm(ranks * slots)
		for e := range experts {
			g := free[e] / slots
			lists[g] = append(lists[g], int32(e))
		}
		for g := range lists {
			for range slots - len(lists[g]) {
				e := int32(r.IntN(experts))
				if int(e) != hot && r.IntN(2) == 0 && !slices.Contains(lists[g], e) {
					lists[g] = append(lists[g], e)
				}
			}
		}
		old, err := FromLists([][][]int32{lists}, experts, slots)
		require.NoError(t, err)
		pr := &Problem{Layers: []Layer{{Load: load}}, Ranks: evenRanks(ranks, slots), Old: old}
		got, err := p.Incremental(pr, Options{})
		require.NoError(t, err)
		require.NoError(t, verify(pr, got), "seed %d", seed)
		require.InDelta(t, 1, got.Layers[0].Balance(), 1e-9, "seed %d: %v on %d ranks of %d slots: %v", seed, lists, ranks, slots, got.Placement.Slot)
	}
}
