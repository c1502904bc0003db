package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// spread places experts: each once, and some again on other ranks.
func spread(dice *rand.Rand, experts, ranks int) [][]int32 {
	out := make([][]int32, ranks)
	for e := range experts {
		for i, r := range dice.Perm(ranks) {
			if i == 0 || dice.IntN(3) == 0 {
				out[r] = append(out[r], int32(e))
			}
		}
		if r := dice.IntN(ranks); e%3 == 0 {
			out[r] = append(out[r], Empty)
		}
	}
	return out
}

// played counts the ranks' work, token by token: a rank's own replica first, otherwise replicas in turn.
func played(sources [][]float64, ranks [][]int32) []float64 {
	out := make([]float64, len(ranks))
	for source, loads := range sources {
		for e, n := range loads {
			var holders []int
			for r, slots := range ranks {
				for _, held := range slots {
					if held == int32(e) {
						holders = append(holders, r)
					}
				}
			}
			twice := len(slices.Compact(slices.Clone(holders))) < len(holders)
			for turn := range int(n) {
				if !twice && slices.Contains(holders, source) {
					out[source]++
				} else {
					out[holders[turn%len(holders)]]++
				}
			}
		}
	}
	return out
}

func TestRankLoadsFromMatchSimulation(t *testing.T) {
	const each = 60 // a multiple of 1 to 6 replicas
	dice := rand.New(rand.NewPCG(3, 0))
	unlike, doubled := 0, 0
	for round := range 200 {
		experts, ranks := 1+dice.IntN(8), 1+dice.IntN(6)
		placed := spread(dice, experts, ranks)
		if round%4 == 0 && len(placed[0]) > 0 && placed[0][0] != Empty && len(placed[0]) < 6 {
			if held := placed[0][0]; count(placed, held) < 6 {
				placed[0] = append(placed[0], held)
				doubled++
			}
		}
		sources, alike, all := make([][]float64, ranks), make([][]float64, ranks), make([]float64, experts)
		for r := range sources {
			for e := range experts {
				sources[r] = append(sources[r], float64(dice.IntN(4)*each))
				alike[r] = append(alike[r], float64(each*(1+e)))
				all[e] += sources[r][e]
			}
		}
		got, err := RankLoadsFrom(sources, placed)
		require.NoError(t, err)
		require.InDeltaSlice(t, played(sources, placed), got, 1e-9, "%v %v", sources, placed)

		// With equal parts assumed: the error is at most a rank's part for the replicas that it or another holds.
		even, err := RankLoads(all, placed)
		require.NoError(t, err)
		for r, slots := range placed {
			bound := 0.0
			for _, e := range slots {
				if e == Empty || count(placed, e) == 1 {
					continue
				}
				most := 0.0
				for holder := range placed {
					if slices.Contains(placed[holder], e) {
						most = max(most, sources[holder][e])
					}
				}
				bound += most * (1 - 1/float64(count(placed, e)))
			}
			require.LessOrEqual(t, math.Abs(got[r]-even[r]), bound+1e-9)
			if got[r] != even[r] {
				unlike++
			}
		}

		// With equal parts.
		got, err = RankLoadsFrom(alike, placed)
		require.NoError(t, err)
		for e := range all {
			all[e] = float64(ranks * each * (1 + e))
		}
		even, err = RankLoads(all, placed)
		require.NoError(t, err)
		require.InDeltaSlice(t, even, got, 1e-9)
	}
	require.Greater(t, unlike, 100)
	require.Greater(t, doubled, 10)
}

func count(ranks [][]int32, expert int32) (n int) {
	for _, slots := range ranks {
		for _, e := range slots {
			if e == expert {
				n++
			}
		}
	}
	return n
}

func TestBalancednessFrom(t *testing.T) {
	placed := Placement{{{0, 1}, {0, 2}, {3, Empty}}, {{0, 3}, {1}, {2}}}
	loads := [][]float64{{12, 2, 4, 6}, {1, 2, 3, 4}}
	even, err := Balancedness(loads, placed)
	require.NoError(t, err)
	third := 1. / 3
	got, err := BalancednessFrom(Sourced(loads, []float64{third, third, third}), placed)
	require.NoError(t, err)
	require.InDeltaSlice(t, even.Layers, got.Layers, 1e-12)
	require.InDelta(t, even.Aggregate, got.Aggregate, 1e-12)
	// Half of all from rank 0: it takes its 6 and half of rank 2's 3 of expert 0, and 2 of expert 1 (9.5). Rank 1 takes
	// 3, 1.5 and 4.
	got, err = BalancednessFrom(Sourced(loads, []float64{.5, .25, .25}), placed)
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{8 / 9.5, (10. / 3) / 5}, got.Layers, 1e-12)
	require.InDelta(t, (8+10./3)/(9.5+5), got.Aggregate, 1e-12)
}

func TestRankLoadsFromRejectsInvalidSources(t *testing.T) {
	placed := [][]int32{{0}, {1}}
	for want, sources := range map[string][][]float64{
		"1 ranks bring loads, 2 have slots":                {{1, 1}},
		"rank 1 brings loads of 1 experts, rank 0 of 2":    {{1, 1}, {1}},
		"rank 1, expert 0: load is -1":                     {{1, 1}, {-1, 1}},
		"expert 2 has a load of 1 and no slot on any of 2": {{0, 0, 1}, {0, 0, 0}},
	} {
		_, err := RankLoadsFrom(sources, placed)
		require.ErrorContains(t, err, want)
		_, err = BalancednessFrom([][][]float64{{{1, 1}, {0, 1}}, sources}, Placement{placed, placed})
		require.ErrorContains(t, err, "layer 1: load: ")
		require.ErrorContains(t, err, want)
	}
	_, err := BalancednessFrom(nil, nil)
	require.ErrorContains(t, err, "sources of 0 layers")
}
