package planner

import (
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// sameSlots changes a layer of g > 1 in place if possible: the groups keep g and slots, and only some positions change
// ranks. A position's place is the same on every rank, so staying pieces do not move. False: the layer must be
// rewritten into another bank.
func (w *world) sameSlots(c *change, spare []int, useExtras bool) bool {
	g := int(c.next.ExpertGroupSize)
	if w.cur == nil || g == 1 {
		return false
	}
	old := w.old[c.ordinal]
	groups := len(w.target) / g
	if len(old.layer.Experts) != groups || !w.balanced(old, g) {
		return false
	}
	blockOf, ok := w.blocks(old, g)
	if !ok || (useExtras && w.inTheWay(c.ordinal, blockOf, g)) {
		return false
	}
	owners := make([]int, w.held.experts)
	for i, group := range old.layer.Experts {
		for _, entry := range group.Slots {
			if entry != 0 {
				owners[entry-1] = i
			}
		}
	}
	c.inPlace = true
	c.next.BankOffset = old.layer.BankOffset
	c.next.Experts = make([]*tangramv1.ExpertGroup, groups)
	for i, group := range old.layer.Experts {
		ranks := slices.Clone(w.target[blockOf[i]*g : (blockOf[i]+1)*g])
		w.seatGroup(c.ordinal, i, ranks, owners, c.shards, useExtras)
		c.next.Experts[i] = &tangramv1.ExpertGroup{Ranks: ranks, Slots: group.Slots}
		if filled(group.Slots) > w.held.experts/groups {
			spare[blockOf[i]]++
		}
	}
	c.seats = seatsOf(c.next, len(w.members))
	return true
}

func filled(slots []uint32) int {
	n := 0
	for _, entry := range slots {
		if entry != 0 {
			n++
		}
	}
	return n
}

// balanced: groups of g, no redundant experts, and the groups' numbers of experts differ by at most one.
func (w *world) balanced(old oldLayer, g int) bool {
	if old.pieces != g*w.held.experts {
		return false
	}
	short := w.held.experts / len(old.layer.Experts)
	return !slices.ContainsFunc(old.layer.Experts, func(group *tangramv1.ExpertGroup) bool {
		n := filled(group.Slots)
		return n < short || n > short+1
	})
}

// blocks gives each old group a block of g consecutive ranks of the target. A rank stays in its group: at another
// group's places it would overwrite its own pieces.
func (w *world) blocks(old oldLayer, g int) (blockOf []int, ok bool) {
	groups := len(old.layer.Experts)
	blockOf = make([]int, groups)
	taken := make([]bool, groups) // by block
	for i := range blockOf {
		blockOf[i] = -1
	}
	for at, rank := range w.target {
		i := old.seats[rank].group
		switch block := at / g; {
		case i < 0 || blockOf[i] == block:
		case blockOf[i] >= 0 || taken[block]:
			return nil, false
		default:
			blockOf[i], taken[block] = block, true
		}
	}
	next := 0
	for i, block := range blockOf {
		if block >= 0 {
			continue
		}
		for taken[next] {
			next++
		}
		blockOf[i], taken[next] = next, true
	}
	return blockOf, true
}

// inTheWay: a rank of the target holds a piece in the layer's bank outside the places of its future group.
func (w *world) inTheWay(o int, blockOf []int, g int) bool {
	for i, h := range w.held.extras {
		at, ok := slices.BinarySearch(w.target, h.rank)
		if !ok || h.bank != w.old[o].bank {
			continue
		}
		group := slices.Index(blockOf, at/g)
		if int(w.held.extraOf[i]) != o || w.positionOf(o, group, &w.held.extras[i], w.held.extraExpert[i]) < 0 {
			return true
		}
	}
	return false
}

// positionOf returns the position at whose place a piece in the bank of a layer of g > 1 is stored, -1 if at none.
func (w *world) positionOf(o, group int, h *holder, expert uint32) int {
	old := w.old[o]
	slots := old.layer.Experts[group].Slots
	if h.slot >= uint32(len(slots)) || slots[h.slot] != expert+1 {
		return -1
	}
	for p := range old.layer.ExpertGroupSize {
		if old.shards.of(expert, p) == h.run {
			return int(p)
		}
	}
	return -1
}
