package planner_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Attention groups keep their survivors if all groups lost equal numbers; otherwise survivors are regrouped, in order.
func TestHeadsOfSurvivors(t *testing.T) {
	v := view(t, shape(12, 4, 2, 0))
	for _, c := range []struct {
		ranks int
		heads uint32
		lost  []int
		want  [][]uint32 // in the survivors' numbering
	}{
		{6, 2, []int{4, 5}, [][]uint32{{0, 1}, {2, 3}}},             // a whole group
		{6, 2, []int{1}, [][]uint32{{0}, {1}, {2}, {3}, {4}}},       // 5 ranks are no pairs
		{6, 2, []int{1, 3}, [][]uint32{{0, 1}, {2, 3}}},             // 1, 1 and 2: new pairs
		{6, 2, []int{0, 2, 4}, [][]uint32{{0}, {1}, {2}}},           // one of each
		{6, 2, []int{1, 3, 4, 5}, [][]uint32{{0}, {1}}},             // one of each, and none
		{4, 2, []int{1, 3}, [][]uint32{{0}, {1}}},                   // one of each
		{6, 3, []int{0, 4}, [][]uint32{{0, 1}, {2, 3}}},             // one of each
		{6, 3, []int{0, 1}, [][]uint32{{0, 1}, {2, 3}}},             // 1 and 3: not divisible by three, so by two
		{6, 6, []int{3}, [][]uint32{{0, 1, 2, 3, 4}}},               // one group
		{8, 4, []int{0, 1, 4}, [][]uint32{{0}, {1}, {2}, {3}, {4}}}, // 2 and 3: 5 of them
		{8, 4, []int{0, 1}, [][]uint32{{0, 1, 2}, {3, 4, 5}}},       // 2 and 4: by three
	} {
		s := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{1: {AttentionGroup: c.heads}}}
		b := at(t, v, c.ranks, s, c.lost...)
		b.repaired(t)
		layer := b.now.Layers[1]
		var got [][]uint32
		bounds, err := layout.HeadBounds(v, layer.AttentionGroupSize)
		require.NoError(t, err)
		for _, g := range layer.Attention {
			got = append(got, g.Ranks)
			require.Equal(t, bounds, g.QueryHeadBounds)
		}
		require.Equal(t, c.want, got, "%+v", c)
	}
}

// survivorsOf returns the survivors of a layout, by rank, with their inventories.
func survivorsOf(b *broken, hold map[uint32]*tangramv1.Inventory) planner.RepairInput {
	in := planner.RepairInput{World: "w", Revision: "r1", Geometry: b.v, Current: b.now}
	for rank, m := range b.now.Members {
		if b.dead[m.Id] {
			continue
		}
		inv := hold[uint32(rank)]
		if inv == nil {
			inv = layout.InventoryOf(b.now, b.v, uint32(rank))
		}
		in.Survivors = append(in.Survivors, planner.Member{Member: m, Inventory: inv})
	}
	return in
}

// with adds pieces to a rank's inventory: layer, bank, slot, expert, start, count.
func with(b *broken, rank uint32, more ...[6]uint32) map[uint32]*tangramv1.Inventory {
	inv := layout.InventoryOf(b.now, b.v, rank)
	for _, x := range more {
		hold(inv, x[0], x[1], x[2], x[3], x[4], x[5])
	}
	return map[uint32]*tangramv1.Inventory{rank: inv}
}

