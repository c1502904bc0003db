package placement

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Items leave a heap in order of load, ties in order of the index, with any insertions in between.
func TestHeapsSort(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 5))
	for n := 1; n < 70; n++ {
		low, loads := lowBits(n), make([]float64, n)
		var h []uint64
		for i := range loads {
			loads[i] = math.Floor(dice.Float64() * 20) // with ties
			h = rise(h, leastFirst(loads[i], int32(i), low))
		}
		for range n { // the first gets more load
			i := h[0] & low
			loads[i] += float64(dice.IntN(9))
			sink(h, 0, leastFirst(loads[i], int32(i), low))
		}
		var got, want []int
		for i := range n {
			want = append(want, i)
		}
		slices.SortStableFunc(want, func(a, b int) int { return int(loads[a] - loads[b]) })
		for len(h) > 0 {
			got = append(got, int(h[0]&low))
			last := h[len(h)-1]
			if h = h[:len(h)-1]; len(h) > 0 {
				sink(h, 0, last)
			}
		}
		require.Equal(t, want, got)
	}
	require.Equal(t, leastFirst(0, 3, 7), leastFirst(math.Copysign(0, -1), 3, 7), "-0 is 0")
	require.Equal(t, mostFirst(0, 3, 7), mostFirst(math.Copysign(0, -1), 3, 7))
	require.Less(t, mostFirst(2, 3, 7), mostFirst(1, 0, 7))
}
