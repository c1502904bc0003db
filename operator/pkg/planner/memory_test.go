package planner

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// model is a geometry whose granules are 768 bytes, in pages of 4096; all layers but the first have experts.
func model(t *testing.T, experts, granules, layers uint32, tail uint64) *geometry.View {
	t.Helper()
	g := &tangramv1.Geometry{Model: "test", Layers: layers, Hidden: 16, MoeInner: granules * 8, Experts: experts, TopK: 1, QueryHeads: 12, KvHeads: 4,
		HeadDim: 8, GranuleRows: 8, GranuleBytes: 768, ExpertTailBytes: tail, Dtype: tangramv1.DType_DTYPE_BF16, PageBytes: 4096, DenseBytes: 10000,
		KvHeadTokenBytes: 64, SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR}
	for l := uint32(1); l < layers; l++ {
		g.MoeLayers = append(g.MoeLayers, l)
	}
	v, err := geometry.New(g)
	require.NoError(t, err)
	return v
}

// The advice of a memory error depends on whether the final layout fits, and on whether there is a way around the flip.
func TestMemoryErrorGivesAdvice(t *testing.T) {
	for _, c := range []struct {
		kind   tangramv1.FlipKind
		steady uint64
		advice string
	}{
		{tangramv1.FlipKind_FLIP_KIND_LAYOUT, 11, "use more ranks or increase the memory of the pool"},
		{tangramv1.FlipKind_FLIP_KIND_LAYOUT, 10, "the result would fit, but not the old and new layout together: increase the memory of the pool or use smaller steps"},
		{tangramv1.FlipKind_FLIP_KIND_REPAIR, 11, "increase the memory of the pools by the headroom that a repair needs; until then the world can only restart from the checkpoint"},
		{tangramv1.FlipKind_FLIP_KIND_REPAIR, 10, "the repaired layout would fit, but not together with pieces of older layouts that the rank holds: retire these pieces and repair again"},
	} {
		err := &memoryError{rank: 1, member: "m", flip: 2, kind: c.kind, peak: 15, steady: c.steady, limit: 10}
		require.ErrorContains(t, err, "plan: flip 2 ("+c.kind.String()+"): rank 1 (m) needs 15 bytes at its peak and ")
		require.ErrorContains(t, err, " after it, its pool has 10, 5 too few: "+c.advice)
		require.True(t, IsNoMemory(err))
	}
	require.False(t, IsNoMemory(&beyondRepair{"for another reason"}))
}

// The pages of a layer, alone and with other contents of its bank, are those that its pieces touch, each once.
func TestLayerPagesMatchPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 40))
	for range 300 {
		experts := 1 + uint32(r.IntN(12))
		v := model(t, experts, 1+uint32(r.IntN(12)), 2, uint64(r.IntN(2)*40))
		w := &world{v: v, tables: map[uint32]*shardTable{}}
		slots := func() []uint32 {
			out := make([]uint32, r.IntN(int(experts)+2))
			for i := range out {
				out[i] = uint32(r.IntN(int(experts) + 1))
			}
			return out
		}
		pages := func(layer *tangramv1.LayerLayout) uint64 { return layout.Pages(layout.LayerPieces(layer, v, 0), v) }
		whole := &tangramv1.LayerLayout{Layer: 1, ExpertGroupSize: 1, Experts: []*tangramv1.ExpertGroup{{Ranks: []uint32{0}, Slots: slots()}}}
		require.Equal(t, pages(whole), w.layerPages(whole, seat{group: 0, positions: []int32{0}}, w.shards(1), nil, nil))
		require.Zero(t, w.layerPages(whole, seat{group: -1}, w.shards(1), nil, nil), "in no group")
		too := slots()
		both := &tangramv1.LayerLayout{Layer: 1, ExpertGroupSize: 1, Experts: []*tangramv1.ExpertGroup{{Ranks: []uint32{0}}}}
		for i := range max(len(too), len(whole.Experts[0].Slots)) {
			entry := uint32(0)
			if i < len(too) {
				entry = too[i]
			}
			if i < len(whole.Experts[0].Slots) && whole.Experts[0].Slots[i] != 0 {
				entry = whole.Experts[0].Slots[i]
			}
			both.Experts[0].Slots = append(both.Experts[0].Slots, entry)
		}
		require.Equal(t, pages(both), w.layerPages(whole, seat{group: 0, positions: []int32{0}}, w.shards(1), too, nil))

		g := 2 + uint32(r.IntN(3))
		if g > v.Granules {
			continue
		}
		shared := &tangramv1.LayerLayout{Layer: 1, ExpertGroupSize: g, Experts: []*tangramv1.ExpertGroup{{Slots: slots()}}}
		union := &tangramv1.LayerLayout{Layer: 1, ExpertGroupSize: g, Experts: []*tangramv1.ExpertGroup{{Slots: shared.Experts[0].Slots}}}
		mine, also := []int32{}, []int32{}
		for p := range int32(g) {
			rank, any := uint32(1), uint32(1)
			if r.IntN(2) == 0 {
				mine, rank, any = append(mine, p), 0, 0
			}
			if r.IntN(2) == 0 {
				also, any = append(also, p), 0
			}
			shared.Experts[0].Ranks, union.Experts[0].Ranks = append(shared.Experts[0].Ranks, rank), append(union.Experts[0].Ranks, any)
		}
		require.Equal(t, pages(shared), w.layerPages(shared, seat{group: 0, positions: mine}, w.shards(g), nil, nil))
		require.Equal(t, pages(union), w.layerPages(shared, seat{group: 0, positions: mine}, w.shards(g), nil, also))
	}
}

