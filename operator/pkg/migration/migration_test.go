package migration

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/placement"
)

// plans are two placements of a random problem, with dead, new, uneven and slow ranks.
func plans(t *testing.T, seed uint64) (old, now *placement.Placement, load [][]float64, ranks []placement.Rank, gone []bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	n, layers := 2+r.IntN(9), 1+r.IntN(4)
	pr := &placement.Problem{Ranks: make([]placement.Rank, n)}
	slots := 0
	for g := range pr.Ranks {
		pr.Ranks[g] = placement.Rank{Slots: 2 + r.IntN(5), Speed: float64(1 + r.IntN(2))}
		slots += pr.Ranks[g].Slots
	}
	experts := 4 + r.IntN(max(1, slots-7))
	for range layers {
		pr.Layers = append(pr.Layers, placement.Layer{Load: loads(r, experts)})
	}
	var p placement.Planner
	first, err := p.Full(pr, placement.Options{})
	require.NoError(t, err)
	gone = make([]bool, n)
	if k := r.IntN(n); slots-pr.Ranks[k].Slots >= experts && r.IntN(2) == 0 {
		gone[k], pr.Ranks[k].Slots = true, 0
	}
	for l := range pr.Layers {
		pr.Layers[l].Load = loads(r, experts)
		load = append(load, pr.Layers[l].Load)
	}
	pr.Old = first.Placement
	plan := p.Incremental
	if r.IntN(2) == 0 {
		plan = p.Full
	}
	second, err := plan(pr, placement.Options{})
	require.NoError(t, err)
	return first.Placement, second.Placement, load, pr.Ranks, gone
}

func loads(r *rand.Rand, n int) []float64 {
	out := make([]float64, n)
	for e := range out {
		out[e] = math.Exp(1.5 * r.NormFloat64())
	}
	return out
}

// Applying the moves to the ranks' holdings gives the new placement, each move from a holder.
func TestMovesAreExactlyMissingExperts(t *testing.T) {
	for seed := range uint64(60) {
		old, now, _, _, gone := plans(t, seed)
		moves, err := Moves(old, now, gone)
		require.NoError(t, err)
		type place struct{ l, g, e int32 }
		arrives := map[place]bool{}
		for _, m := range moves {
			require.False(t, arrives[place{m.Layer, m.To, m.Expert}], "seed %d: twice", seed)
			arrives[place{m.Layer, m.To, m.Expert}] = true
			require.Equal(t, m.Expert, now.Rank(int(m.Layer), int(m.To))[m.Slot])
			for g := range old.Ranks() {
				has := slices.Contains(old.Rank(int(m.Layer), g), m.Expert) && !gone[g]
				require.Equal(t, has, slices.Contains(m.From, int32(g)), "seed %d", seed)
			}
		}
		for l := range now.Layers() {
			for g := range now.Ranks() {
				for _, e := range now.Rank(l, g) {
					held := !gone[g] && slices.Contains(old.Rank(l, g), e)
					require.NotEqual(t, held, arrives[place{int32(l), int32(g), e}], "seed %d", seed)
				}
			}
		}
	}
}

// randomMoves among few ranks, some from the checkpoint.
func randomMoves(r *rand.Rand) []Move {
	ranks := 2 + r.IntN(7)
	out := make([]Move, r.IntN(40))
	for k := range out {
		out[k] = Move{To: int32(r.IntN(ranks)), Source: Nowhere}
		for g := range int32(ranks) {
			if g != out[k].To && r.IntN(3) == 0 {
				out[k].From = append(out[k].From, g)
			}
		}
	}
	return out
}

// leastOut is the minimum of the largest out-degree by another method: matching into `limit` places per rank (Kuhn's
// augmenting paths), for increasing limits.
func leastOut(moves []Move) int {
	for limit := 0; ; limit++ {
		sends := map[int32][]int{}
		var try func(k int, seen map[int32]bool) bool
		try = func(k int, seen map[int32]bool) bool {
			for _, g := range moves[k].From {
				if seen[g] {
					continue
				}
				seen[g] = true
				if len(sends[g]) < limit {
					sends[g] = append(sends[g], k)
					return true
				}
				for i, other := range sends[g] {
					if try(other, seen) {
						sends[g][i] = k
						return true
					}
				}
			}
			return false
		}
		all := true
		for k := range moves {
			if len(moves[k].From) > 0 && !try(k, map[int32]bool{}) {
				all = false
				break
			}
		}
		if all {
			return limit
		}
	}
}

// requireEven: no rank could hand over a move, and that rank another, to one that sends two less than the first. Then
// the sorted loads are minimal, not only the largest of them (Harvey et al., theorem 3.1).
func requireEven(t *testing.T, moves []Move, out map[int32]int, seed uint64) {
	t.Helper()
	var reach [8][8]bool
	for _, m := range moves {
		for _, g := range m.From {
			reach[m.Source][g] = true
		}
	}
	for via := range reach {
		for g := range reach {
			for h := range reach {
				reach[g][h] = reach[g][h] || reach[g][via] && reach[via][h]
			}
		}
	}
	for g := range reach {
		for h := range reach {
			require.False(t, reach[g][h] && out[int32(h)]+2 <= out[int32(g)], "seed %d: rank %d can relieve %d", seed, h, g)
		}
	}
}

