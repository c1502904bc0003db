package plancli

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
	"tangram.dev/operator/pkg/rebalance"
)

func randomLoads(dice *rand.Rand, layers, experts int) [][]float64 {
	out := make([][]float64, layers)
	for l := range out {
		for range experts {
			out[l] = append(out[l], float64(dice.IntN(10)*dice.IntN(100)))
		}
	}
	return out
}

// The figures of a report equal those computed from the lists that it prints.
func TestBalanceReportMatchesItsPlacement(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 2))
	capped := 0
	for range 80 {
		in := BalanceInput{Loads: randomLoads(dice, 1+dice.IntN(4), 4+dice.IntN(20)), Ranks: 1 + dice.IntN(4), Nodes: 1, Redundant: dice.IntN(8),
			Mode: []string{Full, Incremental}[dice.IntN(2)], MaxMoves: dice.IntN(2) * (1 + dice.IntN(9)), Price: float64(dice.IntN(2)) * .001}
		first, err := Balance(in)
		require.NoError(t, err)
		in.Old, in.Loads = first.Placement, randomLoads(dice, len(in.Loads), len(in.Loads[0])) // a second cycle
		r, err := Balance(in)
		require.NoError(t, err)
		before, err := load.Balancedness(in.Loads, in.Old)
		require.NoError(t, err)
		require.InDelta(t, before.Aggregate, r.All.Now, 1e-9)
		moved, copies := 0, 0
		for l, ranks := range r.Placement {
			peak, total := 0.0, 0.0 // with the weights
			parts := make([]float64, r.Experts)
			for g, held := range ranks {
				mine := 0.0
				for i, e := range held {
					require.True(t, i == 0 || held[i-1] < e, "ascending, each once")
					mine += in.Loads[l][e] * r.Weights[l][g][i]
					parts[e] += r.Weights[l][g][i]
					copies++
					if !contains(in.Old[l][g], e) {
						moved++
					}
				}
				peak, total = max(peak, mine), total+mine
			}
			for e, part := range parts {
				require.InDelta(t, 1, part, 1e-9, "expert %d", e)
			}
			for _, line := range r.Layers {
				if line.Layer == l {
					require.InDelta(t, over(total/float64(r.Ranks), peak), line.Weighted, 1e-6)
				}
			}
		}
		require.Equal(t, moved, r.Moves)
		require.Len(t, r.List, r.Moves)
		require.LessOrEqual(t, copies, r.Slots*r.Ranks*len(in.Loads))
		for i, l := range r.Layers {
			require.True(t, i == 0 || r.Layers[i-1].Now <= l.Now, "worst first")
			require.LessOrEqual(t, l.After, l.Floor+1e-9)
			require.LessOrEqual(t, l.After, l.Weighted+1e-9)
			require.GreaterOrEqual(t, r.Worst.After, 0.0)
		}
		if in.MaxMoves > 0 {
			require.LessOrEqual(t, r.Moves, in.MaxMoves)
			if r.Moves < r.Wanted {
				capped++
				require.Contains(t, r.Why, "within the limit of")
			}
		}
	}
	require.Greater(t, capped, 5)
}

func contains(held []int32, e int32) bool {
	for _, x := range held {
		if x == e {
			return true
		}
	}
	return false
}

// The operator decides with pkg/rebalance: the figures and the placement are the same.
func TestPlanMatchesOperatorDecision(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 3))
	v, err := Geometry("Mixtral-8x7B", 128, 0, 0)
	require.NoError(t, err)
	for range 10 {
		in := PlanInput{Geometry: v, From: World{Ranks: 2, Mode: "ExpertParallel"}, To: World{Ranks: 2, Mode: "ExpertParallel"}, RanksPerPod: 1, SpareBanks: 2, Redundant: 4, Price: .001,
			Loads: randomLoads(dice, v.MoELayers(), 8)}
		r, err := Plan(in)
		require.NoError(t, err)
		now, err := in.to(nil, in.From, nil)
		require.NoError(t, err)
		d, err := rebalance.Decide(v, now.Final, in.Loads, rebalance.Settings{Redundant: in.Redundant, Price: in.Price})
		require.NoError(t, err)
		require.NotNil(t, d.Placement)
		require.Equal(t, d.Placement, sorted(r.Balance.Placement))
		require.InDelta(t, d.Before, r.Balance.All.Now, 1e-9)
		require.InDelta(t, d.After, r.Balance.All.After, 1e-9)
		require.InDelta(t, d.Reachable, r.Balance.All.Reachable, 1e-9)
		require.InDelta(t, d.Floor, r.Balance.All.Floor, 1e-9)
		require.Equal(t, d.Moves, r.Balance.Moves)
		require.Equal(t, d.Rounds, r.Balance.Rounds)
		require.Equal(t, d.Bytes, r.ExpertBytes)
	}
}

// vLLM's own maps may have an expert twice on a rank: the duplicate counts before the plan and is gone after it.
func TestBalance_WhenRankHasDuplicateExpert(t *testing.T) {
	in := BalanceInput{Loads: [][]float64{{6, 2, 2, 2}}, Ranks: 2, Nodes: 1, Slots: 3, Old: load.Placement{{{0, 0, 1}, {0, 2, 3}}}, Mode: Incremental}
	r, err := Balance(in)
	require.NoError(t, err)
	require.InDelta(t, 1, r.All.Now, 1e-9) // 4 + 2 and 2 + 2 + 2
	for _, held := range r.Placement[0] {
		require.Len(t, held, len(map0(held)))
	}
	in.Old[0][0][0] = placement.Empty
	_, err = Balance(in)
	require.NoError(t, err)
	in.Old = load.Placement{{{1, 1}, {2, 3}}}
	_, err = Balance(in)
	require.ErrorContains(t, err, "expert 0 has a load of 6 and no slot")
}

func map0(held []int32) map[int32]bool {
	out := map[int32]bool{}
	for _, e := range held {
		out[e] = true
	}
	return out
}

// Mode full respects the price. At price 0 it reaches the reachable balance, and no figure exceeds that.
func TestBalance_WhenFullModeHasPrice(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 5))
	for range 20 {
		in := BalanceInput{Loads: randomLoads(dice, 2, 16), Ranks: 4, Nodes: 3, Redundant: 4, Mode: Full}
		last := 1 << 20
		for _, in.Price = range []float64{0, .01, .1, 100} {
			r, err := Balance(in)
			require.NoError(t, err)
			require.LessOrEqual(t, r.Moves, last)
			require.LessOrEqual(t, r.All.After, r.All.Reachable+1e-12)
			require.GreaterOrEqual(t, r.All.After, r.All.Now-1e-3)
			if in.Price == 0 {
				require.InDelta(t, r.All.Reachable, r.All.After, 1e-3)
			}
			last = r.Moves
		}
		require.Zero(t, last)
	}
}
