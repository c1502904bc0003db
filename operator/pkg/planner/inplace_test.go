package planner_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Several groups of g > 1 stay in place while every rank stays in its group. A rank that changes its group would
// overwrite its pieces, so the layer is rewritten then.
func TestGroupsStayInPlace_WhenRanksStay(t *testing.T) {
	v := view(t, shape(12, 8, 2, 0))
	pairs := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{0: {ExpertGroup: 2}}}
	for _, c := range []struct {
		name    string
		stay    []int
		inPlace bool
		brought uint64 // positions of half an expert, 6 experts each
	}{
		{"one of a group is replaced", []int{0, 1, 2}, true, 1},
		{"both of a group are replaced", []int{0, 1}, true, 2},
		{"both of the first group are replaced", []int{2, 3}, true, 2},
		{"ranks would be in other groups", []int{1, 2, 3}, false, 0},
		{"the groups would mix", []int{1, 3}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := at(t, v, 4, pairs)
			before := b.now
			var target []string
			for _, rank := range c.stay {
				target = append(target, before.Members[rank].Id)
			}
			fresh := b.ids(8)[4:]
			target = append(target, fresh[:4-len(target)]...)
			result, err := b.to(target, pairs)
			require.NoError(t, err)
			require.Equal(t, c.inPlace, before.Layers[0].BankOffset == b.now.Layers[0].BankOffset)
			if !c.inPlace {
				return
			}
			brought := uint64(0)
			for _, flip := range result.Plan.Flips {
				for _, part := range flip.Parts {
					for i, layer := range part.GetFetches().GetLayer() {
						if layer == 0 {
							brought += uint64(part.Fetches.GranuleCount[i])
						}
					}
				}
			}
			require.Equal(t, c.brought*6*4, brought)
		})
	}
}

// odd adds a whole expert of layer 0 to a rank's inventory, in a bank of shards.
func odd(b *broken, rank int, inv *tangramv1.Inventory, id string) *tangramv1.Inventory {
	if id == b.now.Members[rank].Id {
		bank := layout.Bank(b.now.Layers[0], b.v)
		inv.Layer, inv.Bank, inv.Slot = append(inv.Layer, 0), append(inv.Bank, bank), append(inv.Slot, 1)
		inv.Expert, inv.GranuleStart, inv.GranuleCount = append(inv.Expert, 1), append(inv.GranuleStart, 0), append(inv.GranuleCount, b.v.Granules)
	}
	return inv
}

func TestExtraPiecesInTheWayAreNotOverwritten(t *testing.T) {
	v := view(t, shape(40, 8, 2, 0))
	b := at(t, v, 4, tensorShape, 0)
	sound := b.now
	survivors := func(blocked ...int) (in planner.RepairInput) {
		in = planner.RepairInput{World: "w", Revision: "r1", Geometry: v, Current: sound}
		for rank, m := range sound.Members[1:] {
			inv := layout.InventoryOf(sound, v, uint32(rank+1))
			if slices.Contains(blocked, rank+1) {
				odd(b, rank+1, inv, m.Id)
			}
			in.Survivors = append(in.Survivors, planner.Member{Member: m, Inventory: inv})
		}
		return in
	}
	result, err := planner.Repair(survivors(1, 2))
	require.NoError(t, err)
	require.Equal(t, []uint32{2, 0, 1, 2}, result.Final.Layers[0].Experts[0].Ranks, "rank 3 alone has room at the place")
	require.NotEqual(t, []uint32{2, 0, 1, 2}, result.Final.Layers[1].Experts[0].Ranks)
	_, err = planner.Repair(survivors(1, 2, 3))
	require.True(t, planner.IsBeyondRepair(err))
	require.ErrorContains(t, err, "layer 0: no survivor can take position 0 of expert group 0, ranks [0 1 2 3]")

	// A plan then rewrites the layer. It stops after the join, so the extra piece is not retired yet.
	b.repaired(t)
	result, err = b.to(b.ids(4), tensorShape)
	require.NoError(t, err)
	b.now = result.Layouts[0]
	joined := b.now
	for _, blocked := range []bool{false, true} {
		b.now, b.mutate = joined, nil
		if blocked {
			b.mutate = func(id string, inv *tangramv1.Inventory) *tangramv1.Inventory { return odd(b, 3, inv, id) }
		}
		_, err = b.to(b.ids(4), tensorShape)
		require.NoError(t, err)
		require.Equal(t, blocked, joined.Layers[0].BankOffset != b.now.Layers[0].BankOffset)
	}
}
