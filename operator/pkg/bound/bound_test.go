package bound

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// brute tries every target layout of the shape: owners group by group, and every seating.
type brute struct {
	v      *geometry.View
	held   [][]Held
	target []uint32
	g      int
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

func (b brute) best() uint64 {
	groups, experts := len(b.target)/b.g, len(b.held)
	seatings := permutations(b.g)
	least := ^uint64(0)
	owners := make([]int, experts)
	count := make([]int, groups)
	var deal func(e int)
	deal = func(e int) {
		if e == experts {
			for _, c := range count {
				if c < experts/groups {
					return
				}
			}
			total := uint64(0)
			for j := range groups {
				cheapest := ^uint64(0)
				for _, seats := range seatings {
					sum := uint64(0)
					for x, owner := range owners {
						for p := 0; owner == j && p < b.g; p++ {
							sum += b.cost(b.target[j*b.g+seats[p]], x, geometry.ShardOf(b.v.Granules, uint32(b.g), uint32(x), uint32(p)))
						}
					}
					cheapest = min(cheapest, sum)
				}
				total += cheapest
			}
			least = min(least, total)
			return
		}
		for j := range groups {
			if count[j] < (experts+groups-1)/groups {
				owners[e] = j
				count[j]++
				deal(e + 1)
				count[j]--
			}
		}
	}
	deal(0)
	return least
}

func TestBoundIsWhatTryingEveryLayoutGives(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	reached, several := 0, 0
	for range 1500 {
		granules, experts := 1+uint32(r.IntN(6)), 1+r.IntN(5)
		v, err := geometry.New(&tangramv1.Geometry{Layers: 1, MoeLayers: []uint32{0}, Hidden: 1, MoeInner: granules, GranuleRows: 1,
			Experts: uint32(experts), GranuleBytes: 10, ExpertTailBytes: uint64(r.IntN(2) * 3), QueryHeads: 1, KvHeads: 1, PageBytes: 256})
		require.NoError(t, err)
		g := 1 + r.IntN(4)
		n := g * (1 + r.IntN(4))
		if uint32(g) > granules || n/g > experts || n > 6 {
			continue
		}
		b := brute{v: v, g: g, held: make([][]Held, experts)}
		for i := range n {
			b.target = append(b.target, uint32(i+r.IntN(2)*100))
		}
		for e := range b.held {
			for range r.IntN(4) {
				start := uint32(r.IntN(int(granules)))
				b.held[e] = append(b.held[e], Held{Rank: b.target[r.IntN(n)] + uint32(r.IntN(3)/2*1000),
					Run: geometry.Run{Start: start, Count: 1 + uint32(r.IntN(int(granules-start)))}})
			}
		}
		got, want := NewMemo(v).Layer(b.held, b.target, uint32(g)), b.best()
		if g == 1 || g == n {
			require.Equal(t, want, got, "g %d of %d ranks, %d experts of %d granules: %v", g, n, experts, granules, b.held)
			continue
		}
		several++
		require.LessOrEqual(t, got, want)
		if got == want {
			reached++
		}
	}
	t.Logf("several groups of g > 1: the bound is reached in %d of %d cases", reached, several)
	require.Positive(t, reached)
}
