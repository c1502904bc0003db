package planner

import (
	"tangram.dev/operator/pkg/bound"
	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// parts are the ranks' parts of one flip under construction.
type parts struct {
	parts []*tangramv1.RankPart // by rank; nil for a lost member, which takes no part
	cost  tangramv1.Cost
	load  []uint64 // granules that each rank sends in this flip
	peak  []int64  // pages of banks, by rank, above the current number
	delta []int64  // the same after Retire
	room  int      // capacity for the fetches of a rank that had none so far
}

func (c *chain) newParts(n int) *parts {
	b := &parts{parts: make([]*tangramv1.RankPart, n), load: make([]uint64, n), peak: make([]int64, n), delta: make([]int64, n)}
	for r := range n {
		if c.lost(uint32(r)) {
			continue
		}
		b.parts[r] = &tangramv1.RankPart{Rank: uint32(r), Member: c.members[r].Id}
	}
	return b
}

// lost reports whether a member of the current layout has no answering agent.
func (w *world) lost(rank uint32) bool {
	if w.cur == nil || int(rank) >= len(w.cur.Members) {
		return false
	}
	return !w.answers[rank]
}

// settle converts pages to the declared bytes. By the flip, all ranks with a part have the dense weights, and keep
// them; with `stays` (by rank), only staying ranks keep them.
func (c *chain) settle(b *parts, stays []bool) {
	page := c.v.Proto.PageBytes
	for r, part := range b.parts {
		banks := c.pages[r]
		c.pages[r] = uint64(int64(banks) + b.delta[r])
		if part == nil {
			continue
		}
		after := c.v.DensePages
		if stays != nil && !stays[r] {
			after = 0
		}
		part.SteadyBytes = (c.pages[r] + after) * page
		part.PeakBytes = (uint64(int64(banks)+b.peak[r]) + c.extra[r] + c.v.DensePages) * page
	}
}

// bring adds the missing pieces of a changed layer to each rank's part.
func (c *chain) bring(b *parts, ch *change, useExtras bool) {
	useExtras = useExtras && ch.inPlace
	bank := uint32(int64(ch.ordinal) + int64(ch.next.BankOffset))
	for _, group := range ch.next.Experts {
		for p, rank := range group.Ranks {
			part := b.parts[rank]
			if b.room = len(group.Slots); c.cur == nil {
				b.room *= c.v.MoELayers()
			}
			for slot, entry := range group.Slots {
				if entry == 0 {
					continue
				}
				e := entry - 1
				c.need(b, part, ch.layer, ch.ordinal, e, ch.shards.of(e, uint32(p)), bank, uint32(slot), ch.inPlace, useExtras)
			}
		}
	}
	for r := range c.members {
		now, next := uint64(0), c.layerPages(ch.next, ch.seats[r], ch.shards, nil, nil)
		if c.cur != nil {
			old := c.old[ch.ordinal]
			now = c.layerPages(old.layer, old.seats[r], old.shards, nil, nil)
			if ch.inPlace && now > 0 && next > 0 {
				at := old.seats[r]
				both := c.layerPages(ch.next, ch.seats[r], ch.shards, old.layer.Experts[at.group].Slots, at.positions)
				b.peak[r] += int64(both) - int64(now)
				b.delta[r] += int64(next) - int64(now)
				continue
			}
		}
		b.peak[r] += int64(next)
		b.delta[r] += int64(next) - int64(now)
	}
	b.cost.ExpertBoundBytes += c.bound(ch, useExtras)
}

func (c *chain) bound(ch *change, useExtras bool) uint64 {
	held := make([][]bound.Held, c.held.experts)
	all := c.holders[:0]
	for e := range held {
		from := len(all)
		for _, h := range c.held.of(ch.ordinal, e) {
			if !h.extra || useExtras {
				all = append(all, bound.Held{Rank: h.rank, Run: h.run})
			}
		}
		held[e] = all[from:]
	}
	c.holders = all
	if ch.placed != nil {
		return bound.Placed(c.v, held, c.target, ch.placed)
	}
	return c.bounds.Layer(held, c.target, ch.next.ExpertGroupSize)
}

func newFetches(n int) *tangramv1.Fetches {
	all := make([]uint32, 5*n)
	column := func(i int) []uint32 { return all[i*n : i*n : (i+1)*n] }
	return &tangramv1.Fetches{Layer: column(0), Expert: column(1), GranuleStart: column(2), GranuleCount: column(3),
		Source: column(4)}
}

// need adds one piece: nothing if it is in place, local copies of granules that the rank holds elsewhere, fetches of
// the rest.
func (c *chain) need(b *parts, part *tangramv1.RankPart, layer uint32, ordinal int, e uint32, want geometry.Run, bank, slot uint32,
	inPlace, useExtras bool) {
	hs := c.held.of(ordinal, int(e))
	granule := c.v.Proto.GranuleBytes
	var buffer [8]geometry.Run
	var runs []geometry.Run
	for i, h := range hs {
		if h.rank != part.Rank {
			continue
		}
		if inPlace && h.bank == bank && h.slot == slot && h.run == want && (!h.extra || useExtras) {
			return
		}
		if runs == nil {
			j := i + 1
			for j < len(hs) && hs[j].rank == h.rank {
				j++
			}
			runs = runsOf(hs[i:j], useExtras, buffer[:])
		}
	}
	at := want.Start
	for _, mine := range runs {
		have := mine.Overlap(want)
		if have.Count == 0 {
			continue
		}
		c.fetch(b, part, layer, e, hs, geometry.Run{Start: at, Count: have.Start - at}, useExtras)
		if part.Copies == nil {
			part.Copies = &tangramv1.LocalCopies{}
		}
		part.Copies.Layer = append(part.Copies.Layer, layer)
		part.Copies.Expert = append(part.Copies.Expert, e)
		part.Copies.GranuleStart = append(part.Copies.GranuleStart, have.Start)
		part.Copies.GranuleCount = append(part.Copies.GranuleCount, have.Count)
		b.cost.LocalBytes += uint64(have.Count) * granule
		at = have.End()
	}
	fromCheckpoint := c.fetch(b, part, layer, e, hs, geometry.Run{Start: at, Count: want.End() - at}, useExtras)
	// As agents fetch it (docs/architecture.md, section 8).
	tail := c.v.Proto.ExpertTailBytes
	switch {
	case len(runs) > 0:
		b.cost.LocalBytes += tail
	case fromCheckpoint:
		b.cost.CheckpointBytes += tail
		b.cost.ExpertBytes += tail
	default:
		b.cost.ExpertBytes += tail
	}
}

// fetch adds fetches of granules that the rank lacks, each run from a rank that holds it: the nearest and, among
// equals, the one that sends least so far. It reports whether the checkpoint must be read.
func (c *chain) fetch(b *parts, part *tangramv1.RankPart, layer, e uint32, hs []holder, want geometry.Run, useExtras bool) bool {
	checkpoint := false
	granule := c.v.Proto.GranuleBytes
	if c.in.Options.FromCheckpoint {
		hs = nil
	}
	nears := c.nears[int(part.Rank)*len(c.members):]
	for at := want.Start; at < want.End(); {
		var best *holder
		end := want.End() // of the run from the checkpoint if no rank holds `at`
		for i := range hs {
			h := &hs[i]
			if h.extra && !useExtras { // the rank itself holds no granule that it lacks
				continue
			}
			if at < h.run.Start {
				end = min(end, h.run.Start)
				continue
			}
			if at >= h.run.End() {
				continue
			}
			if best == nil || nears[h.rank] < nears[best.rank] ||
				(nears[h.rank] == nears[best.rank] && b.load[h.rank] < b.load[best.rank]) {
				best = h
			}
		}
		source := uint32(0)
		if best != nil {
			source, end = best.rank+1, min(want.End(), best.run.End())
			b.load[best.rank] += uint64(end - at)
		}
		if part.Fetches == nil {
			part.Fetches = newFetches(b.room)
		}
		f := part.Fetches
		f.Layer = append(f.Layer, layer)
		f.Expert = append(f.Expert, e)
		f.GranuleStart = append(f.GranuleStart, at)
		f.GranuleCount = append(f.GranuleCount, end-at)
		f.Source = append(f.Source, source)
		size := uint64(end-at) * granule
		b.cost.ExpertBytes += size
		if source == 0 {
			b.cost.CheckpointBytes += size
			checkpoint = true
		}
		at = end
	}
	return checkpoint
}

// damaged reports whether an answering agent lacks a piece of the layout.
func (c *chain) damaged() bool {
	for r := range c.members {
		if !c.lost(uint32(r)) && !c.dense[r] {
			return true
		}
	}
	for o := range c.old {
		if c.named[o] != c.old[o].pieces {
			return true
		}
	}
	return false
}

// repair fetches, in the first flip, pieces of the layout that their rank lacks, in layers that this flip does not
// change.
func (c *chain) repair(b *parts, changed step) {
	skip := map[int]bool{}
	for _, ch := range changed {
		skip[ch.ordinal] = ch.experts
	}
	for o, old := range c.old {
		if skip[o] || c.named[o] == old.pieces {
			continue
		}
		type place struct {
			rank  uint32
			slot  uint32
			start uint32 // distinguishes a rank's positions
		}
		held := map[place]bool{}
		for e := range c.held.experts {
			for _, h := range c.held.of(o, e) {
				if !h.extra {
					held[place{h.rank, h.slot, h.run.Start}] = true
				}
			}
		}
		for _, group := range old.layer.Experts {
			for p, rank := range group.Ranks {
				part := b.parts[rank]
				for slot, entry := range group.Slots {
					if part == nil || entry == 0 {
						continue
					}
					want := old.shards.of(entry-1, uint32(p))
					if held[place{rank, uint32(slot), want.Start}] {
						continue
					}
					before := b.cost.ExpertBytes
					c.need(b, part, old.layer.Layer, o, entry-1, want, old.bank, uint32(slot), false, true)
					b.cost.ExpertBoundBytes += b.cost.ExpertBytes - before
				}
			}
		}
	}
}
