package bound

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func view(t *testing.T, granules, experts uint32, tail uint64) *geometry.View {
	t.Helper()
	v, err := geometry.New(&tangramv1.Geometry{Layers: 1, MoeLayers: []uint32{0}, Hidden: 1, MoeInner: granules, GranuleRows: 1,
		Experts: experts, GranuleBytes: 10, ExpertTailBytes: tail, DenseBytes: 7, QueryHeads: 1, KvHeads: 1, PageBytes: 256})
	require.NoError(t, err)
	return v
}

// somebody returns n random ranks for a target.
func somebody(r *rand.Rand, n int) (target []uint32) {
	for i := range n {
		target = append(target, uint32(i+r.IntN(2)*100))
	}
	return target
}

// somehow places the experts on random ranks of the target, and sometimes on others.
func somehow(r *rand.Rand, v *geometry.View, target []uint32) [][]Held {
	held := make([][]Held, v.Proto.Experts)
	for e := range held {
		for range r.IntN(4) {
			start := uint32(r.IntN(int(v.Granules)))
			rank := target[r.IntN(len(target))]
			if r.IntN(3) == 0 { // inside the target or not
				rank = uint32(r.IntN(120)) + uint32(r.IntN(2)*1000)
			}
			held[e] = append(held[e], Held{Rank: rank, Run: geometry.Run{Start: start, Count: 1 + uint32(r.IntN(int(v.Granules-start)))}})
		}
	}
	return held
}

// brute tries every target layout of the shape: owners group by group, and every seating.
type brute struct {
	v        *geometry.View
	held     [][]Held
	target   []uint32
	g        int
	seatings [][]int
}

func (b brute) cost(rank uint32, e int, want geometry.Run) uint64 {
	lacks, any := uint64(0), false
	for x := want.Start; x < want.End(); x++ {
		has := false
		for _, h := range b.held[e] {
			has = has || (h.Rank == rank && x >= h.Run.Start && x < h.Run.End())
		}
		if !has {
			lacks++
		}
	}
	for _, h := range b.held[e] {
		any = any || h.Rank == rank
	}
	bytes := lacks * b.v.Proto.GranuleBytes
	if lacks > 0 && !any {
		bytes += b.v.Proto.ExpertTailBytes
	}
	return bytes
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{{}}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			q := append(append(append([]int{}, p[:i]...), n-1), p[i:]...)
			out = append(out, q)
		}
	}
	return out
}

// seated is the minimum cost of a group for these experts with one common order of its ranks.
func (b brute) seated(group int, experts ...int) uint64 {
	least := ^uint64(0)
	for _, seats := range b.seatings {
		sum := uint64(0)
		for _, e := range experts {
			for p, seat := range seats {
				sum += b.cost(b.target[group*b.g+seat], e, geometry.ShardOf(b.v.Granules, uint32(b.g), uint32(e), uint32(p)))
			}
		}
		least = min(least, sum)
	}
	return least
}

// best returns the minimum over all layouts, and the minimum if each expert could have its own order.
func (b brute) best() (together, alone uint64) {
	groups, experts := len(b.target)/b.g, len(b.held)
	together, alone = ^uint64(0), ^uint64(0)
	owned := make([][]int, groups)
	var deal func(e int)
	deal = func(e int) {
		if e == experts {
			sum, each := uint64(0), uint64(0)
			for j, own := range owned {
				if len(own) < experts/groups {
					return
				}
				sum += b.seated(j, own...)
				for _, x := range own {
					each += b.seated(j, x)
				}
			}
			together, alone = min(together, sum), min(alone, each)
			return
		}
		for j := range groups {
			if len(owned[j]) < (experts+groups-1)/groups {
				owned[j] = append(owned[j], e)
				deal(e + 1)
				owned[j] = owned[j][:len(owned[j])-1]
			}
		}
	}
	deal(0)
	return together, alone
}

