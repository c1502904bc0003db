package planner

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// takeover decides, layer by layer, which survivor takes the pieces without a serving rank. All is in place: survivors
// keep their pieces where they are. Ranks are those of the current layout.
type takeover struct {
	*world
	bytes  []uint64            // by rank: of its pieces over all layers, including those assigned so far
	given  uint64              // bytes of all pieces assigned so far
	extras map[[2]uint32][]int // rank, bank -> indices of held.extras
}

func newTakeover(w *world) *takeover {
	t := &takeover{world: w, bytes: make([]uint64, len(w.members)), extras: map[[2]uint32][]int{}}
	for _, old := range w.old {
		for _, group := range old.layer.Experts {
			for p, rank := range group.Ranks {
				t.bytes[rank] += t.groupBytes(group.Slots, old.shards, uint32(p))
			}
		}
	}
	for i, h := range w.held.extras {
		key := [2]uint32{h.rank, h.bank}
		t.extras[key] = append(t.extras[key], i)
	}
	return t
}

func (t *takeover) groupBytes(slots []uint32, shards *shardTable, position uint32) uint64 {
	total := uint64(0)
	for _, entry := range slots {
		if entry != 0 {
			total += t.v.PieceBytes(shards.of(entry-1, position).Count)
		}
	}
	return total
}

func (t *takeover) give(rank int, bytes uint64) {
	t.bytes[rank] += bytes
	t.given += bytes
}

// beyondRepair rejects a repair that no choice of survivors makes possible.
type beyondRepair struct{ why string }

func (e *beyondRepair) Error() string {
	return "repair: " + e.why + "; restart the world from the checkpoint"
}

// IsBeyondRepair reports that the survivors cannot hold the model after one flip, whatever their memory: the world must
// restart from the checkpoint.
func IsBeyondRepair(err error) bool {
	var e *beyondRepair
	return errors.As(err, &e)
}

// layer returns the repaired layer: the layer itself if no removed rank is in it.
func (t *takeover) layer(l uint32) (*tangramv1.LayerLayout, error) {
	now := t.cur.Layers[l]
	removed := func(ranks []uint32) bool { return slices.ContainsFunc(ranks, t.lost) }
	if !slices.ContainsFunc(now.Experts, func(g *tangramv1.ExpertGroup) bool { return removed(g.Ranks) }) &&
		!slices.ContainsFunc(now.Attention, func(g *tangramv1.AttentionGroup) bool { return removed(g.Ranks) }) {
		return now, nil
	}
	next := &tangramv1.LayerLayout{Layer: l, BankOffset: now.BankOffset, ExpertGroupSize: now.ExpertGroupSize}
	var err error
	switch o := t.v.Ordinal(l); {
	case o < 0:
	case now.ExpertGroupSize == 1:
		err = t.whole(o, next)
	default:
		err = t.sharded(o, next)
	}
	if err != nil {
		return nil, err
	}
	return next, t.heads(now, next)
}

// heads forms the attention groups from their survivors. All groups of a layer have one size. If the old groups lost
// different numbers of ranks, the survivors are regrouped by the largest size that divides their number and is at most
// the old one.
func (t *takeover) heads(now, next *tangramv1.LayerLayout) error {
	var groups [][]uint32
	var all []uint32
	even := true
	for _, g := range now.Attention {
		left := slices.DeleteFunc(slices.Clone(g.Ranks), t.lost)
		if len(left) == 0 {
			continue
		}
		groups, all = append(groups, left), append(all, left...)
		even = even && len(left) == len(groups[0])
	}
	if len(all) == 0 {
		all, even = t.target, false
	}
	size := len(all)
	if even {
		size = len(groups[0])
	} else {
		slices.Sort(all)
		for size = min(size, int(now.AttentionGroupSize)); len(all)%size != 0; size-- {
		}
		groups = slices.Collect(slices.Chunk(all, size))
	}
	bounds := now.Attention[0].QueryHeadBounds
	if size != int(now.AttentionGroupSize) {
		var err error
		if bounds, err = layout.HeadBounds(t.v, uint32(size)); err != nil {
			return fmt.Errorf("repair: layer %d: %w", now.Layer, err)
		}
	}
	next.AttentionGroupSize = uint32(size)
	for _, ranks := range groups {
		next.Attention = append(next.Attention, &tangramv1.AttentionGroup{Ranks: ranks, QueryHeadBounds: bounds})
	}
	return nil
}

