package checker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// placed is a placement of whole experts on 4 ranks, the same in both layers.
func placed(ranks ...[]uint32) layout.Shape {
	return layout.Shape{Mode: layout.Expert, Placement: [][][]uint32{ranks, ranks}}
}

// A sound plan to one placement is rejected for another.
func TestCheckRejectsOtherPlacement(t *testing.T) {
	even := [][]uint32{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10}}
	uneven := placed([]uint32{0, 1, 2, 3, 4}, []uint32{5, 6}, []uint32{7, 8}, []uint32{9, 10})
	short := placed([]uint32{0}, []uint32{1, 2, 3, 4}, []uint32{5, 6, 7}, []uint32{8, 9, 10})
	twice := placed(even[0], even[1], even[2], []uint32{2, 9, 10})
	other := placed(even[0], even[1], []uint32{6, 7, 9}, []uint32{8, 10})
	pair := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{1: {ExpertGroup: 2}, 2: {ExpertGroup: 2}}}
	for _, c := range []struct {
		name           string
		planned, asked layout.Shape
		says           string
	}{
		{"too many on one", uneven, expertShape, "a group owns"},
		{"too few on one", short, expertShape, "a group owns"},
		{"a copy that nobody wants", twice, expertShape, "12 filled slots for 11 experts"},
		{"on another rank", placed(even...), other, "which is not wanted there"},
		{"a copy too many", twice, placed(even...), "which is not wanted there"},
		{"a copy too few", placed(even...), twice, "11 filled slots, 12 experts are wanted"},
		{"pairs", pair, expertShape, "2 expert groups, wanted 4"},
		{"no pairs", expertShape, pair, "4 expert groups, wanted 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{v: view(t, 0)}
			w.to(t, 4, tensorShape)
			sound := w.to(t, 4, c.planned)
			object(t, sound, []spoilt{{"asked for otherwise", func(s *checker.Case) { s.Shape = c.asked }, c.says, false}})
		})
	}
	// One layer with a placement, the other without.
	w := &world{v: view(t, 0)}
	w.to(t, 4, expertShape)
	w.to(t, 4, layout.Shape{Mode: layout.Expert, Placement: [][][]uint32{uneven.Placement[0], nil}})
}

func TestCheckRejectsOtherAttentionGroupSize(t *testing.T) {
	halves := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{}}
	for l := range uint32(3) {
		halves.Layers[l] = layout.LayerShape{AttentionGroup: 2}
	}
	w := &world{v: view(t, 0)}
	w.to(t, 4, expertShape)
	object(t, w.to(t, 4, halves), []spoilt{{"of one rank", func(c *checker.Case) {
		for _, f := range c.Plan.Flips {
			for _, l := range f.Delta.Layers {
				l.AttentionGroupSize = 1
				for _, g := range l.Attention {
					g.Ranks, g.QueryHeadBounds = g.Ranks[:1], []uint32{0, 12}
				}
			}
		}
	}, "wanted groups of 2", true}})
}

// switched: the same 4 ranks, from whole experts to shards of each.
func switched(t *testing.T) checker.Case {
	t.Helper()
	w := &world{v: view(t, 0)}
	w.to(t, 4, expertShape)
	return w.to(t, 4, tensorShape)
}

// extra adds a piece to a member's inventory.
func extra(c *checker.Case, member string, layer, bank, slot, expert, start, count uint32) {
	inventories := map[string]*tangramv1.Inventory{}
	for id, inv := range c.Inventories {
		inventories[id] = proto.CloneOf(inv)
	}
	c.Inventories = inventories
	i := inventories[member]
	i.Layer, i.Bank, i.Slot = append(i.Layer, layer), append(i.Bank, bank), append(i.Slot, slot)
	i.Expert, i.GranuleStart, i.GranuleCount = append(i.Expert, expert), append(i.GranuleStart, start), append(i.GranuleCount, count)
}

