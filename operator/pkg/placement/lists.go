package placement

import (
	"fmt"
	"slices"
)

// FromLists reads a placement from [layer][rank] lists of experts, the format of engines and files (Empty for an empty
// slot). Each rank gets `slots` slots, or as many as its fullest layer has if those are more.
func FromLists(lists [][][]int32, experts, slots int) (*Placement, error) {
	if len(lists) == 0 || len(lists[0]) == 0 {
		return nil, fmt.Errorf("%w: a placement of no layers or no ranks", ErrInput)
	}
	room := make([]int, len(lists[0]))
	for l, ranks := range lists {
		if len(ranks) != len(room) {
			return nil, fmt.Errorf("%w: layer %d of the placement is on %d ranks, layer 0 on %d", ErrInput, l, len(ranks), len(room))
		}
		for r, held := range ranks {
			room[r] = max(room[r], len(held), slots)
		}
	}
	p := &Placement{Experts: experts, Start: make([]int32, 1, len(room)+1)}
	for r, n := range room {
		p.Start = append(p.Start, p.Start[r]+int32(n))
	}
	for l, ranks := range lists {
		for r, held := range ranks {
			for _, e := range held {
				if e != Empty && (e < 0 || int(e) >= experts) {
					return nil, fmt.Errorf("%w: layer %d, rank %d of the placement holds expert %d; experts are 0 to %d", ErrInput, l, r, e, experts-1)
				}
			}
			p.Slot = append(p.Slot, held...)
			for range room[r] - len(held) {
				p.Slot = append(p.Slot, Empty)
			}
		}
	}
	return p, nil
}

// Lists returns [layer][rank] experts, slot by slot, Empty for an empty slot. (It is a load.Placement.)
func (p *Placement) Lists() [][][]int32 {
	out := make([][][]int32, p.Layers())
	for l := range out {
		for r := range p.Ranks() {
			out[l] = append(out[l], slices.Clone(p.Rank(l, r)))
		}
	}
	return out
}