// choice is how well a survivor suits; less is better, field by field, and the lowest rank of equals.
type choice struct {
	brought uint64 // bytes it lacks
	here    int    // experts or positions of the layer that it has
	bytes   uint64 // of its pieces over all layers
}

func (a choice) compare(b choice) int {
	return cmp.Or(cmp.Compare(a.brought, b.brought), cmp.Compare(a.here, b.here), cmp.Compare(a.bytes, b.bytes))
}

// lacks calls add with the bytes that each holder saves toward this run of an expert.
func (t *takeover) lacks(o int, e uint32, want geometry.Run, add func(rank uint32, saved uint64)) {
	var buffer [8]geometry.Run
	byRank(t.held.of(o, int(e)), func(rank uint32, mine []holder) {
		add(rank, uint64(t.worth(runsOf(mine, true, buffer[:]), want)))
	})
}

// whole assigns the experts of a layer of g = 1 without a serving rank to the survivors.
func (t *takeover) whole(o int, next *tangramv1.LayerLayout) error {
	groupOf, owned := map[uint32]*tangramv1.ExpertGroup{}, make([]bool, t.held.experts)
	count := make([]int, len(t.members))
	for _, g := range t.old[o].layer.Experts {
		rank := g.Ranks[0]
		if t.lost(rank) {
			continue
		}
		groupOf[rank] = &tangramv1.ExpertGroup{Ranks: g.Ranks, Slots: slices.Clone(g.Slots)}
		next.Experts = append(next.Experts, groupOf[rank])
		for _, entry := range g.Slots {
			if entry != 0 {
				owned[entry-1] = true
				count[rank]++
			}
		}
	}
	// Experts with a partial holder first, because they prefer their holders; the others then even out the numbers.
	var lost []uint32
	for _, held := range []bool{true, false} {
		for e := range uint32(t.held.experts) {
			if !owned[e] && (len(t.held.of(o, int(e))) > 0) == held {
				lost = append(lost, e)
			}
		}
	}
	saved := make([]uint64, len(t.members))
	for _, e := range lost {
		clear(saved)
		t.lacks(o, e, geometry.Run{Count: t.v.Granules}, func(rank uint32, bytes uint64) { saved[rank] = bytes })
		best, slot := -1, 0
		var suits choice
		for _, rank := range t.target {
			c := choice{t.v.ExpertBytes - saved[rank], count[rank], t.bytes[rank]}
			if best >= 0 && c.compare(suits) >= 0 {
				continue
			}
			if s := t.freeSlot(o, rank, e, groupOf[rank].GetSlots()); s >= 0 {
				best, slot, suits = int(rank), s, c
			}
		}
		if best < 0 {
			return &beyondRepair{fmt.Sprintf("layer %d: none of %d survivors has a free slot for expert %d in bank %d", next.Layer,
				len(t.target), e, t.old[o].bank)}
		}
		g := groupOf[uint32(best)]
		if g == nil { // it owned no expert of the layer
			g = &tangramv1.ExpertGroup{Ranks: []uint32{uint32(best)}}
			groupOf[uint32(best)] = g
			next.Experts = append(next.Experts, g)
		}
		for len(g.Slots) <= slot {
			g.Slots = append(g.Slots, 0)
		}
		g.Slots[slot] = e + 1
		count[best]++
		t.give(best, t.v.ExpertBytes)
	}
	return nil
}

