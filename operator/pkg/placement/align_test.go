package placement

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// permutations of 0..n-1.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for at := range n {
			out = append(out, slices.Insert(slices.Clone(p), at, n-1))
		}
	}
	return out
}

// Equivalent ranks of a free plan are renamed so that as little as possible moves, and a rank's kept experts stay in
// their slots.
func TestSeatsMinimizeMoves(t *testing.T) {
	var p Planner
	for seed := range worlds(100) {
		r := rand.New(rand.NewPCG(seed, 22))
		experts := 2 + r.IntN(8)
		pr := &Problem{Layers: []Layer{{}, {}}, Ranks: anyRanks(r, experts)}
		for l := range pr.Layers {
			for range experts {
				pr.Layers[l].Load = append(pr.Layers[l].Load, whole(r))
			}
		}
		free, err := p.Full(pr, Options{})
		require.NoError(t, err)
		lists := make([][][]int32, 2)
		for l := range lists { // the old placement: on more ranks or fewer, with other slots, some empty, no duplicates
			for range max(1, len(pr.Ranks)+r.IntN(3)-1) {
				var held []int32
				for _, e := range r.Perm(experts)[:r.IntN(min(experts, 5))] {
					held = append(held, int32(e)-int32(r.IntN(4)/3)*int32(e+1))
				}
				lists[l] = append(lists[l], held)
			}
			lists[l] = lists[l][:min(len(lists[l]), len(lists[0]))]
			for len(lists[l]) < len(lists[0]) {
				lists[l] = append(lists[l], nil)
			}
		}
		pr.Old, err = FromLists(lists, experts, 1)
		require.NoError(t, err)
		got, err := p.Full(pr, Options{})
		require.NoError(t, err)
		require.NoError(t, verify(pr, got), "seed %d", seed)
		alike := func(a, b int) bool {
			return min(pr.Ranks[a].Slots, experts) == min(pr.Ranks[b].Slots, experts) && pr.Ranks[a].speed() == pr.Ranks[b].speed()
		}
		if len(pr.Ranks) > 5 {
			continue // too many permutations
		}
		for l := range pr.Layers {
			least := 1 << 30
			for _, order := range permutations(len(pr.Ranks)) {
				n, ok := 0, true
				for g, from := range order {
					ok = ok && alike(g, from)
					for _, e := range free.Placement.Rank(l, from) {
						if !holds(pr.Old, l, g, e) {
							n++
						}
					}
				}
				if ok {
					least = min(least, n)
				}
			}
			require.Equal(t, least, got.Layers[l].Moved, "seed %d", seed)
			for g := range min(pr.Old.Ranks(), len(pr.Ranks)) {
				now := got.Placement.Rank(l, g)
				for i, e := range pr.Old.Rank(l, g) {
					if i < len(now) && e != Empty && slices.Contains(now, e) {
						require.Equal(t, e, now[i], "seed %d: rank %d keeps expert %d where it lay", seed, g, e)
					}
				}
			}
		}
	}
}

// Without moves to save, the renaming serves tokens nearest to their source ranks.
func TestSeatsPreferNearSources_WhenNoMovesAreSaved(t *testing.T) {
	var p Planner
	for seed := range worlds(60) {
		r := rand.New(rand.NewPCG(seed, 23))
		pr := &Problem{Ranks: evenRanks(4, 2), Layers: []Layer{{}}}
		for g := range pr.Ranks {
			pr.Ranks[g].Node = g / 2
			row := make([]float64, 6)
			for e := range row {
				row[e] = float64(r.IntN(1000))
			}
			pr.Layers[0].BySource = append(pr.Layers[0].BySource, row)
		}
		plain, err := p.Full(pr, Options{})
		require.NoError(t, err)
		near, err := p.Full(pr, Options{Locality: 1})
		require.NoError(t, err)
		require.NoError(t, verify(pr, near), "seed %d", seed)
		require.NoError(t, verify(pr, plain), "seed %d", seed)
		best := 0.0
		for _, order := range permutations(4) {
			local, close := served(pr, plain.Placement, 0, order)
			best = max(best, local+close)
		}
		f := near.Layers[0]
		require.GreaterOrEqual(t, f.Local+f.Near, best*(1-1e-9), "seed %d", seed)
	}
}

// Worked by hand: the old content of each rank, the plan by the order of its ranks, and the seating.
func TestSeats(t *testing.T) {
	for what, c := range map[string]struct {
		ranks           []Rank
		old, plan, want [][]int32
	}{
		"each content where most of it lay":     {evenRanks(2, 2), [][]int32{{0, 1}, {2, 3}}, [][]int32{{3, 2}, {0, 4}}, [][]int32{{0, 4}, {2, 3}}},
		"what stays in its slot, others around": {evenRanks(1, 5), [][]int32{{0, 1, 2}}, [][]int32{{4, 2, 3, 5, 1}}, [][]int32{{4, 1, 2, 3, 5}}},
		"the first slot counts like others":     {evenRanks(2, 1), [][]int32{{0}, {1}}, [][]int32{{2}, {0}}, [][]int32{{0}, {2}}},
		"all slots of an expert count":          {evenRanks(3, 1), [][]int32{{0}, {0}, {0}}, [][]int32{{1}, {0}, {0}}, [][]int32{{1}, {0}, {0}}},
		// Rank 1 holds one of {2, 6}. The dead rank held both of {0, 1}, which must not bring these to rank 1.
		"what lay on a dead rank does not pull": {
			[]Rank{{}, {Slots: 2}, {Slots: 2}},
			[][]int32{{0, 1}, {2, 3}, {4, 5}}, [][]int32{{}, {2, 6}, {0, 1}}, [][]int32{{}, {2, 6}, {0, 1}},
		},
		"nor what lay on a rank that is gone": {evenRanks(2, 1), [][]int32{{2}, {1}, {0}}, [][]int32{{1}, {0}}, [][]int32{{0}, {1}}},
		"unlike ranks keep their contents": {
			[]Rank{{Slots: 1}, {Slots: 1, Speed: 2}, {Slots: 2}, {Slots: 1}},
			[][]int32{{0}, {1}, {2, 3}, {4}}, [][]int32{{4}, {0}, {1, 2}, {0}}, [][]int32{{0}, {0}, {2, 1}, {4}},
		},
	} {
		pr := &Problem{Layers: []Layer{{Load: []float64{1, 1, 1, 1, 1, 1, 1}}}, Ranks: append(slices.Clone(c.ranks), Rank{Slots: 7, Speed: 3})} // the last has room for all, and is like no other
		var err error
		pr.Old, err = FromLists([][][]int32{c.old}, 7, 0)
		require.NoError(t, err)
		checked, err := pr.check()
		require.NoError(t, err)
		var p Planner
		r := p.begin(pr, checked)
		s := &p.state
		s.begin(checked.load[0], r.Placement.Layer(0))
		for g, held := range c.plan {
			for i, e := range held {
				s.put(s.start[g]+int32(i), e)
			}
		}
		p.ask.ready(s, pr, 0, Options{})
		p.align.seat(s, pr, &p.ask, 0)
		require.Equal(t, c.want, r.Placement.Lists()[0][:len(c.want)], what)
	}
}