// The table equals the shard rule.
func TestShardTable(t *testing.T) {
	for granules := uint32(1); granules < 14; granules++ {
		for g := uint32(1); g <= granules; g++ {
			table := newShardTable(granules, g)
			for e := range 2*g + 1 {
				for p := range g {
					require.Equal(t, geometry.ShardOf(granules, g, e, p), table.of(e, p))
				}
			}
		}
	}
}

// The runs of a rank are its granules, each once, in order and each within one piece.
func TestRunsCoverEachGranuleOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 41))
	for range 2000 {
		var hs []holder
		for range r.IntN(5) {
			hs = append(hs, holder{run: geometry.Run{Start: uint32(r.IntN(10)), Count: 1 + uint32(r.IntN(5))}, extra: r.IntN(3) == 0})
		}
		for _, useExtras := range []bool{false, true} {
			want, got := map[uint32]bool{}, map[uint32]bool{}
			var pieces []geometry.Run
			for _, h := range hs {
				if h.extra && !useExtras {
					continue
				}
				pieces = append(pieces, h.run)
				for i := h.run.Start; i < h.run.End(); i++ {
					want[i] = true
				}
			}
			end := uint32(0)
			var buffer [8]geometry.Run
			for _, run := range runsOf(hs, useExtras, buffer[:]) {
				require.GreaterOrEqual(t, run.Start, end, "%+v", hs)
				require.NotZero(t, run.Count)
				require.True(t, slices.ContainsFunc(pieces, func(p geometry.Run) bool { return p.Overlap(run) == run }), "%+v: %+v lies in no piece", hs, run)
				for i := run.Start; i < run.End(); i++ {
					got[i] = true
				}
				end = run.End()
			}
			require.Equal(t, want, got, "%+v", hs)
		}
	}
}

// byRank calls rank by rank.
func TestByRankGroupsHolders(t *testing.T) {
	var got [][]uint32
	hs := []holder{{rank: 1, slot: 4}, {rank: 1, slot: 5}, {rank: 3, slot: 6}, {rank: 4, slot: 7}, {rank: 4, slot: 8}}
	byRank(hs, func(rank uint32, mine []holder) {
		line := []uint32{rank}
		for _, h := range mine {
			line = append(line, h.slot)
		}
		got = append(got, line)
	})
	require.Equal(t, [][]uint32{{1, 4, 5}, {3, 6}, {4, 7, 8}}, got)
}