// A plan must not overwrite an agent's extra pieces before they are dropped.
func TestCheckRejectsOverlappingPieces(t *testing.T) {
	sound := switched(t)
	object(t, sound, []spoilt{
		{"over every slot", func(c *checker.Case) {
			for slot := range uint32(13) {
				extra(c, "pod-1/0/1", 2, 2, slot, 10, 0, 6)
			}
		}, "lie over each other", false},
		{"over another slot", func(c *checker.Case) { extra(c, "pod-2/0/1", 2, 2, 1, 10, 2, 4) }, "lie over each other", false},
		{"beyond the bank", func(c *checker.Case) { extra(c, "pod-1/0/1", 2, 2, 1000, 10, 0, 6) }, "ends at byte", false},
	})
}

// An agent copies a run from a single piece.
func TestCheckRejectsCopyFromTwoPieces(t *testing.T) {
	sound := switched(t)
	var run struct{ layer, expert, start uint32 }
	object(t, sound, []spoilt{{"in two", func(c *checker.Case) {
		part := copying(c)
		for i, count := range part.Copies.GranuleCount {
			if count > 1 {
				run.layer, run.expert, run.start = part.Copies.Layer[i], part.Copies.Expert[i], part.Copies.GranuleStart[i]
			}
		}
		extra(c, part.Member, 1, 0, 40, 0, 0, 0) // empty: copies the case's inventories, which are changed below
		inv := c.Inventories[part.Member]
		for i := range inv.Layer {
			if inv.Layer[i] == run.layer && inv.Expert[i] == run.expert && inv.GranuleCount[i] == 6 {
				inv.GranuleCount[i] = run.start + 1
				extra(c, part.Member, run.layer, inv.Bank[i], 40, run.expert, run.start+1, 5-run.start)
			}
		}
	}, "lie in no one place", false}})
}

// Declared peak and steady bytes must be exact: one byte off, for any part, is rejected.
func TestCheckRejectsInexactPeakAndSteady(t *testing.T) {
	w, up := grown(t, 40)
	for _, sound := range []checker.Case{up, w.to(t, 2, expertShape), shrunk(t)} {
		for f, flip := range sound.Plan.Flips {
			for i := range flip.Parts {
				for _, spoil := range []func(*tangramv1.RankPart){
					func(p *tangramv1.RankPart) { p.PeakBytes-- }, func(p *tangramv1.RankPart) { p.SteadyBytes-- }, func(p *tangramv1.RankPart) { p.SteadyBytes++ },
				} {
					bad := sound
					bad.Plan = proto.CloneOf(sound.Plan)
					spoil(bad.Plan.Flips[f].Parts[i])
					require.ErrorContains(t, checker.Check(bad), "declares peak")
				}
			}
		}
	}
}

// Sound plans of all kinds, with and without tails, are accepted: lost members, incomplete or extra inventories,
// repairs of both modes.
func TestCheckAcceptsValidPlans(t *testing.T) {
	for _, tail := range []uint64{0, 40} {
		w := &world{v: view(t, tail)}
		w.to(t, 4, expertShape)
		w.to(t, 4, tensorShape, "pod-2/0/1")
		w.to(t, 3, expertShape, "pod-1/0/1")
		w.repair(t, 0)
		w.to(t, 4, tensorShape)
		w.repair(t, 3)
		w.repair(t, 1)
		if tail > 0 {
			continue // an extra piece has a tail too: the planner counts it as fetched, the checker as copied
		}
		w.spoil = func(inv *tangramv1.Inventory) { // half of the pieces, and the dense weights, are not verified
			n := len(inv.Layer) / 2
			inv.Layer, inv.Bank, inv.Slot, inv.Dense = inv.Layer[:n], inv.Bank[:n], inv.Slot[:n], false
			inv.Expert, inv.GranuleStart, inv.GranuleCount = inv.Expert[:n], inv.GranuleStart[:n], inv.GranuleCount[:n]
		}
		w.to(t, 4, expertShape)
		w.to(t, 2, layout.Shape{Mode: layout.Tensor, Layers: map[uint32]layout.LayerShape{2: {ExpertGroup: 1, AttentionGroup: 1}}})
	}
}
