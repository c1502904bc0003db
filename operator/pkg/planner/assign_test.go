package planner

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// dealt returns the worth of an assignment of experts, the earlier longer shares of the groups that get them, and
// whether the sizes are even.
func dealt(owners []int, n int, value []int64, spare []int) (total int64, had int, even bool) {
	size := make([]int, n)
	for e, j := range owners {
		total += value[e*n+j]
		size[j]++
	}
	even = true
	for j, k := range size {
		even = even && (k == len(owners)/n || k == len(owners)/n+1)
		if k > len(owners)/n {
			had += spare[j]
		}
	}
	return total, had, even
}

// The assignment has the maximum worth among even shares and, of equals, gives longer shares to groups that had the
// fewest: verified by trying all. This holds if each expert has worth for one group only, and if it has worth for many.
func TestExpertAssignmentIsOptimal(t *testing.T) {
	single := 0
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 30))
		n := 1 + r.IntN(4)
		experts := n + r.IntN(7-n)
		value, spare := make([]int64, experts*n), make([]int, n)
		kind := r.IntN(3)
		for e := range experts {
			switch kind {
			case 0: // one holder or none, always of equal worth
				if j := r.IntN(n + 1); j < n {
					value[e*n+j] = 700
				}
			default:
				for j := range n {
					value[e*n+j] = int64(r.IntN(3)) << (kind * 8 * r.IntN(3))
				}
			}
		}
		if kind == 2 && r.IntN(2) == 0 {
			value[0] = 1 << 34 // too large to be scaled: ties are arbitrary then
		}
		for j := range spare {
			spare[j] = r.IntN(4)
		}
		got := assignExperts(n, sparse(n, value), spare)
		total, had, even := dealt(got, n, value, spare)
		require.True(t, even, "seed %d: %v", seed, got)
		most, fewest := int64(-1), 0
		owners := make([]int, experts)
		for at := 0; at < experts; { // all possible assignments
			if x, h, ok := dealt(owners, n, value, spare); ok && (x > most || x == most && h < fewest) {
				most, fewest = x, h
			}
			for at = 0; at < experts; at++ {
				if owners[at]++; owners[at] < n {
					break
				}
				owners[at] = 0
			}
		}
		require.Equal(t, most, total, "seed %d", seed)
		if value[0] < 1<<34 {
			require.Equal(t, fewest, had, "seed %d", seed)
		}
		if _, ok := assignSingle(n, sparse(n, value), spare); ok {
			single++
		} else {
			require.NotZero(t, kind)
		}
	}
	require.Greater(t, single, 400)
}

// sparse is value[e*n+j] without zeros.
func sparse(n int, value []int64) [][]worth {
	out := make([][]worth, len(value)/n)
	for i, v := range value {
		if v != 0 {
			out[i/n] = append(out[i/n], worth{i % n, v})
		}
	}
	return out
}

// The number of earlier longer shares never outweighs a unit of value. Values too large to be scaled are compared as
// they are.
func TestTiesNeverOutweighValue(t *testing.T) {
	for n := 2; n < 5; n++ {
		for keep := range n {
			value, spare := make([]int64, (2*n-1)*n), make([]int, n) // one group has one expert fewer
			for i := range value {
				value[i] = 1 << 20
			}
			for e := range 2*n - 1 {
				value[e*n+keep]-- // every expert prefers another group
			}
			for j := range spare {
				if j != keep {
					spare[j] = 1 << 40
				}
			}
			size := make([]int, n)
			for _, j := range newTransport(2*n-1, n, value, spare).solve() {
				size[j]++
			}
			require.Equal(t, 1, size[keep], "%d groups, %d", n, keep)
		}
	}
	large := []int64{1 << 45, 3 << 45, 2 << 45, 1 << 45}
	require.Equal(t, []int{1, 0}, newTransport(2, 2, large, []int{0, 0}).solve())
}

// If each expert has one holder, the holder keeps its lowest experts.
func TestHoldersKeepLowestExperts(t *testing.T) {
	owners, ok := assignSingle(2, sparse(2, []int64{0, 9, 0, 9, 0, 9, 0, 9, 0, 9}), []int{0, 0})
	require.True(t, ok)
	require.Equal(t, []int{1, 1, 1, 0, 0}, owners)
	owners, ok = assignSingle(2, sparse(2, []int64{0, 9, 0, 0, 9, 0, 0, 0}), []int{0, 0})
	require.True(t, ok)
	require.Equal(t, []int{1, 0, 0, 1}, owners, "the free ones fill up in order")
}

func TestPositionAssignmentIsOptimal(t *testing.T) {
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 31))
		n := 1 + r.IntN(5)
		value := make([]int64, n*n)
		for i := range value {
			value[i] = int64(r.IntN(6)) << (20 * r.IntN(2))
		}
		at := assignPositions(n, value)
		total, most, used := int64(0), int64(-1), map[int]bool{}
		for p, i := range at {
			require.False(t, used[i])
			used[i] = true
			total += value[i*n+p]
		}
		var try func(p, taken int, sum int64)
		try = func(p, taken int, sum int64) {
			if p == n {
				most = max(most, sum)
				return
			}
			for i := range n {
				if taken>>i&1 == 0 {
					try(p+1, taken|1<<i, sum+value[i*n+p])
				}
			}
		}
		try(0, 0, 0)
		require.Equal(t, most, total, "seed %d", seed)
	}
}

func TestNear(t *testing.T) {
	w := &world{members: []*tangramv1.Member{{Pod: "a", Node: "x"}, {Pod: "a", Node: "x"}, {Pod: "b", Node: "x"}, {Pod: "a", Node: "y"},
		{Pod: "a"}, {Pod: "a"}, {Node: "x"}, {Node: "x"}, {}, {Pod: "c", Node: "z", NvlinkDomain: "f", Rail: "r"}, {Pod: "d", Node: "z", NvlinkDomain: "g"},
		{Pod: "e", Node: "u", NvlinkDomain: "f", Rail: "s"}, {Pod: "f", Node: "v", NvlinkDomain: "h", Rail: "r"}}}
	for _, c := range []struct {
		a, b uint32
		want int
	}{{0, 1, 0}, {0, 2, 1}, {0, 3, 4}, {4, 5, 0}, {0, 4, 4}, {6, 7, 1}, {6, 0, 1}, {8, 8, 4}, {8, 4, 4}, {9, 10, 1}, {9, 11, 2}, {9, 12, 3}, {10, 11, 4},
		{11, 12, 4}, {9, 0, 4}} {
		require.Equal(t, c.want, w.near(c.a, c.b), "%d and %d", c.a, c.b)
		require.Equal(t, c.want, w.near(c.b, c.a), "%d and %d", c.b, c.a)
	}
}