// The worth of a rank's granules of an expert is the bytes that it need not fetch, including the tail.
func TestWorthCountsBytesNotFetched(t *testing.T) {
	w := &world{v: model(t, 2, 8, 2, 40)}
	run := func(start, count uint32) geometry.Run { return geometry.Run{Start: start, Count: count} }
	require.EqualValues(t, 0, w.worth(nil, run(0, 8)))
	require.EqualValues(t, 5*768+40, w.worth([]geometry.Run{run(0, 3), run(4, 2)}, run(0, 8)))
	require.EqualValues(t, 2*768+40, w.worth([]geometry.Run{run(0, 3), run(4, 2)}, run(2, 3)))
	require.EqualValues(t, 40, w.worth([]geometry.Run{run(0, 3)}, run(4, 4)), "who has a part of it has the tail")
}

// KV is distributed evenly over the ranks of the target; each must have the pages of its share, rounded up.
func TestKVIsCheckedPerRank(t *testing.T) {
	v := model(t, 6, 12, 2, 0) // 2 layers of 12 query heads and 4 KV heads
	g := proto.CloneOf(v.Proto)
	g.QueryHeads, g.KvHeads = 20, 5
	uneven, err := geometry.New(g)
	require.NoError(t, err)
	engine := func(pages uint64, block uint32, reserved uint64) KV {
		return KV{Pages: pages, BlockTokens: block, ReservedTokens: reserved}
	}
	for name, c := range map[string]struct {
		kv      []KV
		heads   uint32
		refused string
	}{
		"two blocks on two ranks":         {[]KV{engine(8, 16, 17), engine(8, 16, 0)}, 1, ""},
		"a page too few":                  {[]KV{engine(8, 16, 17), engine(7, 16, 0)}, 1, "2 blocks of 16 tokens are reserved; in the target shape rank 1 (1) needs 8 head pages for its share and has 7"},
		"a block that is full":            {[]KV{engine(4, 16, 16), engine(4, 16, 0)}, 1, ""},
		"each rank's last block is whole": {[]KV{engine(8, 16, 1), engine(8, 16, 1)}, 1, ""},
		"shares are rounded up":           {[]KV{engine(5, 16, 32), engine(6, 16, 0), engine(6, 16, 0)}, 1, "rank 0 (0) needs 6 head pages"},
		"shares that are rounded up":      {[]KV{engine(6, 16, 32), engine(6, 16, 0), engine(6, 16, 0)}, 1, ""},
		"no engine yet":                   {[]KV{engine(8, 16, 32), engine(0, 32, 7000)}, 1, ""},
		"an engine without blocks":        {[]KV{engine(8, 16, 32), engine(8, 0, 7000)}, 1, ""},
		"engines disagree":                {[]KV{engine(80, 16, 32), engine(80, 32, 0)}, 1, "engines disagree on tokens in a KV block: 16 and 32"},
		"nothing is reserved":             {[]KV{engine(1, 16, 0), engine(1, 16, 0)}, 1, ""},
		// Of 5 KV heads, three ranks have 2, 3 and 2 (two are shared), for all blocks of the three.
		"heads are not alike":       {[]KV{engine(12, 16, 96), engine(18, 16, 0), engine(12, 16, 0), engine(12, 16, 0), engine(18, 16, 0), engine(12, 16, 0)}, 3, ""},
		"the second group's second": {[]KV{engine(12, 16, 96), engine(18, 16, 0), engine(12, 16, 0), engine(12, 16, 0), engine(17, 16, 0), engine(12, 16, 0)}, 3, "rank 4 (4) needs 18 head pages"},
	} {
		v := v
		if c.heads == 3 {
			v = uneven
		}
		w := &world{v: v}
		for i, kv := range c.kv {
			w.members = append(w.members, &tangramv1.Member{Id: string(rune('0' + i))})
			w.info = append(w.info, Member{KV: kv})
			w.target = append(w.target, uint32(i))
		}
		shapes, err := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{0: {AttentionGroup: c.heads}, 1: {AttentionGroup: c.heads}}}.Resolve(v, uint32(len(c.kv)))
		require.NoError(t, err)
		if err := w.checkKV(shapes); c.refused == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.refused, name)
		}
	}
}
