package peers

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each baseline returns a layout of the right shape that has every expert and is better than the default one: a weak
// baseline would flatter the planner.
func TestBaselinesReturnValidLayouts(t *testing.T) {
	const experts, ranks, slots = 64, 8, 10
	for _, policy := range []Policy{DeepSeek{}, DeepSeek{Groups: 8, Nodes: 2}, &FlashLB{}, Swift{}, Greedy{}} {
		r := rand.New(rand.NewPCG(1, 1))
		old := Default(experts, ranks, slots)
		for range 5 {
			load := make([]float64, experts)
			for e := range load {
				load[e] = math.Exp(r.NormFloat64())
			}
			now := policy.Plan(0, load, old)
			require.Equal(t, now, policy.Plan(0, load, old), "asked again")
			if f, ok := policy.(*FlashLB); ok {
				f.Remember(0, load, old, now)
			}
			require.Len(t, now, ranks)
			for _, held := range now {
				require.Len(t, held, slots, policy.Name())
			}
			require.NotContains(t, counts(experts, now), 0, policy.Name())
			require.GreaterOrEqual(t, balanceOf(load, now), balanceOf(load, old), policy.Name())
			require.Greater(t, balanceOf(load, now), map[string]float64{"deepseek-hierarchical": 0.85, "deepseek-global": 0.97,
				"flashlb": 0.9, "swift": 0.8, "greedy": 0.97}[policy.Name()], policy.Name())
			old = now
		}
	}
}

func TestRelabelMinimizesMoves(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	old := Default(40, 5, 8)
	now := slices.Clone(old)
	r.Shuffle(len(now), func(i, j int) { now[i], now[j] = now[j], now[i] })
	require.NotZero(t, Moved(old, now))
	require.Zero(t, Moved(old, relabel(old, now)))
}

// The heap's replica counts equal those of the plain loop.
func TestGreedyReplicatesHottestExperts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 50 {
		load := make([]float64, 40)
		for e := range load {
			load[e] = math.Exp(2 * r.NormFloat64())
		}
		require.Equal(t, replicas(load, 64), counts(40, Greedy{}.Plan(0, load, Default(40, 8, 8))))
	}
}