func TestSourcesAndRounds(t *testing.T) {
	for seed := range uint64(800) {
		moves := randomMoves(rand.New(rand.NewPCG(seed, 2)))
		Sources(moves)
		out, in := map[int32]int{}, map[int32]int{}
		mostOut, degree := 0, 0
		for _, m := range moves {
			in[m.To]++
			degree = max(degree, in[m.To])
			if len(m.From) == 0 {
				require.Equal(t, Nowhere, m.Source)
				continue
			}
			require.Contains(t, m.From, m.Source)
			out[m.Source]++
			mostOut = max(mostOut, out[m.Source])
		}
		require.Equal(t, leastOut(moves), mostOut, "seed %d", seed)
		requireEven(t, moves, out, seed)
		degree = max(degree, mostOut)
		require.Equal(t, degree, Degree(moves))
		require.Equal(t, degree, Rounds(moves), "seed %d", seed)
		type port struct {
			rank, round int32
			sends       bool
		}
		used := map[port]bool{}
		for _, m := range moves {
			require.Less(t, m.Round, int32(degree))
			require.GreaterOrEqual(t, m.Round, int32(0))
			require.False(t, used[port{m.To, m.Round, false}], "seed %d: rank %d receives two in round %d", seed, m.To, m.Round)
			used[port{m.To, m.Round, false}] = true
			if m.Source != Nowhere {
				require.False(t, used[port{m.Source, m.Round, true}], "seed %d: rank %d sends two in round %d", seed, m.Source, m.Round)
				used[port{m.Source, m.Round, true}] = true
			}
		}
	}
}

func peakOf(p *placement.Placement, l int, load []float64, ranks []placement.Rank) float64 {
	count, peak := make([]int, len(load)), 0.0
	for _, e := range p.Layer(l) {
		if e != placement.Empty {
			count[e]++
		}
	}
	for g, k := range ranks {
		sum := 0.0
		for _, e := range p.Rank(l, g) {
			if e != placement.Empty {
				sum += load[e] / float64(count[e]) / cmp.Or(k.Speed, 1)
			}
		}
		peak = max(peak, sum)
	}
	return peak
}

// Cycles respect the limit, each is a valid placement, the peak never rises, lost experts return in the first, and
// without a limit the sum of peaks is no worse than the plan's.
func TestCycles(t *testing.T) {
	for seed := range uint64(60) {
		old, now, load, ranks, gone := plans(t, seed)
		r := rand.New(rand.NewPCG(seed, 3))
		limit := r.IntN(12)
		next, err := Cycle(old, now, load, ranks, limit)
		require.NoError(t, err)
		moves, err := Moves(old, next, gone)
		require.NoError(t, err)
		died := slices.Contains(gone, true)
		if !died {
			require.LessOrEqual(t, len(moves), limit, "seed %d", seed)
		}
		for l := range load {
			seen := map[int32]bool{}
			for g := range ranks {
				held := map[int32]bool{}
				for _, e := range next.Rank(l, g) {
					if e != placement.Empty {
						require.False(t, held[e], "seed %d: layer %d, rank %d holds expert %d twice", seed, l, g, e)
						held[e], seen[e] = true, true
					}
				}
			}
			require.Len(t, seen, now.Experts, "seed %d: layer %d lost an expert", seed, l)
			if !died {
				require.LessOrEqual(t, peakOf(next, l, load[l], ranks), peakOf(old, l, load[l], ranks)*(1+1e-9), "seed %d", seed)
			}
		}
		all, err := Cycle(old, now, load, ranks, math.MaxInt32)
		require.NoError(t, err)
		a, b := 0.0, 0.0
		for l := range load {
			a, b = a+peakOf(all, l, load[l], ranks), b+peakOf(now, l, load[l], ranks)
		}
		require.LessOrEqual(t, a, b*(1+1e-9), "seed %d", seed)
	}
}

func TestBadInput(t *testing.T) {
	p := &placement.Placement{Experts: 2, Start: []int32{0, 1, 2}, Slot: []int32{0, 1}}
	q := &placement.Placement{Experts: 2, Start: []int32{0, 1, 2}, Slot: []int32{0, 1, 1, 0}}
	_, err := Moves(p, q, nil)
	require.ErrorContains(t, err, "the old placement has 1 layers of 2 experts, the new one 2 of 2")
	_, err = Moves(nil, q, nil)
	require.ErrorIs(t, err, ErrInput)
	wide := &placement.Placement{Experts: 3, Start: []int32{0, 1, 2}, Slot: []int32{0, 1}}
	_, err = Moves(p, wide, nil)
	require.ErrorContains(t, err, "1 layers of 2 experts, the new one 1 of 3")
	torn := &placement.Placement{Experts: 2, Start: []int32{0, 1, 2}, Slot: []int32{0}}
	_, err = Moves(p, torn, nil)
	require.ErrorIs(t, err, placement.ErrInput)
	_, err = Cycle(torn, p, [][]float64{{1, 2}}, make([]placement.Rank, 2), 1)
	require.ErrorIs(t, err, placement.ErrInput)
	_, err = Cycle(p, p, nil, make([]placement.Rank, 2), 1)
	require.ErrorContains(t, err, "loads of 0 layers")
	_, err = Cycle(p, p, [][]float64{{1, 2}}, make([]placement.Rank, 2), -1)
	require.ErrorContains(t, err, "at most -1 moves")
	_, err = Cycle(p, p, [][]float64{{1, 2}}, make([]placement.Rank, 3), 1)
	require.ErrorContains(t, err, "on 3 ranks")
	_, err = Cycle(p, p, [][]float64{{1}}, make([]placement.Rank, 2), 1)
	require.ErrorContains(t, err, "layer 0 has loads of 1 experts, want 2")
	require.Zero(t, Rounds(nil))
}
