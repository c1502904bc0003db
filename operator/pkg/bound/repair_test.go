package bound

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestRepairBytesCountOnlyLostGranules(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		granules, experts, tail := 1+uint32(r.IntN(9)), 1+uint32(r.IntN(5)), uint64(r.IntN(2)*3)
		v, err := geometry.New(&tangramv1.Geometry{Layers: 2, MoeLayers: []uint32{0, 1}, Hidden: 1, MoeInner: granules, GranuleRows: 1,
			Experts: experts, GranuleBytes: 10, ExpertTailBytes: tail, QueryHeads: 1, KvHeads: 1, PageBytes: 256})
		require.NoError(t, err)
		held, want := make([][][]Held, 2), uint64(0)
		for o := range held {
			held[o] = make([][]Held, experts)
			for e := range held[o] {
				there := make([]bool, granules)
				for range r.IntN(5) {
					start := uint32(r.IntN(int(granules)))
					run := geometry.Run{Start: start, Count: 1 + uint32(r.IntN(int(granules-start)))}
					held[o][e] = append(held[o][e], Held{Rank: uint32(r.IntN(3)), Run: run})
					for g := run.Start; g < run.End(); g++ {
						there[g] = true
					}
				}
				for _, ok := range there {
					if !ok {
						want += 10
					}
				}
				if len(held[o][e]) == 0 {
					want += tail
				}
			}
		}
		require.Equal(t, want, RepairBytes(v, held))
	}
}
