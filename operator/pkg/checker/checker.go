// Package checker replays a plan on a model of every rank's memory, granule by granule at byte addresses. It rejects
// violations of docs/architecture.md, section 8. It shares no code with pkg/planner: it computes addresses, pages,
// costs and completeness again from the messages. Pure.
package checker

import (
	"bytes"
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Case is a plan and its world.
type Case struct {
	Geometry    *geometry.View
	Revision    string
	Before      *tangramv1.Layout               // nil: first start
	Inventories map[string]*tangramv1.Inventory // by member id; absent: holds nothing
	Limits      map[string]uint64               // pool bytes by member id; absent: none
	Lost        map[string]bool                 // members of Before without an answering agent, or removed by a repair
	// Others are further layouts of pieces in the inventories: staged for them, or not yet retired.
	Others []*tangramv1.Layout
	Plan   *tangramv1.Plan
	Target []string // ids of the remaining members
	Shape  layout.Shape
}

// ident is a granule of an expert. Granule -1 is the expert's tail in the piece with granules start to end.
type ident struct {
	layer, expert uint32
	granule       int64
	start, end    uint32
}

func granule(layer, expert, g uint32) ident {
	return ident{layer: layer, expert: expert, granule: int64(g)}
}

type address struct {
	bank   uint32
	offset uint64
}

// memory is the content of one rank, by address of the first byte.
type memory map[address]ident

type player struct {
	Case
	now    *tangramv1.Layout
	mem    map[string]memory
	has    map[string]map[ident]bool // mem by content, built on first use
	dense  map[string]bool
	totals tangramv1.Cost
	// repaired: a flip of kind REPAIR was replayed.
	repaired bool
}

// Check replays the plan. Nil: the plan is valid.
func Check(c Case) error {
	p := &player{Case: c, now: c.Before, mem: map[string]memory{}, dense: map[string]bool{}}
	if err := p.load(); err != nil {
		return err
	}
	if c.Before == nil && len(c.Plan.Flips) == 0 {
		return fmt.Errorf("check: a first start without a flip")
	}
	for i, flip := range c.Plan.Flips {
		if err := p.play(flip); err != nil {
			return fmt.Errorf("check: flip %d (%v): %w", i, flip.Kind, err)
		}
	}
	if err := p.final(); err != nil {
		return fmt.Errorf("check: final layout: %w", err)
	}
	if hash, err := layout.Hash(p.now); err != nil || !bytes.Equal(hash, c.Plan.FinalHash) {
		return fmt.Errorf("check: final hash is not that of the layout after the last flip")
	}
	t, d := &p.totals, c.Plan.Cost
	if t.ExpertBytes != d.GetExpertBytes() || t.DenseBytes != d.GetDenseBytes() || t.CheckpointBytes != d.GetCheckpointBytes() ||
		t.LocalBytes != d.GetLocalBytes() {
		return fmt.Errorf("check: the plan declares %v, its parts move %v", d, t)
	}
	return nil
}

// load places the inventories. Pieces of Tensor banks are at the addresses of the layout before (or of Others); whole
// experts are at their slot.
func (p *player) load() error {
	if p.now != nil {
		hash, err := layout.Hash(p.now)
		if err != nil {
			return err
		}
		if !bytes.Equal(hash, p.Plan.FromHash) || p.Plan.FromEpoch != p.now.Epoch {
			return fmt.Errorf("check: the plan starts from another layout")
		}
	} else if len(p.Plan.FromHash) != 0 || p.Plan.FromEpoch != 0 {
		return fmt.Errorf("check: the plan starts from a layout, and nothing serves yet")
	}
	for id, inv := range p.Inventories {
		p.dense[id] = inv.Dense
		m := memory{}
		named := map[[5]uint32]uint64{} // bank, slot, expert, start, count -> offset
		for i := len(p.Others) - 1; i >= -1; i-- {
			l := p.now
			if i >= 0 {
				l = p.Others[i]
			}
			if rank := layout.RankOf(l, id); rank >= 0 {
				for _, q := range p.pieces(l, uint32(rank)) {
					named[[5]uint32{q.bank, q.slot, q.expert, q.start, q.count}] = q.offset
				}
			}
		}
		for i := range inv.Layer {
			offset, ok := named[[5]uint32{inv.Bank[i], inv.Slot[i], inv.Expert[i], inv.GranuleStart[i], inv.GranuleCount[i]}]
			if !ok {
				offset = uint64(inv.Slot[i]) * p.Geometry.ExpertPitch
			}
			p.put(m, placed{layer: inv.Layer[i], bank: inv.Bank[i], expert: inv.Expert[i], start: inv.GranuleStart[i],
				count: inv.GranuleCount[i], offset: offset})
		}
		p.mem[id] = m
	}
	return nil
}

// placed is a piece and its address.
type placed struct {
	layer, bank, slot, expert, start, count uint32
	offset                                  uint64
}

// pieces is the address rule, as section 8 words it.
func (p *player) pieces(l *tangramv1.Layout, rank uint32) []placed {
	var out []placed
	g := p.Geometry.Proto
	total := g.MoeInner / g.GranuleRows
	for _, layer := range l.Layers {
		ordinal := slices.Index(g.MoeLayers, layer.Layer)
		bank := uint32(ordinal + int(layer.BankOffset))
		for _, group := range layer.Experts {
			if len(group.Ranks) > 1 {
				out = append(out, p.shards(layer.Layer, bank, group, rank)...)
				continue
			}
			for slot, entry := range group.Slots {
				if group.Ranks[0] == rank && entry != 0 {
					out = append(out, placed{layer: layer.Layer, bank: bank, slot: uint32(slot), expert: entry - 1, count: total,
						offset: uint64(slot) * p.Geometry.ExpertPitch})
				}
			}
		}
	}
	return out
}

// shards walks the bank of a group of g > 1 from its first byte to its last, position by position, and collects the
// rank's pieces.
func (p *player) shards(layer, bank uint32, group *tangramv1.ExpertGroup, rank uint32) []placed {
	var out []placed
	g := p.Geometry.Proto
	total, size := int(g.MoeInner/g.GranuleRows), len(group.Ranks)
	begun := make([]int, g.Experts) // granules of each expert at earlier positions
	at := uint64(0)
	for position, holder := range group.Ranks {
		at = (at + g.PageBytes - 1) / g.PageBytes * g.PageBytes
		for slot, entry := range group.Slots {
			if entry == 0 {
				continue
			}
			e := int(entry - 1)
			count := total / size
			if (position+size-e%size)%size < total%size {
				count++
			}
			if holder == rank {
				out = append(out, placed{layer: layer, bank: bank, slot: uint32(slot), expert: entry - 1, start: uint32(begun[e]),
					count: uint32(count), offset: at})
			}
			begun[e] += count
			at = (at + uint64(count)*g.GranuleBytes + g.ExpertTailBytes + 255) / 256 * 256
		}
	}
	return out
}

func (p *player) put(m memory, q placed) {
	g := p.Geometry.Proto
	for i := range q.count {
		m[address{q.bank, q.offset + uint64(i)*g.GranuleBytes}] = granule(q.layer, q.expert, q.start+i)
	}
	if g.ExpertTailBytes > 0 {
		m[address{q.bank, q.offset + uint64(q.count)*g.GranuleBytes}] = ident{layer: q.layer, expert: q.expert, granule: -1,
			start: q.start, end: q.start + q.count}
	}
}

func (p *player) size(i ident) uint64 {
	if i.granule < 0 {
		return p.Geometry.Proto.ExpertTailBytes
	}
	return p.Geometry.Proto.GranuleBytes
}

func (p *player) play(flip *tangramv1.Flip) error {
	base, epoch := p.now, uint64(1)
	if base == nil {
		if flip.Kind != tangramv1.FlipKind_FLIP_KIND_FIRST {
			return fmt.Errorf("nothing serves yet")
		}
		base = &tangramv1.Layout{World: p.Plan.World, Revision: p.Revision, GeometryFingerprint: p.Geometry.Fingerprint,
			Layers: make([]*tangramv1.LayerLayout, p.Geometry.Proto.Layers)}
	} else {
		epoch = base.Epoch + 1
	}
	if flip.Epoch != epoch {
		return fmt.Errorf("epoch %d, expected %d", flip.Epoch, epoch)
	}
	next, err := layout.ApplyDelta(base, flip.Delta, epoch)
	if err != nil {
		return err
	}
	if err := layout.Validate(next, p.Geometry); err != nil {
		return err
	}
	hash, err := layout.Hash(next)
	if err != nil {
		return err
	}
	if !bytes.Equal(hash, flip.TargetHash) {
		return fmt.Errorf("target hash is not that of the layout the delta gives")
	}
	if err := p.kind(flip, base, next); err != nil {
		return err
	}
	numbering := next // ranks as the parts number them
	if flip.Kind == tangramv1.FlipKind_FLIP_KIND_LEAVE {
		numbering = base
	}
	after := map[string]memory{}
	dense := map[string]bool{}
	seen := map[string]bool{}
	var cost tangramv1.Cost
	for _, part := range flip.Parts {
		if int(part.Rank) >= len(numbering.Members) || numbering.Members[part.Rank].Id != part.Member || seen[part.Member] {
			return fmt.Errorf("part of rank %d, member %q: no such member, or twice", part.Rank, part.Member)
		}
		if p.Lost[part.Member] {
			return fmt.Errorf("part of rank %d, member %q, which is lost", part.Rank, part.Member)
		}
		seen[part.Member] = true
		m, err := p.part(flip, next, numbering, part, &cost)
		if err != nil {
			return fmt.Errorf("rank %d (%s): %w", part.Rank, part.Member, err)
		}
		rank := layout.RankOf(next, part.Member)
		after[part.Member], dense[part.Member] = m, rank >= 0 && layout.HoldsDense(next, uint32(rank))
	}
	for _, m := range numbering.Members {
		if !seen[m.Id] && !p.Lost[m.Id] {
			return fmt.Errorf("member %s has no part", m.Id)
		}
	}
	if flip.Kind == tangramv1.FlipKind_FLIP_KIND_FIRST {
		if err := p.onceFromCheckpoint(flip, next); err != nil {
			return err
		}
	}
	if err := p.denseWays(flip, numbering, &cost); err != nil {
		return err
	}
	if err := sameCost(&cost, flip.Cost); err != nil {
		return err
	}
	p.totals.ExpertBytes += cost.ExpertBytes
	p.totals.DenseBytes += cost.DenseBytes
	p.totals.CheckpointBytes += cost.CheckpointBytes
	p.totals.LocalBytes += cost.LocalBytes
	p.mem, p.has, p.dense, p.now = after, nil, dense, next
	return p.complete(next)
}

func sameCost(moved, declared *tangramv1.Cost) error {
	if moved.ExpertBytes != declared.GetExpertBytes() || moved.DenseBytes != declared.GetDenseBytes() ||
		moved.LocalBytes != declared.GetLocalBytes() || moved.CheckpointBytes != declared.GetCheckpointBytes() {
		return fmt.Errorf("declares %v, its parts move %v", declared, moved)
	}
	return nil
}

// kind checks what each kind of flip may do to members and places.
func (p *player) kind(flip *tangramv1.Flip, base, next *tangramv1.Layout) error {
	owns := func(l *tangramv1.Layout, rank int) bool {
		for _, layer := range l.Layers {
			for _, g := range layer.Experts {
				if slices.Contains(g.Ranks, uint32(rank)) {
					return true
				}
			}
			for _, g := range layer.Attention {
				if slices.Contains(g.Ranks, uint32(rank)) {
					return true
				}
			}
		}
		return false
	}
	if gives := flip.Kind == tangramv1.FlipKind_FLIP_KIND_LEAVE || flip.Kind == tangramv1.FlipKind_FLIP_KIND_REPAIR; gives &&
		len(flip.Delta.GetRenumber()) != len(base.Members) {
		return fmt.Errorf("new ranks of %d members, there were %d", len(flip.Delta.GetRenumber()), len(base.Members))
	}
	switch flip.Kind {
	case tangramv1.FlipKind_FLIP_KIND_FIRST:
		if p.now != nil {
			return fmt.Errorf("a layout serves already")
		}
		return nil
	case tangramv1.FlipKind_FLIP_KIND_JOIN:
		for i, m := range next.Members {
			if i < len(base.Members) && base.Members[i].Id != m.Id {
				return fmt.Errorf("rank %d changes from %s to %s", i, base.Members[i].Id, m.Id)
			}
			if i >= len(base.Members) && owns(next, i) {
				return fmt.Errorf("joiner %s is in a group", m.Id)
			}
			if i >= len(base.Members) && !layout.HoldsDense(next, uint32(i)) {
				return fmt.Errorf("joiner %s is without the dense weights", m.Id)
			}
		}
		if len(next.Members) <= len(base.Members) {
			return fmt.Errorf("no member joins")
		}
	case tangramv1.FlipKind_FLIP_KIND_LAYOUT:
		if flip.Delta.MembersChanged || len(flip.Delta.Renumber) > 0 {
			return fmt.Errorf("members change")
		}
		rewritten := 0
		for i, layer := range next.Layers {
			if before := base.Layers[i]; before.BankOffset != layer.BankOffset {
				rewritten++
			}
		}
		if spare := int(next.Banks) - p.Geometry.MoELayers(); rewritten > spare {
			return fmt.Errorf("%d layers are rewritten with %d spare banks", rewritten, spare)
		}
	case tangramv1.FlipKind_FLIP_KIND_LEAVE:
		stay := []string{}
		for rank, m := range base.Members {
			if flip.Delta.Renumber[rank] != 0 {
				stay = append(stay, m.Id)
			} else if owns(base, rank) || len(p.mem[m.Id]) > 0 {
				return fmt.Errorf("leaver %s is not empty", m.Id)
			}
		}
		if !slices.EqualFunc(next.Members, stay, func(m *tangramv1.Member, id string) bool { return m.Id == id }) {
			return fmt.Errorf("those who stay change their order")
		}
	case tangramv1.FlipKind_FLIP_KIND_REPAIR:
		return p.repair(flip, base, next)
	default:
		return fmt.Errorf("unknown kind")
	}
	return nil
}
