package checker

import (
	"fmt"
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// repair checks the one flip without the lost members. The survivors keep their order and their pieces in place. Only
// pieces that lost members alone served are reassigned, evenly.
func (p *player) repair(flip *tangramv1.Flip, base, next *tangramv1.Layout) error {
	p.repaired = true
	if len(p.Plan.Flips) != 1 {
		return fmt.Errorf("one of %d flips", len(p.Plan.Flips))
	}
	stay := []uint32{} // rank before, by rank after
	for rank, m := range base.Members {
		if !p.Lost[m.Id] {
			stay = append(stay, uint32(rank))
		}
	}
	if len(stay) != len(next.Members) {
		return fmt.Errorf("%d members survive, the layout has %d", len(stay), len(next.Members))
	}
	for after, before := range stay {
		if id := base.Members[before].Id; next.Members[after].Id != id || flip.Delta.Renumber[before] != uint32(after)+1 {
			return fmt.Errorf("rank %d is %s, not the survivor %s", after, next.Members[after].Id, id)
		}
	}
	for rank := range stay {
		if !slices.Contains(next.Dense.Ranks, uint32(rank)) {
			return fmt.Errorf("rank %d is without the dense weights", rank)
		}
	}
	if next.Banks != base.Banks {
		return fmt.Errorf("%d banks, there were %d", next.Banks, base.Banks)
	}
	if err := p.keptInPlace(base, next, stay); err != nil {
		return err
	}
	for l, layer := range next.Layers {
		before := base.Layers[l]
		if layer.ExpertGroupSize != before.ExpertGroupSize {
			return fmt.Errorf("layer %d: groups of %d, there were groups of %d", l, layer.ExpertGroupSize, before.ExpertGroupSize)
		}
		var err error
		if layer.ExpertGroupSize == 1 {
			err = p.wholeTaken(before, layer, stay)
		} else {
			err = p.positionsTaken(before, layer, stay)
		}
		if err == nil {
			err = headsFormed(before, layer, stay)
		}
		if err != nil {
			return fmt.Errorf("layer %d: %w", l, err)
		}
	}
	return nil
}

// keptInPlace: each survivor keeps its pieces, at the same bytes.
func (p *player) keptInPlace(base, next *tangramv1.Layout, stay []uint32) error {
	for after, before := range stay {
		has := map[placed]bool{}
		for _, q := range p.pieces(next, uint32(after)) {
			has[q] = true
		}
		for _, q := range p.pieces(base, before) {
			if !has[q] {
				return fmt.Errorf("rank %d had %+v and does not any more", before, q)
			}
		}
	}
	return nil
}

// wholeTaken: a rank that takes experts does not have more than another possible taker, unless it already held part of
// them.
func (p *player) wholeTaken(before, after *tangramv1.LayerLayout, stay []uint32) error {
	had, has := make([]map[uint32]bool, len(stay)), make([]map[uint32]bool, len(stay))
	served := map[uint32]bool{}
	for rank := range stay {
		had[rank], has[rank] = map[uint32]bool{}, map[uint32]bool{}
		for _, g := range before.Experts {
			for _, entry := range g.Slots {
				if g.Ranks[0] == stay[rank] && entry != 0 {
					had[rank][entry-1], served[entry-1] = true, true
				}
			}
		}
		for _, g := range after.Experts {
			for _, entry := range g.Slots {
				if g.Ranks[0] == uint32(rank) && entry != 0 {
					has[rank][entry-1] = true
				}
			}
		}
	}
	fewest := p.Geometry.Proto.Experts
	for rank := range stay {
		fewest = min(fewest, uint32(len(has[rank])))
	}
	for rank := range stay {
		for e := range has[rank] {
			if had[rank][e] {
				continue
			}
			if served[e] {
				return fmt.Errorf("rank %d takes expert %d, which a survivor serves", rank, e)
			}
			member := p.now.Members[stay[rank]].Id
			if uint32(len(has[rank])) > fewest+1 && !p.heldAny(before.Layer, e) {
				return fmt.Errorf("rank %d (%s) takes expert %d and has %d then, another one has %d", rank, member, e, len(has[rank]), fewest)
			}
		}
	}
	return nil
}

// heldAny reports whether some survivor holds part of an expert.
func (p *player) heldAny(layer, expert uint32) bool {
	for id := range p.Inventories {
		for i := range p.holds(id) {
			if i.layer == layer && i.expert == expert {
				return true
			}
		}
	}
	return false
}

// positionsTaken: groups keep slots and survivors. A lost position goes to a survivor of the group or, if there is
// none, to a rank that was in no group.
func (p *player) positionsTaken(before, after *tangramv1.LayerLayout, stay []uint32) error {
	if len(after.Experts) != len(before.Experts) {
		return fmt.Errorf("%d expert groups, there were %d", len(after.Experts), len(before.Experts))
	}
	in := func(rank uint32) int {
		return slices.IndexFunc(before.Experts, func(g *tangramv1.ExpertGroup) bool { return slices.Contains(g.Ranks, rank) })
	}
	for i, g := range after.Experts {
		was := before.Experts[i]
		if !slices.Equal(g.Slots, was.Slots) {
			return fmt.Errorf("expert group %d changes its slots", i)
		}
		lives := slices.ContainsFunc(was.Ranks, func(r uint32) bool { return slices.Contains(stay, r) })
		for position, rank := range g.Ranks {
			from := stay[rank]
			switch {
			case slices.Contains(stay, was.Ranks[position]):
				if from != was.Ranks[position] {
					return fmt.Errorf("expert group %d: position %d goes from rank %d, which lives, to %d", i, position, was.Ranks[position], from)
				}
			case lives && in(from) != i, !lives && in(from) >= 0:
				return fmt.Errorf("expert group %d: position %d goes to rank %d of group %d", i, position, from, in(from))
			}
		}
	}
	return nil
}

// headsFormed: survivors of attention groups are in attention groups, once.
func headsFormed(before, after *tangramv1.LayerLayout, stay []uint32) error {
	count := make([]int, len(stay))
	for _, g := range after.Attention {
		for _, rank := range g.Ranks {
			count[rank]++
		}
	}
	anybody := slices.ContainsFunc(before.Attention, func(g *tangramv1.AttentionGroup) bool {
		return slices.ContainsFunc(g.Ranks, func(r uint32) bool { return slices.Contains(stay, r) })
	})
	for rank, from := range stay {
		was := slices.ContainsFunc(before.Attention, func(g *tangramv1.AttentionGroup) bool { return slices.Contains(g.Ranks, from) })
		want := 0
		if was || !anybody {
			want = 1
		}
		if count[rank] != want {
			return fmt.Errorf("rank %d is in %d attention groups, wanted %d", rank, count[rank], want)
		}
	}
	return nil
}
