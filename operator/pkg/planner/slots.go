package planner

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// liesAs reports whether the layer has exactly these experts on the ranks of the target, in any slots.
func (w *world) liesAs(old oldLayer, placed [][]uint32) bool {
	if old.layer.ExpertGroupSize != 1 || len(old.layer.Experts) != len(w.target) {
		return false
	}
	for i, rank := range w.target {
		at := old.seats[rank].group
		if at < 0 {
			return false
		}
		var here []uint32
		for _, entry := range old.layer.Experts[at].Slots {
			if entry != 0 {
				here = append(here, entry-1)
			}
		}
		slices.Sort(here)
		if !slices.Equal(here, placed[i]) {
			return false
		}
	}
	return true
}

// placeAs gives each rank of the target its requested experts; held ones stay in their slot. A first layout has one
// copy of each, because one rank reads each byte once then.
func (w *world) placeAs(c *change, placed [][]uint32) error {
	if copies := len(slices.Concat(placed...)); w.cur == nil && copies > w.held.experts {
		return fmt.Errorf("plan: layer %d: a first layout with %d copies of %d experts: start with one of each, replicate then",
			c.layer, copies, w.held.experts)
	}
	c.inPlace = w.cur != nil && w.old[c.ordinal].layer.ExpertGroupSize == 1
	c.placed = placed
	c.next.Experts = make([]*tangramv1.ExpertGroup, len(w.target))
	for i, rank := range w.target {
		c.next.Experts[i] = &tangramv1.ExpertGroup{Ranks: []uint32{rank}}
		for _, e := range placed[i] {
			c.next.Experts[i].Slots = append(c.next.Experts[i].Slots, e+1)
		}
	}
	if c.inPlace {
		c.next.BankOffset = w.old[c.ordinal].layer.BankOffset
		if err := w.slotsInPlace(c, placed); err != nil {
			return err
		}
	}
	c.seats = seatsOf(c.next, len(w.members))
	return nil
}

// byGroup lists the experts of each group, ascending.
func byGroup(owners []int, groups int) [][]uint32 {
	count := make([]int, groups)
	for _, j := range owners {
		count[j]++
	}
	out, all := make([][]uint32, groups), make([]uint32, len(owners))
	for j, n := range count {
		out[j], all = all[:0:n], all[n:]
	}
	for e, j := range owners {
		out[j] = append(out[j], uint32(e))
	}
	return out
}

// slotsInPlace keeps the slot of every expert that a rank holds whole. The others get slots that are empty and that the
// old layout does not use either: a slot that this flip empties is still being read.
func (w *world) slotsInPlace(c *change, experts [][]uint32) error {
	old := w.old[c.ordinal]
	size := w.held.experts + geometry.SpareSlots
	kept := make([][]uint32, len(w.target)) // slots by group, as in ExpertGroup
	taken := make([][]bool, len(w.target))  // as short as possible: a rank uses few of all slots
	for j, rank := range w.target {
		if at := old.seats[rank].group; at >= 0 {
			slots := old.layer.Experts[at].Slots
			taken[j] = make([]bool, len(slots)+len(experts[j]))
			kept[j] = make([]uint32, 0, len(taken[j]))
			for s, entry := range slots {
				taken[j][s] = entry != 0
			}
		}
	}
	for _, h := range w.held.extras {
		if j, ok := slices.BinarySearch(w.target, h.rank); ok && h.bank == old.bank {
			if h.run.Count != w.v.Granules || int(h.slot) >= size {
				return w.stray(h)
			}
			set(&taken[j], int(h.slot), true)
		}
	}
	for j, mine := range experts {
		free := 0 // no slot below it is free
		for _, e := range mine {
			slot := -1
			for _, h := range w.held.of(c.ordinal, int(e)) { // whole ones, in this bank
				if h.rank == w.target[j] && h.bank == old.bank && at(kept[j], int(h.slot)) == 0 && (slot < 0 || !h.extra) {
					slot = int(h.slot)
				}
			}
			if slot < 0 {
				for free < size && at(taken[j], free) {
					free++
				}
				if slot = free; slot == size {
					return fmt.Errorf("plan: layer %d: rank %d has no free slot of %d for expert %d", c.layer, w.target[j], size, e)
				}
				set(&taken[j], slot, true)
			}
			set(&kept[j], slot, e+1)
		}
		c.next.Experts[j].Slots = slices.Clip(kept[j])
	}
	return nil
}

// at returns element i, or zero beyond the end; set extends the list as needed.
func at[T any](list []T, i int) (value T) {
	if i < len(list) {
		value = list[i]
	}
	return value
}

func set[T any](list *[]T, i int, value T) {
	for len(*list) <= i {
		var none T
		*list = append(*list, none)
	}
	(*list)[i] = value
}

func (w *world) stray(h holder) error {
	return fmt.Errorf("plan: rank %d (%s) still holds granules %d..%d in slot %d of bank %d, which the layout of epoch %d "+
		"does not name: retire before planning", h.rank, w.members[h.rank].Id, h.run.Start, h.run.End(), h.slot, h.bank, w.cur.Epoch)
}