// freeSlot returns a slot for an expert on a rank: the one that already has it, otherwise the first empty one; -1 if
// there is none.
func (t *takeover) freeSlot(o int, rank, expert uint32, slots []uint32) int {
	taken := map[uint32]bool{}
	for _, i := range t.extras[[2]uint32{rank, t.old[o].bank}] {
		h := t.held.extras[i]
		if h.run.Count != t.v.Granules {
			return -1 // a shard: its offset is unknown
		}
		empty := int(h.slot) >= len(slots) || slots[h.slot] == 0
		if int(t.held.extraOf[i]) == o && t.held.extraExpert[i] == expert && empty && h.slot < uint32(t.held.experts)+geometry.SpareSlots {
			return int(h.slot)
		}
		taken[h.slot] = true
	}
	for s := range t.held.experts + geometry.SpareSlots {
		if (s >= len(slots) || slots[s] == 0) && !taken[uint32(s)] {
			return s
		}
	}
	return -1
}

// sharded assigns the lost positions of a layer of g > 1 to survivors of their groups; those of a group without
// survivors, to survivors that are in no group.
func (t *takeover) sharded(o int, next *tangramv1.LayerLayout) error {
	old := t.old[o]
	group := make([]int, len(t.members)) // of each rank, -1: none
	for r := range group {
		group[r] = int(old.seats[r].group)
	}
	for i, g := range old.layer.Experts {
		var lost []uint32
		positions := map[uint32]int{} // by survivor
		for p, rank := range g.Ranks {
			if t.lost(rank) {
				lost = append(lost, uint32(p))
			} else {
				positions[rank]++
			}
		}
		ranks := slices.Clone(g.Ranks)
		next.Experts = append(next.Experts, &tangramv1.ExpertGroup{Ranks: ranks, Slots: g.Slots})
		outsiders := len(positions) == 0
		for _, p := range lost {
			best := t.forPosition(o, i, p, func(rank uint32) (int, bool) {
				return positions[rank], group[rank] == i || (outsiders && group[rank] < 0)
			})
			if best < 0 {
				return &beyondRepair{fmt.Sprintf("layer %d: no survivor can take position %d of expert group %d, ranks %v: those that "+
					"live are in other groups or hold something else at its place in bank %d", next.Layer, p, i, g.Ranks, old.bank)}
			}
			ranks[p], group[best] = uint32(best), i
			positions[uint32(best)]++
		}
	}
	return nil
}

// forPosition chooses a survivor for a position, -1 if none can take it. may returns the number of positions of the
// group that a rank has, and whether it may take one.
func (t *takeover) forPosition(o, group int, position uint32, may func(rank uint32) (int, bool)) int {
	old := t.old[o]
	saved, size := make([]uint64, len(t.members)), uint64(0)
	for _, entry := range old.layer.Experts[group].Slots {
		if entry == 0 {
			continue
		}
		want := old.shards.of(entry-1, position)
		size += t.v.PieceBytes(want.Count)
		t.lacks(o, entry-1, want, func(rank uint32, bytes uint64) { saved[rank] += bytes })
	}
	best := -1
	var suits choice
	for _, rank := range t.target {
		here, ok := may(rank)
		if c := (choice{size - saved[rank], here, t.bytes[rank]}); ok && (best < 0 || c.compare(suits) < 0) && !t.blocked(o, group, rank) {
			best, suits = int(rank), c
		}
	}
	if best >= 0 {
		t.give(best, size)
	}
	return best
}

// blocked: the rank holds a piece in the layer's bank that is not at the place of any position.
func (t *takeover) blocked(o, group int, rank uint32) bool {
	return slices.ContainsFunc(t.extras[[2]uint32{rank, t.old[o].bank}], func(i int) bool {
		return int(t.held.extraOf[i]) != o || t.positionOf(o, group, &t.held.extras[i], t.held.extraExpert[i]) < 0
	})
}
