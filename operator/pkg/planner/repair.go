package planner

import (
	"fmt"

	"tangram.dev/operator/pkg/bound"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// RepairInput is a world after a fence, and its survivors' inventories.
type RepairInput struct {
	World    string
	Revision string
	Geometry *geometry.View
	Current  *tangramv1.Layout // active layout of the survivors
	// Survivors: members of Current that the fence kept, in any order. Their inventories may hold pieces that Current
	// does not name, staged or not yet retired: all are sources. All of Current's members is allowed: then no piece
	// moves, and only the epoch is new.
	Survivors []Member
}

// Repair plans the one flip of kind REPAIR without the members that the fence removed (architecture, section 8).
// Survivors keep their pieces in place. Pieces that no rank holds are read from the checkpoint, each byte once. Errors:
// IsNoMemory with the numbers, IsBeyondRepair if the world must restart from the checkpoint.
func Repair(in RepairInput) (*Result, error) {
	c, err := newRepair(in)
	if err != nil {
		return nil, err
	}
	t, b := newTakeover(c.world), c.newParts(len(c.members))
	layers := make([]*tangramv1.LayerLayout, len(c.cur.Layers))
	for l := range layers {
		if layers[l], err = t.layer(uint32(l)); err != nil {
			return nil, err
		}
		if o := c.v.Ordinal(uint32(l)); o >= 0 {
			c.complete(b, o, layers[l])
		}
	}
	b.cost.ExpertBoundBytes = bound.RepairBytes(c.v, c.held.forBound())
	c.bringDense(b)
	c.repairMemory(b, t, layers)
	return c.repairFlip(b, layers)
}

// newRepair reads a repair's input. The ranks of the chain are those of Current; only survivors answer.
func newRepair(in RepairInput) (*chain, error) {
	if in.Current == nil {
		return nil, fmt.Errorf("repair: no layout is active yet")
	}
	if len(in.Survivors) == 0 {
		return nil, &beyondRepair{"no member survives"}
	}
	plain := Input{World: in.World, Revision: in.Revision, Geometry: in.Geometry, Current: in.Current, Members: in.Survivors}
	for _, m := range in.Survivors {
		if layout.RankOf(in.Current, m.Member.GetId()) < 0 {
			return nil, fmt.Errorf("repair: %q survives, but is no member of the layout of epoch %d", m.Member.GetId(), in.Current.Epoch)
		}
		plain.Target = append(plain.Target, m.Member.Id)
	}
	w, err := newWorld(plain)
	if err != nil {
		return nil, err
	}
	w.readLayers()
	if err := w.readInventories(); err != nil {
		return nil, err
	}
	return w.newChain()
}

// forBound returns the holdings in the format of pkg/bound.
func (h *holdings) forBound() [][][]bound.Held {
	out := make([][][]bound.Held, (len(h.first)-1)/h.experts)
	for o := range out {
		out[o] = make([][]bound.Held, h.experts)
		for e := range out[o] {
			for _, one := range h.of(o, e) {
				out[o][e] = append(out[o][e], bound.Held{Rank: one.rank, Run: one.run})
			}
		}
	}
	return out
}

// complete fetches every piece of a MoE layer that its rank does not hold in its place.
func (c *chain) complete(b *parts, o int, next *tangramv1.LayerLayout) {
	old, intact := c.old[o], 0
	for _, group := range old.layer.Experts {
		for _, rank := range group.Ranks {
			if !c.lost(rank) {
				intact += filled(group.Slots)
			}
		}
	}
	undamaged := intact == c.named[o]
	if undamaged && next == old.layer {
		return
	}
	for _, group := range next.Experts {
		for p, rank := range group.Ranks {
			at := old.seats[rank]
			stood := false // the rank keeps its pieces of this position
			for _, q := range at.positions {
				stood = stood || int(q) == p
			}
			for slot, entry := range group.Slots {
				if entry == 0 {
					continue
				}
				if undamaged && stood {
					if before := old.layer.Experts[at.group].Slots; slot < len(before) && before[slot] == entry {
						continue
					}
				}
				c.need(b, b.parts[rank], next.Layer, o, entry-1, old.shards.of(entry-1, uint32(p)), old.bank, uint32(slot), true, true)
			}
		}
	}
}

// repairMemory declares each rank's bytes. No piece that a layout names is freed, so the peak is the final state plus
// the extras that are freed then.
func (c *chain) repairMemory(b *parts, t *takeover, layers []*tangramv1.LayerLayout) {
	page := c.v.Proto.PageBytes
	pages := c.repairedPages(layers)
	for _, rank := range c.target {
		part := b.parts[rank]
		part.SteadyBytes = (pages[rank] + c.v.DensePages) * page
		part.PeakBytes = part.SteadyBytes + t.extraPages(rank, layers)*page
	}
}

// repairedPages returns the pages of experts of each rank under these layers.
func (w *world) repairedPages(layers []*tangramv1.LayerLayout) []uint64 {
	pages := make([]uint64, len(w.members))
	for o, old := range w.old {
		next := layers[old.layer.Layer]
		seats := seatsOf(next, len(w.members))
		for _, rank := range w.target {
			pages[rank] += w.layerPages(next, seats[rank], w.old[o].shards, nil, nil)
		}
	}
	return pages
}

// extraPages returns the pages of a rank's extras beyond those of the layers.
func (t *takeover) extraPages(rank uint32, layers []*tangramv1.LayerLayout) uint64 {
	page, pages := t.v.Proto.PageBytes, uint64(0)
	user := make([]*tangramv1.LayerLayout, t.cur.Banks)
	for o := range t.old {
		user[t.old[o].bank] = layers[t.old[o].layer.Layer]
	}
	for bank := range t.cur.Banks {
		indices := t.extras[[2]uint32{rank, bank}]
		if len(indices) == 0 {
			continue
		}
		var here []layout.Piece
		if user[bank] != nil {
			here = layout.LayerPieces(user[bank], t.v, rank)
		}
		before := layout.Pages(here, t.v)
		for _, i := range indices {
			h := t.held.extras[i]
			p := layout.Piece{Bank: bank, Bytes: t.v.PieceBytes(h.run.Count)}
			switch offset, known := t.extraOffset(i, user[bank]); {
			case known:
				p.Offset = offset
				here = append(here, p)
			default: // maximum number of pages that it can touch
				pages += (p.Bytes-1)/page + 2
			}
		}
		pages += layout.Pages(here, t.v) - before
	}
	return pages
}

// extraOffset returns the offset of an extra in its bank, if it is known.
func (t *takeover) extraOffset(i int, user *tangramv1.LayerLayout) (uint64, bool) {
	h, expert := t.held.extras[i], t.held.extraExpert[i]
	if h.run.Count == t.v.Granules {
		return uint64(h.slot) * t.v.ExpertPitch, true
	}
	o := int(t.held.extraOf[i])
	if user == nil || user.Layer != t.old[o].layer.Layer {
		return 0, false
	}
	for g, group := range user.Experts {
		if p := t.positionOf(o, g, &h, expert); p >= 0 {
			for _, piece := range layout.PositionPieces(user, group, t.v, uint32(p)) {
				if piece.Slot == h.slot {
					return piece.Offset, true
				}
			}
		}
	}
	return 0, false
}

// repairFlip renumbers everything to the survivors' ranks, and builds the flip.
func (c *chain) repairFlip(b *parts, layers []*tangramv1.LayerLayout) (*Result, error) {
	delta := &tangramv1.LayoutDelta{MembersChanged: true, Renumber: make([]uint32, len(c.members))}
	for i, rank := range c.target {
		delta.Renumber[rank] = uint32(i) + 1
		delta.Members = append(delta.Members, c.members[rank])
	}
	delta.Dense, delta.Stages = c.everyone(len(c.target))
	for l, layer := range layers {
		if layer != c.cur.Layers[l] {
			renumber(layer, delta.Renumber)
			delta.Layers = append(delta.Layers, layer)
		}
	}
	next, err := layout.ApplyDelta(c.cur, delta, c.cur.Epoch+1)
	if err != nil {
		return nil, fmt.Errorf("repair, a fault of the planner: %w", err)
	}
	for _, part := range b.parts {
		if part == nil {
			continue
		}
		part.Rank = delta.Renumber[part.Rank] - 1
		for _, sources := range [][]uint32{part.GetFetches().GetSource(), part.GetDense().GetSourceByPart()} {
			for i, source := range sources {
				if source != 0 {
					sources[i] = delta.Renumber[source-1]
				}
			}
		}
	}
	if err := c.emit(tangramv1.FlipKind_FLIP_KIND_REPAIR, delta, next, b); err != nil {
		return nil, err
	}
	return c.finish()
}

// renumber is for layers that are not shared outside the planner.
func renumber(layer *tangramv1.LayerLayout, to []uint32) {
	mapped := func(ranks []uint32) []uint32 {
		out := make([]uint32, len(ranks))
		for i, rank := range ranks {
			out[i] = to[rank] - 1
		}
		return out
	}
	for _, g := range layer.Experts {
		g.Ranks = mapped(g.Ranks)
	}
	for _, g := range layer.Attention {
		g.Ranks = mapped(g.Ranks)
	}
}
