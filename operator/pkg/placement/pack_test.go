package placement

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// counted is a planner whose layer has its replicas counted, on random ranks.
func counted(t *testing.T, seed uint64, p *Planner) (pr *Problem, star float64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 21))
	experts := 1 + r.IntN(5)
	pr = &Problem{Layers: []Layer{{}}, Ranks: anyRanks(r, experts)}
	for range experts {
		pr.Layers[0].Load = append(pr.Layers[0].Load, float64(r.IntN(5))*27720)
	}
	c, err := pr.check()
	require.NoError(t, err)
	p.state.shape(c)
	p.state.begin(c.load[0], make([]int32, p.state.slots))
	return pr, p.replicate()
}

// realisable: these numbers of replicas fit on distinct ranks (Gale and Ryser).
func realisable(s *state, count []int32) bool {
	sorted := slices.Clone(count)
	slices.SortFunc(sorted, func(a, b int32) int { return cmp.Compare(b, a) })
	sum := int32(0)
	for k, n := range sorted {
		sum += n
		room := int32(0)
		for g := range s.ranks {
			room += min(s.start[g+1]-s.start[g], int32(k+1))
		}
		if sum > room {
			return false
		}
	}
	return true
}

// The counts use all slots, are realisable, and minimize the heaviest replica.
func TestReplicateMinimizesHeaviestReplica(t *testing.T) {
	var p Planner
	for seed := range uint64(150) {
		counted(t, seed, &p)
		_, star := counted(t, seed, &p)
		s := &p.state
		heaviest := func(count []int32) float64 {
			most := 0.0
			for e, n := range count {
				most = max(most, s.w[e]/float64(n))
			}
			return most
		}
		total, least := 0, heaviest(slices.Repeat([]int32{1}, s.experts))
		for _, n := range s.count {
			total += int(n)
		}
		require.Equal(t, s.slots, total)
		require.True(t, realisable(s, s.count), "seed %d: %v", seed, s.count)
		count := slices.Repeat([]int32{1}, s.experts)
		for e := 0; e < s.experts; { // all possible counts
			if count[e]++; int(count[e]) > len(s.live) {
				count[e] = 1
				e++
				continue
			}
			e = 0
			if x := heaviest(count); x < least && realisable(s, count) {
				least = x
			}
		}
		require.Equal(t, least, heaviest(s.count), "seed %d", seed)
		require.Equal(t, least, star, "seed %d", seed)
		for e, n := range s.count {
			require.Equal(t, s.w[e]/float64(n), s.share[e])
			require.Equal(t, s.w[e]/float64(n+1), s.more[e])
		}
	}
}

// Two ranks of one slot and two of four, with the first and the last equal: two very hot experts can have six replicas
// together, min(s, 2) on each rank, though each alone could have four.
func TestReplicateUsesAllRanks_WhenSlotsDiffer(t *testing.T) {
	pr := &Problem{Layers: []Layer{{Load: []float64{360, 360, 1, 2}}}, Ranks: []Rank{{Slots: 1}, {Slots: 4}, {Slots: 4}, {Slots: 1}}}
	c, err := pr.check()
	require.NoError(t, err)
	var p Planner
	p.state.shape(c)
	p.state.begin(c.load[0], make([]int32, p.state.slots))
	require.Equal(t, 120.0, p.replicate())
	require.Equal(t, []int32{3, 3, 2, 2}, p.state.count)
}

// Longest first, each on the rank that would finish first; by room if that fails.
func TestPackIsLongestFirst(t *testing.T) {
	var p Planner
	byRoom := 0
	for seed := range uint64(400) {
		pr, _ := counted(t, seed, &p)
		s := &p.state
		order := make([]int32, s.experts)
		for e := range order {
			order[e] = int32(e)
		}
		slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(s.share[b], s.share[a]) })
		// by: which of two ranks comes first for an expert. pack returns false if an expert finds no rank.
		pack := func(by func(a, b int32, load []float64, room []int, share float64) int) ([][]int32, bool) {
			held, load, room := make([][]int32, s.ranks), make([]float64, s.ranks), make([]int, s.ranks)
			for g := range room {
				room[g] = int(s.start[g+1] - s.start[g])
			}
			for _, e := range order {
				for range s.count[e] {
					free := slices.DeleteFunc(slices.Clone(s.live), func(g int32) bool { return room[g] == 0 || slices.Contains(held[g], e) })
					if len(free) == 0 {
						return nil, false
					}
					g := slices.MinFunc(free, func(a, b int32) int { return by(a, b, load, room, s.share[e]) })
					held[g], load[g], room[g] = append(held[g], e), load[g]+s.share[e], room[g]-1
				}
			}
			return held, true
		}
		want, ok := pack(func(a, b int32, load []float64, _ []int, share float64) int {
			x, y := pr.Ranks[a].speed(), pr.Ranks[b].speed()
			return cmp.Or(cmp.Compare((load[a]+share)/x, (load[b]+share)/y), cmp.Compare(y, x), cmp.Compare(a, b))
		})
		if !ok {
			byRoom++
			want, ok = pack(func(a, b int32, load []float64, room []int, _ float64) int {
				return cmp.Or(cmp.Compare(room[b], room[a]), cmp.Compare(load[a]/pr.Ranks[a].speed(), load[b]/pr.Ranks[b].speed()), cmp.Compare(a, b))
			})
			require.True(t, ok, "seed %d", seed)
		}
		p.pack()
		for g := range want {
			require.Equal(t, want[g], append([]int32(nil), s.slot[s.start[g]:s.start[g+1]]...), "seed %d: rank %d", seed, g)
		}
		requireSound(t, s, slices.Clone(s.slot), s.has)

		want, ok = pack(func(a, b int32, load []float64, room []int, _ float64) int {
			return cmp.Or(cmp.Compare(room[b], room[a]), cmp.Compare(load[a]/pr.Ranks[a].speed(), load[b]/pr.Ranks[b].speed()), cmp.Compare(a, b))
		})
		require.True(t, ok, "by room there is always a way")
		p.packByRoom()
		for g := range want {
			require.Equal(t, want[g], append([]int32(nil), s.slot[s.start[g]:s.start[g+1]]...), "seed %d: rank %d by room", seed, g)
		}
		requireSound(t, s, slices.Clone(s.slot), s.has)
	}
	require.Greater(t, byRoom, 3)
}