// An expert without a serving rank goes to the survivor that lacks least of it, into the slot that has it, or the first
// free one.
func TestLostExpertGoesToSurvivorLackingLeast(t *testing.T) {
	v := view(t, shape(6, 4, 1, 0)) // 0, 1 on rank 0; 2, 3 on rank 1; 4, 5 on rank 2
	slots := func(in planner.RepairInput) [][]uint32 {
		t.Helper()
		result, err := planner.Repair(in)
		require.NoError(t, err)
		out := make([][]uint32, 2)
		for _, g := range result.Final.Layers[0].Experts {
			out[g.Ranks[0]] = g.Slots
		}
		return out
	}
	b := at(t, v, 3, expertShape, 2)
	for name, c := range map[string]struct {
		rank uint32
		more [][6]uint32
		want [][]uint32
	}{
		"nobody has any of it":                {0, nil, [][]uint32{{1, 2, 5}, {3, 4, 6}}},
		"it lies at another":                  {1, [][6]uint32{{0, 0, 7, 4, 0, 4}}, [][]uint32{{1, 2, 6}, {3, 4, 0, 0, 0, 0, 0, 5}}},
		"both lie there":                      {1, [][6]uint32{{0, 0, 7, 4, 0, 4}, {0, 0, 2, 5, 0, 4}}, [][]uint32{{1, 2}, {3, 4, 6, 0, 0, 0, 0, 5}}},
		"it lies in another bank":             {1, [][6]uint32{{0, 1, 7, 4, 0, 4}}, [][]uint32{{1, 2, 6}, {3, 4, 5}}},
		"a part of it lies in another bank":   {1, [][6]uint32{{0, 1, 7, 5, 1, 2}}, [][]uint32{{1, 2, 5}, {3, 4, 6}}},
		"a part lies in the way":              {1, [][6]uint32{{0, 0, 7, 5, 1, 2}}, [][]uint32{{1, 2, 6, 5}, {3, 4}}},
		"another copy lies in the way":        {1, [][6]uint32{{0, 0, 2, 0, 0, 4}}, [][]uint32{{1, 2, 5}, {3, 4, 0, 6}}},
		"the last slot there is":              {1, [][6]uint32{{0, 0, 37, 4, 0, 4}}, [][]uint32{{1, 2, 6}, append(append([]uint32{3, 4}, make([]uint32, 35)...), 5)}},
		"beyond the last slot there is":       {1, [][6]uint32{{0, 0, 38, 4, 0, 4}}, [][]uint32{{1, 2, 6}, {3, 4, 5}}},
		"where the layout has something else": {1, [][6]uint32{{0, 0, 1, 4, 0, 4}}, [][]uint32{{1, 2, 6}, {3, 4, 5}}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, slots(survivorsOf(b, with(b, c.rank, c.more...))))
		})
	}
	result, err := planner.Repair(survivorsOf(b, with(b, 1, [6]uint32{0, 0, 1, 4, 0, 4})))
	require.NoError(t, err)
	require.Equal(t, v.ExpertBytes, result.Plan.Cost.LocalBytes, "it is copied from where it lies")
	two := at(t, view(t, shape(6, 4, 2, 0)), 3, expertShape, 2)
	require.Equal(t, [][]uint32{{1, 2, 5}, {3, 4, 6}}, slots(survivorsOf(two, with(two, 0, [6]uint32{1, 0, 7, 4, 0, 4}))), "expert 4 of another layer lies there")
	// A hole is a free slot.
	crew := &crew{v: v}
	crew.to(t, placed([][]uint32{{0, 1}, {2, 3}, {4, 5}}), "a", "b", "c")
	crew.to(t, placed([][]uint32{{1}, {0, 2, 3}, {4, 5}}), "a", "b", "c")
	b.now, b.dead = crew.now, map[string]bool{"c": true}
	require.Equal(t, [][]uint32{{5, 2, 6}, {3, 4, 1}}, slots(survivorsOf(b, nil)))
	// No free slot at all.
	full := at(t, v, 3, expertShape, 1, 2)
	var more [][6]uint32
	for slot := uint32(2); slot < 38; slot++ {
		more = append(more, [6]uint32{0, 0, slot, 0, 0, 4})
	}
	_, err = planner.Repair(survivorsOf(full, with(full, 0, more...)))
	require.True(t, planner.IsBeyondRepair(err))
	require.ErrorContains(t, err, "layer 0: none of 1 survivors has a free slot for expert 2 in bank 0")
	last := with(full, 0, more[:32]...)
	_, err = planner.Repair(survivorsOf(full, last))
	require.NoError(t, err, "four slots for four experts")
}

// Survivors in no group take the positions of a group without survivors, in turn; parts that they hold count.
func TestUngroupedSurvivorsTakeOverLostGroup(t *testing.T) {
	v := view(t, shape(8, 4, 1, 0))
	pairs := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{0: {ExpertGroup: 2}}}
	b := at(t, v, 4, pairs)
	result, err := b.to(b.ids(6), pairs)
	require.NoError(t, err)
	b.now = result.Layouts[0] // joined, and in no group yet
	for _, rank := range []int{2, 3} {
		b.dead[b.now.Members[rank].Id] = true
	}
	result, err = planner.Repair(survivorsOf(b, nil))
	require.NoError(t, err)
	require.Equal(t, []uint32{0, 1}, result.Final.Layers[0].Experts[0].Ranks)
	require.Equal(t, []uint32{2, 3}, result.Final.Layers[0].Experts[1].Ranks, "one position each")
	// A rank with the pieces of a position, at its place, takes it.
	group := b.now.Layers[0].Experts[1]
	for position := range uint32(2) {
		var more [][6]uint32
		for slot, entry := range group.Slots {
			run := geometry.ShardOf(v.Granules, 2, entry-1, position)
			more = append(more, [6]uint32{0, layout.Bank(b.now.Layers[0], v), uint32(slot), entry - 1, run.Start, run.Count})
		}
		result, err = planner.Repair(survivorsOf(b, with(b, 5, more...)))
		require.NoError(t, err)
		require.EqualValues(t, 3, result.Final.Layers[0].Experts[1].Ranks[position])
		require.EqualValues(t, 2, result.Final.Layers[0].Experts[1].Ranks[1-position])
		require.Equal(t, 4*v.ExpertBytes/2, result.Plan.Cost.ExpertBytes, "the other position of four experts")
	}
}

