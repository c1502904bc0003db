package plancli

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
)

// Every transition and every repair fits into the computed memory, and with one page less, one of them does not.
func TestSizeRank_WhenWorldChanges(t *testing.T) {
	dice := rand.New(rand.NewPCG(4, 2))
	for _, model := range []string{"Mixtral-8x7B", "gpt-oss-20b", "Qwen3-30B-A3B"} {
		v, err := Geometry(model, 0, 0, 5<<20)
		require.NoError(t, err)
		for range 6 {
			low := 1 + dice.IntN(4)
			in := SizeInput{Geometry: v, Widths: []int{low, low + 1 + dice.IntN(3)}, RanksPerPod: 1, SpareBanks: uint32(1 + dice.IntN(3)), KVTokens: 1000,
				Modes: [][]layout.Mode{{layout.Expert}, {layout.Expert, layout.Tensor}}[dice.IntN(2)]}
			r, err := SizeRank(in)
			require.NoError(t, err)
			var sum uint64
			for _, item := range r.Items {
				sum += item.Bytes
			}
			require.Equal(t, r.WeightsBytes+r.KVBytes, sum)
			require.GreaterOrEqual(t, r.KVTokens, in.KVTokens)
			require.NoError(t, fits(in, r.WeightsBytes), "%+v", in)
			require.Error(t, fits(in, r.WeightsBytes-sizeUnit), "%+v", in)
		}
	}
}

// fits returns why a transition or a repair of the worlds of in does not fit into this memory.
func fits(in SizeInput, memory uint64) error {
	plan := PlanInput{Geometry: in.Geometry, RanksPerPod: in.RanksPerPod, SpareBanks: in.SpareBanks, MemoryBytes: memory}
	for _, from := range in.Widths {
		for _, mode := range in.Modes {
			first, err := plan.to(nil, World{Ranks: from, Mode: mode.String()}, nil)
			if err != nil {
				return err
			}
			members := make([]planner.Member, from)
			for i, m := range first.Final.Members {
				members[i] = planner.Member{Member: m, MemoryBytes: memory}
			}
			if need, err := planner.Headroom(planner.HeadroomInput{Geometry: in.Geometry, Layout: first.Final, Members: members}); err != nil || from > 1 && !need.Enough && need.Worst.Beyond == "" {
				return fmt.Errorf("a repair: %+v, %w", need, err)
			}
			for _, to := range in.Widths {
				for _, other := range in.Modes {
					if _, err := plan.to(first.Final, World{Ranks: to, Mode: other.String()}, nil); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func TestSizeRank_WhenMemoryIsShort(t *testing.T) {
	v, err := Geometry("Mixtral-8x7B", 0, 0, 5<<20)
	require.NoError(t, err)
	in := SizeInput{Geometry: v, Widths: []int{2}, RanksPerPod: 1, SpareBanks: 2, Modes: []layout.Mode{layout.Expert}, MemoryBytes: 1 << 30}
	_, err = SizeRank(in)
	require.ErrorContains(t, err, "1.1 GB of memory per rank cannot hold Mixtral-8x7B: the weights need")
	in.MemoryBytes, in.Widths = 200<<30, []int{9}
	_, err = SizeRank(in)
	require.ErrorContains(t, err, "9 ranks in ExpertParallel mode: ")
}