func TestBoundMatchesExhaustiveSearch(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	reached, several := 0, 0
	for range 1500 {
		granules, experts := 1+uint32(r.IntN(6)), 1+r.IntN(5)
		v := view(t, granules, uint32(experts), uint64(r.IntN(2)*3))
		g := 1 + r.IntN(4)
		n := g * (1 + r.IntN(4))
		if n/g > experts || n > 6 {
			continue
		}
		b := brute{v: v, g: g, seatings: permutations(g), target: somebody(r, n)}
		b.held = somehow(r, v, b.target)
		got := NewMemo(v).Layer(b.held, b.target, uint32(g))
		want, alone := b.best()
		if g == 1 || g == n {
			require.Equal(t, want, got, "g %d of %d ranks, %d experts of %d granules: %v", g, n, experts, granules, b.held)
			continue
		}
		several++
		require.Equal(t, alone, got, "%d groups of %d, %d experts of %d granules: %v", n/g, g, experts, granules, b.held)
		if got == want {
			reached++
		}
	}
	t.Logf("several groups of g > 1: the bound is reached in %d of %d cases", reached, several)
	require.Positive(t, reached)
}

// A memo with other layers returns the same for a new one.
func TestSharedMemoMatchesNewMemo(t *testing.T) {
	const seed = 3
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		v := view(t, 1+uint32(r.IntN(2)), 1+uint32(r.IntN(3)), uint64(r.IntN(2)*3))
		memo := NewMemo(v)
		for range 60 {
			g := 1 + r.IntN(2)
			n := g * (1 + r.IntN(2))
			target := somebody(r, n)
			held := somehow(r, v, target)
			require.Equal(t, NewMemo(v).Layer(held, target, uint32(g)), memo.Layer(held, target, uint32(g)), "groups of %d, target %v: %v", g, target, held)
		}
	}
}

// Layers with equal holdings are computed once. Different experts count as equal if their shards are, and holdings of
// leaving ranks do not count.
func TestMemoReusesLayersWithEqualHoldings(t *testing.T) {
	v, target := view(t, 2, 4, 3), []uint32{5, 6, 7, 8}
	on := func(rank uint32) []Held { return []Held{{Rank: rank, Run: geometry.Run{Count: 1}}} }
	memo := NewMemo(v)
	first := memo.Layer([][]Held{on(5), on(6), on(7), on(8)}, target, 2)
	require.Len(t, memo.known, 1)
	for key := range memo.known {
		memo.known[key] = first + 1000 // to detect that it is used
	}
	require.Equal(t, first+1000, memo.Layer([][]Held{on(5), on(6), on(7), on(8)}, target, 2))
	require.Equal(t, first+1000, memo.Layer([][]Held{on(7), on(8), on(5), on(6)}, target, 2))
	require.Equal(t, first+1000, memo.Layer([][]Held{append(on(9), on(5)...), on(6), on(7), append(on(8), on(9)...)}, target, 2))
	require.Len(t, memo.known, 1)
	memo.Layer([][]Held{on(6), on(5), on(7), on(8)}, target, 2) // another shard of each
	require.Len(t, memo.known, 2)
}

// Experts with a given placement: each rank receives the bytes that it lacks, whatever other ranks hold.
func TestPlacedCountsMissingBytesPerRank(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		v := view(t, 1+uint32(r.IntN(6)), 1+uint32(r.IntN(5)), uint64(r.IntN(2)*3))
		target := somebody(r, 1+r.IntN(4))
		b := brute{v: v, held: somehow(r, v, target)}
		placed, want := make([][]uint32, len(target)), uint64(0)
		for i, rank := range target {
			for e := range v.Proto.Experts {
				if r.IntN(2) == 0 {
					placed[i] = append(placed[i], e)
					want += b.cost(rank, int(e), geometry.Run{Count: v.Granules})
				}
			}
		}
		require.Equal(t, want, Placed(v, b.held, target, placed), "%v of %v on %v", placed, b.held, target)
	}
}

func TestDenseCountsWeightsOncePerMissingRank(t *testing.T) {
	v := view(t, 1, 1, 0)
	for lacking, want := range map[int]uint64{0: 0, 1: 7, 3: 21} {
		require.Equal(t, want, Dense(v, lacking))
	}
}
