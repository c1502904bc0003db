package layout

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Directly from the rule: positions follow one another in whole pages, slots in 256 bytes.
func TestPositionsFollowInWholePages(t *testing.T) {
	const seed = 5
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		granules, experts := 1+uint32(r.IntN(20)), 1+uint32(r.IntN(40))
		v, err := geometry.New(&tangramv1.Geometry{Layers: 1, MoeLayers: []uint32{0}, Hidden: 1, MoeInner: granules, GranuleRows: 1,
			Experts: experts, GranuleBytes: 100 + uint64(r.IntN(3000)), ExpertTailBytes: uint64(r.IntN(2) * 40), QueryHeads: 64,
			KvHeads: 1, PageBytes: 4096})
		require.NoError(t, err)
		g := 1 + uint32(r.IntN(int(granules)))
		group := &tangramv1.ExpertGroup{Ranks: make([]uint32, g)}
		for e := range experts {
			group.Slots = append(group.Slots, e+1)
		}
		r.Shuffle(len(group.Slots), func(a, b int) { group.Slots[a], group.Slots[b] = group.Slots[b], group.Slots[a] })
		group.Slots[r.IntN(len(group.Slots))] = 0
		for p := range group.Ranks {
			group.Ranks[p] = uint32(r.IntN(3))
		}
		layer := &tangramv1.LayerLayout{ExpertGroupSize: g, Experts: []*tangramv1.ExpertGroup{group}}
		if g == 1 {
			require.Zero(t, PositionBase(group, v, 1))
			continue
		}
		base, count := uint64(0), [3]int{}
		for p := range g {
			require.Equal(t, base, PositionBase(group, v, p), "seed %d, position %d of %d, %d granules", seed, p, g, granules)
			pieces, at := PositionPieces(layer, group, v, p), base
			for _, piece := range pieces {
				require.Equal(t, at, piece.Offset)
				require.Equal(t, geometry.ShardOf(granules, g, piece.Expert, p), piece.Run)
				at += (piece.Bytes + 255) / 256 * 256
			}
			count[group.Ranks[p]] += len(pieces)
			base += (at - base + 4095) / 4096 * 4096
		}
		for rank, n := range count {
			require.Len(t, LayerPieces(layer, v, uint32(rank)), n, "a rank holds the shards of each of its positions")
		}
	}
}

func TestShardsAreContiguousRuns(t *testing.T) {
	for granules := uint32(1); granules < 30; granules++ {
		for g := uint32(1); g <= granules; g++ {
			for e := range 2 * g {
				next := uint32(0)
				for p := range g {
					run := geometry.ShardOf(granules, g, e, p)
					want := granules / g
					if (p+g-e%g)%g < granules%g {
						want++
					}
					require.Equal(t, geometry.Run{Start: next, Count: want}, run, "%d granules, position %d of %d, expert %d", granules, p, g, e)
					next = run.End()
				}
				require.Equal(t, granules, next)
			}
		}
	}
}

func TestRankMayRepeatOnlyWithinOneGroup(t *testing.T) {
	v := testView(t, 12, 4)
	l := sound(v)
	doubled := func() *tangramv1.LayerLayout {
		return &tangramv1.LayerLayout{Layer: 0, ExpertGroupSize: 3, AttentionGroupSize: 2, Attention: l.Layers[0].Attention,
			Experts: []*tangramv1.ExpertGroup{{Ranks: []uint32{0, 1, 0}, Slots: []uint32{1, 2, 3}}}}
	}
	l.Layers[0] = doubled()
	require.NoError(t, Validate(l, v))
	require.Equal(t, 6, len(LayerPieces(l.Layers[0], v, 0)))
	require.Equal(t, 3, len(LayerPieces(l.Layers[0], v, 1)))

	l.Layers[0].Experts = append(l.Layers[0].Experts, &tangramv1.ExpertGroup{Ranks: []uint32{0, 0, 0}, Slots: []uint32{1}})
	require.ErrorContains(t, Validate(l, v), "expert group 1: rank 0 is in two groups")
	l.Layers[0] = doubled()
	l.Layers[0].Attention = []*tangramv1.AttentionGroup{{Ranks: []uint32{1, 1}, QueryHeadBounds: []uint32{0, 5, 12}}}
	require.ErrorContains(t, Validate(l, v), "attention group 0: rank 1 is listed twice")
}

func TestShardsBeyondBankAreRejected(t *testing.T) {
	// A granule of 1 byte occupies 256: a position of up to 16 experts has a page, and a bank has 32 spare slots of 256
	// bytes.
	with := func(experts, positions uint32) (*tangramv1.Layout, *geometry.View) {
		v, err := geometry.New(&tangramv1.Geometry{Layers: 1, MoeLayers: []uint32{0}, Hidden: 1, MoeInner: 24, GranuleRows: 1,
			Experts: experts, GranuleBytes: 1, QueryHeads: 24, KvHeads: 1, PageBytes: 4096})
		require.NoError(t, err)
		group := &tangramv1.ExpertGroup{Ranks: make([]uint32, positions)}
		for e := range experts {
			group.Slots = append(group.Slots, e+1)
		}
		return &tangramv1.Layout{GeometryFingerprint: v.Fingerprint, Banks: 1, Members: []*tangramv1.Member{{Id: "a"}},
			Dense: &tangramv1.DenseLayout{Ranks: []uint32{0}}, Layers: []*tangramv1.LayerLayout{{ExpertGroupSize: positions, AttentionGroupSize: 1,
				Experts: []*tangramv1.ExpertGroup{group}, Attention: []*tangramv1.AttentionGroup{{Ranks: []uint32{0}, QueryHeadBounds: []uint32{0, 24}}}}}}, v
	}
	l, v := with(1, 24)
	require.ErrorContains(t, Validate(l, v), "the shards of 24 positions need 98304 bytes of a bank of 12288")
	_, err := Shape{Mode: Tensor}.Resolve(v, 24)
	require.ErrorContains(t, err, "layer 0: the shards of 24 ranks, each in pages of its own, need 98304 bytes of a bank of 12288")
	_, err = Shape{Mode: Tensor}.Resolve(v, 3)
	require.NoError(t, err)
	l, v = with(16, 3)
	require.NoError(t, Validate(l, v), "three pages in a bank of three")
}
