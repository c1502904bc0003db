package planner

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Of two losses the one beyond repair is worse, then the one with the larger shortage, then the one that leaves less of
// a pool.
func TestLossSeverityOrder(t *testing.T) {
	need := func(need, memory uint64) RankNeed { return RankNeed{NeedBytes: need, MemoryBytes: memory} }
	beyond := RankLoss{Beyond: "no other rank exists"}
	short := RankLoss{Short: 2, Survivors: []RankNeed{need(12, 10), need(100, 0)}} // with an unchecked pool
	shorter := RankLoss{Short: 3, Survivors: []RankNeed{need(13, 10)}}
	roomy := RankLoss{Survivors: []RankNeed{need(5, 10), need(4, 8)}}
	tight := RankLoss{Survivors: []RankNeed{need(1, 10), need(7, 10)}}
	order := []RankLoss{roomy, tight, short, shorter, beyond}
	for i := range order {
		for j := range order {
			require.Equal(t, i > j, order[i].worse(&order[j]), "%d and %d", i, j)
		}
	}
	require.EqualValues(t, 4, roomy.leaves())
	require.EqualValues(t, -3, shorter.leaves())
}