// An extra piece of a survivor counts for its peak with the pages that only it touches.
func TestRepairPeakCountsExtraPieces(t *testing.T) {
	v := view(t, shape(6, 4, 1, 0)) // experts of 3072 bytes, contiguous, in pages of 4096
	b := at(t, v, 3, expertShape)
	for name, c := range map[string]struct {
		more  [6]uint32
		pages uint64
	}{
		"in pages that are there":    {[6]uint32{0, 0, 1, 4, 0, 4}, 0}, // slots 0 and 1 touch pages 0 and 1
		"half in a page there":       {[6]uint32{0, 0, 2, 4, 0, 4}, 1},
		"in a page of its own":       {[6]uint32{0, 0, 3, 4, 0, 4}, 1},
		"across two pages":           {[6]uint32{0, 0, 5, 4, 0, 4}, 2},
		"in another bank":            {[6]uint32{0, 1, 0, 4, 0, 4}, 1},
		"across two of another bank": {[6]uint32{0, 1, 1, 4, 0, 4}, 2},
		"nobody knows where":         {[6]uint32{0, 0, 9, 4, 1, 3}, 2},
		"a little, as far as known":  {[6]uint32{0, 1, 9, 4, 1, 1}, 2},
	} {
		result, err := planner.Repair(survivorsOf(b, with(b, 0, c.more)))
		require.NoError(t, err, name)
		part := result.Plan.Flips[0].Parts[0]
		require.Equal(t, c.pages*4096, part.PeakBytes-part.SteadyBytes, name)
	}
	three := at(t, view(t, shape(6, 32, 1, 0)), 3, expertShape)
	result, err := planner.Repair(survivorsOf(three, with(three, 0, [6]uint32{0, 1, 9, 4, 1, 16})))
	require.NoError(t, err)
	require.EqualValues(t, 4*4096, result.Plan.Flips[0].Parts[0].PeakBytes-result.Plan.Flips[0].Parts[0].SteadyBytes, "three pages anywhere touch four")
	// In a bank of shards, an extra at a position's place starts at that position's offset.
	v = view(t, shape(40, 8, 2, 0))
	b = at(t, v, 4, tensorShape)
	r := rand.New(rand.NewPCG(seed, 9))
	for range 40 {
		layer := b.now.Layers[r.IntN(2)]
		position := uint32(r.IntN(4))
		pieces := layout.PositionPieces(layer, layer.Experts[0], v, position)
		i := r.IntN(len(pieces))
		p := pieces[i]
		rank := uint32(r.IntN(4))
		inv := with(b, rank, [6]uint32{layer.Layer, p.Bank, p.Slot, p.Expert, p.Run.Start, p.Run.Count})
		here := layout.LayerPieces(layer, v, rank)
		want := layout.Pages(append(append([]layout.Piece(nil), here...), p), v) - layout.Pages(here, v)
		result, err := planner.Repair(survivorsOf(b, inv))
		require.NoError(t, err)
		part := result.Plan.Flips[0].Parts[rank]
		require.Equal(t, want*4096, part.PeakBytes-part.SteadyBytes, "layer %d, position %d, piece %d", layer.Layer, position, i)
		// In another layer's bank, or under another slot, its offset is unknown.
		other := layout.Bank(b.now.Layers[1-layer.Layer], v)
		for _, odd := range [][6]uint32{{layer.Layer, other, p.Slot, p.Expert, p.Run.Start, p.Run.Count},
			{layer.Layer, p.Bank, uint32(len(layer.Experts[0].Slots)), p.Expert, p.Run.Start, p.Run.Count}} {
			result, err = planner.Repair(survivorsOf(b, with(b, rank, odd)))
			require.NoError(t, err)
			part = result.Plan.Flips[0].Parts[rank]
			require.EqualValues(t, ((p.Bytes-1)/4096+2)*4096, part.PeakBytes-part.SteadyBytes)
		}
	}
}

// A survivor without any piece of a layer fetches all of it again, though no rank of that layer was lost.
func TestRepairFetchesMissingPiecesOfSurvivors(t *testing.T) {
	v := view(t, shape(6, 4, 2, 0))
	for _, s := range []layout.Shape{expertShape, tensorShape} {
		b := at(t, v, 3, s)
		lacking := map[uint32]*tangramv1.Inventory{}
		for rank := range uint32(3) {
			whole := layout.InventoryOf(b.now, v, rank)
			lacking[rank] = &tangramv1.Inventory{Revision: "r1", Dense: true}
			for i := range whole.Layer {
				if whole.Layer[i] == 1 {
					hold(lacking[rank], 1, whole.Bank[i], whole.Slot[i], whole.Expert[i], whole.GranuleStart[i], whole.GranuleCount[i])
				}
			}
		}
		result, err := planner.Repair(survivorsOf(b, lacking))
		require.NoError(t, err)
		require.Equal(t, 6*v.ExpertBytes, result.Plan.Cost.ExpertBytes)
		require.Equal(t, 6*v.ExpertBytes, result.Plan.Cost.CheckpointBytes)
	}
}
