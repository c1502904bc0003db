package placement

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The result is valid and costs at most as much as staying or as the full plan. It moves nothing in a layer without
// load, and pays for no copy of an expert without load. A second application changes nothing.
func TestLeast_WhenLoadsAreAtTheEdge(t *testing.T) {
	var p Planner
	free := 0
	for seed := range worlds(200) {
		r := rand.New(rand.NewPCG(seed, 42))
		ranks, slots := 2+r.IntN(5), 2+r.IntN(5)
		experts := max(ranks, ranks*slots-r.IntN(ranks*(slots-1)+1))
		draw := func() []float64 {
			out := make([]float64, experts)
			for e := range out {
				if r.IntN(3) > 0 {
					out[e] = float64(r.IntN(10) * r.IntN(100))
				}
			}
			switch r.IntN(4) {
			case 0:
				clear(out)
			case 1:
				clear(out)
				out[r.IntN(experts)] = 1000
			}
			return out
		}
		pr := &Problem{Layers: []Layer{{Load: draw()}, {Load: draw()}}, Ranks: evenRanks(ranks, slots)}
		first, err := p.Full(pr, Options{})
		require.NoError(t, err)
		pr.Old = first.Placement
		pr.Layers = []Layer{{Load: draw()}, {Load: draw()}}
		full, err := p.Full(pr, Options{})
		require.NoError(t, err)
		whole := slices.Clone(full.Placement.Slot)
		price := float64(r.IntN(2)) * .01
		got, err := p.Least(pr, full, Options{Price: price})
		require.NoError(t, err)
		require.Equal(t, whole, full.Placement.Slot, "the full plan is left as it is")
		require.NoError(t, verify(pr, got), "seed %d", seed)
		for l := range pr.Layers {
			load, f := pr.Layers[l].Load, got.Layers[l]
			if slices.Max(load) == 0 {
				require.Equal(t, pr.Old.Layer(l), got.Placement.Layer(l), "seed %d: nothing moves without load", seed)
				continue
			}
			count := make([]int, experts)
			for _, e := range pr.Old.Layer(l) {
				count[e]++
			}
			cost := f.Peak/f.Mean + price*float64(f.Moved)
			require.LessOrEqual(t, cost, peakOf(pr, pr.Old, l, count)/f.Mean+1e-9, "seed %d: no worse than staying", seed)
			require.LessOrEqual(t, cost, full.Layers[l].Peak/f.Mean+price*float64(full.Layers[l].Moved)+StopWithin+1e-9, "seed %d: no worse than the full plan", seed)
			for g := range ranks {
				held := 0
				for _, e := range got.Placement.Rank(l, g) {
					if e != Empty {
						held++
					}
				}
				for _, e := range got.Placement.Rank(l, g) {
					if e != Empty && load[e] == 0 && !slices.Contains(pr.Old.Rank(l, g), e) {
						for h := range ranks { // it moved, so no other rank may hold it unless its rank needs it
							require.True(t, held == 1 || h == g || !slices.Contains(got.Placement.Rank(l, h), e), "seed %d: a copy of expert %d without load", seed, e)
						}
					}
				}
				require.True(t, slices.ContainsFunc(got.Placement.Rank(l, g), func(e int32) bool { return e != Empty }))
			}
			if f.Moved == 0 && full.Layers[l].Moved > 0 {
				free++
			}
		}
		pr.Old = got.Placement
		again, err := p.Full(pr, Options{})
		require.NoError(t, err)
		again, err = p.Least(pr, again, Options{Price: price})
		require.NoError(t, err)
		for l, f := range again.Layers {
			require.True(t, f.Moved == 0 || f.Peak < got.Layers[l].Peak, "seed %d, layer %d: %d moves for no better balance", seed, l, f.Moved)
		}
	}
	require.Positive(t, free)
}

// A new rank has no expert, and a serving rank needs one, even without load.
func TestLeast_WhenRankIsNew(t *testing.T) {
	old, err := FromLists([][][]int32{{{0, 1}, {2, 3}}}, 4, 4)
	require.NoError(t, err)
	pr := &Problem{Layers: []Layer{{Load: make([]float64, 4)}}, Ranks: evenRanks(4, 2), Old: old}
	var p Planner
	full, err := p.Full(pr, Options{})
	require.NoError(t, err)
	got, err := p.Least(pr, full, Options{})
	require.NoError(t, err)
	require.NoError(t, verify(pr, got))
	for g := range 4 {
		require.NotEqual(t, []int32{Empty, Empty}, got.Placement.Rank(0, g))
	}
	require.Equal(t, 2, got.Layers[0].Moved)
	_, err = p.Least(pr, full, Options{Price: -1})
	require.ErrorContains(t, err, "price of a moved slot")
	pr.Old = nil
	got, err = p.Least(pr, full, Options{})
	require.NoError(t, err)
	require.Equal(t, full, got)
}

// Groups that the full plan keeps in nodes are not split to save moves.
func TestLeast_WhenGroupsAreKept(t *testing.T) {
	var p Planner
	kept := 0
	for seed := range worlds(60) {
		r := rand.New(rand.NewPCG(seed, 43))
		pr := &Problem{Layers: []Layer{{Load: randomLoads(r, 32)}}, Ranks: evenRanks(16, 3)}
		for e := range 32 {
			pr.Groups = append(pr.Groups, e/4)
		}
		ungrouped, err := p.Full(pr, Options{Groups: IgnoreGroups})
		require.NoError(t, err)
		pr.Old = ungrouped.Placement
		full, err := p.Full(pr, Options{})
		require.NoError(t, err)
		got, err := p.Least(pr, full, Options{})
		require.NoError(t, err)
		require.NoError(t, verify(pr, got))
		if full.Hierarchical {
			kept++
			load := pr.Layers[0].Load
			require.GreaterOrEqual(t, got.atHome(pr, load, 0), full.atHome(pr, load, 0)-1e-9, "seed %d", seed)
		}
	}
	require.Positive(t, kept)
}
