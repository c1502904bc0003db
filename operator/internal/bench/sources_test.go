package bench

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/load"
)

// partsOf returns the shares of the ranks in each expert's tokens, [expert][rank], cumulative.
func partsOf(dice *rand.Rand, uneven, topics float64) [][]float64 {
	brings := make([]float64, predictRanks)
	for r := range brings {
		brings[r] = 1 + uneven*(2*dice.Float64()-1)
	}
	out := make([][]float64, predictExperts)
	for e := range out {
		sum := 0.0
		for _, b := range brings {
			sum += b * math.Exp(topics*dice.NormFloat64())
			out[e] = append(out[e], sum)
		}
	}
	return out
}

// sourcesOf draws the source ranks of a layer's tokens, [rank][expert].
func sourcesOf(dice *rand.Rand, tokens []float64, parts [][]float64) [][]float64 {
	out := make([][]float64, predictRanks)
	for r := range out {
		out[r] = make([]float64, len(tokens))
	}
	for e, n := range tokens {
		for range int(n) {
			u, r := dice.Float64()*parts[e][predictRanks-1], 0
			for u >= parts[e][r] {
				r++
			}
			out[r][e]++
		}
	}
	return out
}

// On the loads of predict, whose placements assume even use of replicas: the effect of preferring local replicas on the
// balance of the next window. Ranks route equal numbers of tokens, unequal ones, or have their own topics: each rank's
// share of an expert then varies by a log-normal factor.
func TestLocalReplicasFirstKeepsBalance(t *testing.T) {
	const windows, seeds = 2, 2
	for _, d := range drifts {
		for _, from := range []struct {
			name           string
			uneven, topics float64
			atMost         float64 // of balance that it may lose
		}{{"alike", 0, 0, .001}, {"from 0.7 to 1.3 of the mean", .3, 0, .001}, {"with topics", .3, 1, .02}} {
			var turn, local tally
			for seed := range uint64(seeds) {
				g, err := load.NewLogNormal(load.Shape{Layers: predictLayers, Experts: predictExperts, Assignments: d.assignments, Seed: seed + 1}, d.sigma, d.rho)
				require.NoError(t, err)
				dice := rand.New(rand.NewPCG(seed, 7))
				parts := partsOf(dice, from.uneven, from.topics)
				for range windows {
					plan, err := packAll(g.Next())
					require.NoError(t, err)
					window := g.Next()
					require.NoError(t, score(&turn, window, plan))
					for l := range window {
						ranks, err := load.RankLoadsFrom(sourcesOf(dice, window[l], parts), plan[l])
						require.NoError(t, err)
						local.add(ranks)
					}
				}
			}
			t.Logf("%s, sources %s: %.4f in turn, %.4f with local replicas first", d.name, from.name, turn.balance(), local.balance())
			require.GreaterOrEqual(t, local.balance(), turn.balance()-from.atMost)
		}
	}
}
