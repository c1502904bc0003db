package checker

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// brought is the source of a granule: 0 checkpoint, n rank n-1, or the rank itself.
type brought struct {
	source uint32
	local  bool
}

// part replays one rank's part and returns its memory after Retire.
func (p *player) part(flip *tangramv1.Flip, next, numbering *tangramv1.Layout, part *tangramv1.RankPart,
	cost *tangramv1.Cost) (memory, error) {
	old := p.mem[part.Member]
	holds := map[ident]bool{}
	knows := map[[2]uint32]bool{} // layer, expert: holds some granule of it, and so its tail
	for _, i := range old {
		holds[i] = true
		knows[[2]uint32{i.layer, i.expert}] = true
	}
	want := memory{}
	rank := layout.RankOf(next, part.Member)
	if rank >= 0 {
		for _, q := range p.pieces(next, uint32(rank)) {
			p.put(want, q)
		}
	}
	comes := map[ident]brought{}
	add := func(i ident, b brought) error {
		if _, twice := comes[i]; twice {
			return fmt.Errorf("%v comes twice", i)
		}
		comes[i] = b
		return nil
	}
	f := part.GetFetches()
	n := len(f.GetLayer())
	if len(f.GetExpert()) != n || len(f.GetGranuleStart()) != n || len(f.GetGranuleCount()) != n || len(f.GetSource()) != n {
		return nil, fmt.Errorf("columns of fetches differ in length")
	}
	for i := range n {
		for g := range f.GranuleCount[i] {
			id := granule(f.Layer[i], f.Expert[i], f.GranuleStart[i]+g)
			if err := p.source(flip, numbering, part, f.Source[i], id); err != nil {
				return nil, err
			}
			if err := add(id, brought{source: f.Source[i]}); err != nil {
				return nil, err
			}
			cost.ExpertBytes += p.size(id)
			if f.Source[i] == 0 {
				cost.CheckpointBytes += p.size(id)
			}
		}
	}
	c := part.GetCopies()
	n = len(c.GetLayer())
	if len(c.GetExpert()) != n || len(c.GetGranuleStart()) != n || len(c.GetGranuleCount()) != n {
		return nil, fmt.Errorf("columns of copies differ in length")
	}
	for i := range n {
		if !p.inOnePiece(old, c.Layer[i], c.Expert[i], c.GranuleStart[i], c.GranuleCount[i]) {
			return nil, fmt.Errorf("copies layer %d, expert %d, granules %d..%d, which lie in no one place", c.Layer[i], c.Expert[i],
				c.GranuleStart[i], c.GranuleStart[i]+c.GranuleCount[i])
		}
		for g := range c.GranuleCount[i] {
			id := granule(c.Layer[i], c.Expert[i], c.GranuleStart[i]+g)
			if !holds[id] {
				return nil, fmt.Errorf("copies %v, which it does not hold", id)
			}
			if err := add(id, brought{local: true}); err != nil {
				return nil, err
			}
			cost.LocalBytes += p.size(id)
		}
	}
	if err := p.cover(old, want, comes, knows, cost); err != nil {
		return nil, err
	}
	if err := p.noOverlap(old, want); err != nil {
		return nil, err
	}
	denseAfter := rank >= 0 && layout.HoldsDense(next, uint32(rank))
	if err := p.densePart(numbering, part, denseAfter, cost); err != nil {
		return nil, err
	}
	return want, p.room(old, want, denseAfter, part)
}

// inOnePiece: an agent copies a run from one piece, so its granules must be contiguous in memory.
func (p *player) inOnePiece(m memory, layer, expert, start, count uint32) bool {
	unit := p.Geometry.Proto.GranuleBytes
	for at, id := range m {
		if id != granule(layer, expert, start) {
			continue
		}
		whole := true
		for g := uint32(1); g < count && whole; g++ {
			whole = m[address{at.bank, at.offset + uint64(g)*unit}] == granule(layer, expert, start+g)
		}
		if whole {
			return true
		}
	}
	return false
}

func (p *player) source(flip *tangramv1.Flip, numbering *tangramv1.Layout, part *tangramv1.RankPart, source uint32, id ident) error {
	if source == 0 || flip.Kind == tangramv1.FlipKind_FLIP_KIND_FIRST {
		return nil // onceFromCheckpoint follows fetches of a first start to their source
	}
	if int(source) > len(numbering.Members) || source == part.Rank+1 {
		return fmt.Errorf("%v from source %d of %d ranks", id, source, len(numbering.Members))
	}
	from := numbering.Members[source-1].Id
	if p.holds(from)[id] {
		return nil
	}
	return fmt.Errorf("%v from rank %d (%s), which does not hold it", id, source-1, from)
}

func (p *player) holds(member string) map[ident]bool {
	if p.has == nil {
		p.has = map[string]map[ident]bool{}
	}
	if p.has[member] == nil {
		m := make(map[ident]bool, len(p.mem[member]))
		for _, id := range p.mem[member] {
			m[id] = true
		}
		p.has[member] = m
	}
	return p.has[member]
}

// cover: the pieces in place and the fetched ones are together exactly those of the target.
func (p *player) cover(old, want memory, comes map[ident]brought, knows map[[2]uint32]bool, cost *tangramv1.Cost) error {
	needed := 0
	for at, id := range want {
		if there, ok := old[at]; ok && there == id {
			if _, twice := comes[id]; twice {
				return fmt.Errorf("%v lies in place at %v and is brought as well", id, at)
			}
			continue
		}
		if id.granule < 0 { // fetched along with the piece
			size := p.size(id)
			switch {
			case knows[[2]uint32{id.layer, id.expert}]:
				cost.LocalBytes += size
			case p.anyFromCheckpoint(comes, id):
				cost.CheckpointBytes += size
				cost.ExpertBytes += size
			default:
				cost.ExpertBytes += size
			}
			continue
		}
		needed++
		if _, ok := comes[id]; !ok {
			return fmt.Errorf("%v at %v has no source", id, at)
		}
	}
	if needed != len(comes) {
		return fmt.Errorf("%d granules come, %d are needed", len(comes), needed)
	}
	return nil
}

func (p *player) anyFromCheckpoint(comes map[ident]brought, tail ident) bool {
	for g := tail.start; g < tail.end; g++ {
		if b, ok := comes[granule(tail.layer, tail.expert, g)]; ok && !b.local && b.source == 0 {
			return true
		}
	}
	return false
}

type interval struct {
	bank       uint32
	start, end uint64
	id         ident
}

func (p *player) intervals(m memory, skip memory) []interval {
	var out []interval
	for at, id := range m {
		if there, ok := skip[at]; !ok || there != id {
			out = append(out, interval{at.bank, at.offset, at.offset + p.size(id), id})
		}
	}
	return out
}

func order(a, b interval) int {
	if a.bank != b.bank {
		return int(a.bank) - int(b.bank)
	}
	if a.start < b.start {
		return -1
	}
	return 1
}

// noOverlap: no fetched piece overlaps a resident one, live or not.
func (p *player) noOverlap(old, want memory) error {
	all := append(p.intervals(old, nil), p.intervals(want, old)...)
	slices.SortFunc(all, order)
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.bank == b.bank && b.start < a.end {
			return fmt.Errorf("bank %d: %v and %v lie over each other at byte %d", a.bank, a.id, b.id, b.start)
		}
	}
	for _, i := range all {
		if i.end > p.Geometry.BankPitch {
			return fmt.Errorf("bank %d: %v ends at byte %d of %d", i.bank, i.id, i.end, p.Geometry.BankPitch)
		}
	}
	return nil
}

func (p *player) pages(all []interval) uint64 {
	touched := map[address]bool{}
	for _, i := range all {
		for page := i.start / p.Geometry.Proto.PageBytes; page*p.Geometry.Proto.PageBytes < i.end; page++ {
			touched[address{i.bank, page}] = true
		}
	}
	return uint64(len(touched))
}

func (p *player) room(old, want memory, denseAfter bool, part *tangramv1.RankPart) error {
	peak := p.pages(append(p.intervals(old, nil), p.intervals(want, nil)...))
	steady := p.pages(p.intervals(want, nil))
	if p.dense[part.Member] || denseAfter {
		peak += p.Geometry.DensePages
	}
	if denseAfter {
		steady += p.Geometry.DensePages
	}
	page := p.Geometry.Proto.PageBytes
	if peak*page > part.PeakBytes || steady*page != part.SteadyBytes {
		return fmt.Errorf("declares peak %d and steady %d bytes, its pieces need %d and %d", part.PeakBytes, part.SteadyBytes,
			peak*page, steady*page)
	}
	if limit := p.Limits[part.Member]; limit != 0 && part.PeakBytes > limit {
		return fmt.Errorf("peak %d bytes in a pool of %d", part.PeakBytes, limit)
	}
	return nil
}

// onceFromCheckpoint: on a first start each byte of the experts is read once, and every chain of fetches starts at the
// rank that reads it.
func (p *player) onceFromCheckpoint(flip *tangramv1.Flip, next *tangramv1.Layout) error {
	type key struct {
		rank uint32
		id   ident
	}
	from := map[key]uint32{}
	reader := map[ident]uint32{}
	note := func(rank uint32, id ident, source uint32) error {
		from[key{rank, id}] = source
		if source != 0 {
			return nil
		}
		if other, twice := reader[id]; twice {
			return fmt.Errorf("ranks %d and %d both read %v from the checkpoint", other, rank, id)
		}
		reader[id] = rank
		return nil
	}
	for _, part := range flip.Parts {
		f := part.GetFetches()
		for i := range f.GetLayer() {
			for g := range f.GranuleCount[i] {
				if err := note(part.Rank, granule(f.Layer[i], f.Expert[i], f.GranuleStart[i]+g), f.Source[i]); err != nil {
					return err
				}
			}
		}
	}
	for k := range from {
		at := k
		for hops := 0; ; hops++ {
			source, ok := from[at]
			if !ok || hops > len(next.Members) {
				return fmt.Errorf("rank %d pulls %v along a way that ends nowhere", k.rank, k.id)
			}
			if source == 0 {
				break
			}
			at.rank = source - 1
		}
	}
	return nil
}

// complete: every expert has a group of owners that hold all of it.
func (p *player) complete(l *tangramv1.Layout) error {
	for _, layer := range l.Layers {
		ordinal := slices.Index(p.Geometry.Proto.MoeLayers, layer.Layer)
		if ordinal < 0 {
			continue
		}
		whole := make([]bool, p.Geometry.Proto.Experts)
		for _, group := range layer.Experts {
			alive := !slices.ContainsFunc(group.Ranks, func(r uint32) bool { return p.Lost[l.Members[r].Id] })
			if !alive {
				// The flip that takes the layer from a lost member replaces its pieces.
				for _, entry := range group.Slots {
					if entry != 0 {
						whole[entry-1] = true
					}
				}
				continue
			}
			have := map[ident]bool{}
			for _, rank := range group.Ranks {
				for at, id := range p.mem[l.Members[rank].Id] {
					if id.layer == layer.Layer && at.bank == uint32(ordinal+int(layer.BankOffset)) {
						have[id] = true
					}
				}
			}
			for _, entry := range group.Slots {
				if entry == 0 {
					continue
				}
				for g := range p.Geometry.Granules {
					if !have[granule(layer.Layer, entry-1, g)] {
						return fmt.Errorf("layer %d: no rank of the group holds granule %d of expert %d", layer.Layer, g, entry-1)
					}
				}
				whole[entry-1] = true
			}
		}
		if e := slices.Index(whole, false); e >= 0 {
			return fmt.Errorf("layer %d: expert %d has no owner", layer.Layer, e)
		}
	}
	return nil
}

// wanted returns (rank, expert) pairs of a layer with a placement; nil: it has none.
func (p *player) wanted(layer uint32) map[[2]uint32]bool {
	at := slices.Index(p.Geometry.Proto.MoeLayers, layer)
	if at < 0 || p.Shape.Placement == nil || p.Shape.Placement[at] == nil {
		return nil
	}
	out := map[[2]uint32]bool{}
	for rank, experts := range p.Shape.Placement[at] {
		for _, e := range experts {
			out[[2]uint32{uint32(rank), e}] = true
		}
	}
	return out
}

// final: the last layout has the desired members and shape.
func (p *player) final() error {
	ids := map[string]bool{}
	for _, m := range p.now.Members {
		ids[m.Id] = true
	}
	if len(ids) != len(p.Target) || slices.ContainsFunc(p.Target, func(id string) bool { return !ids[id] }) {
		return fmt.Errorf("members %v, wanted %v", p.now.Members, p.Target)
	}
	if p.repaired { // a repair has no desired shape
		return nil
	}
	for rank, m := range p.now.Members {
		if !layout.HoldsDense(p.now, uint32(rank)) && !p.Lost[m.Id] {
			return fmt.Errorf("rank %d is without the dense weights", rank)
		}
	}
	n := uint32(len(ids))
	shapes, err := p.Shape.Resolve(p.Geometry, n)
	if err != nil {
		return err
	}
	for l, s := range shapes {
		layer := p.now.Layers[l]
		seat := make([]int, n)
		if len(layer.Attention) != int(n/s.AttentionGroup) {
			return fmt.Errorf("layer %d: %d attention groups, wanted %d", l, len(layer.Attention), n/s.AttentionGroup)
		}
		for i, group := range layer.Attention {
			for position, rank := range group.Ranks {
				if len(group.Ranks) != int(s.AttentionGroup) || rank != uint32(i)*s.AttentionGroup+uint32(position) {
					return fmt.Errorf("layer %d: attention group %d is %v, wanted groups of %d", l, i, group.Ranks, s.AttentionGroup)
				}
			}
		}
		if s.ExpertGroup == 0 {
			continue
		}
		groups := n / s.ExpertGroup
		if len(layer.Experts) != int(groups) {
			return fmt.Errorf("layer %d: %d expert groups, wanted %d", l, len(layer.Experts), groups)
		}
		filled := uint32(0)
		for _, group := range layer.Experts {
			count := uint32(0)
			for _, entry := range group.Slots {
				if entry != 0 {
					count++
				}
			}
			if short := p.Geometry.Proto.Experts / groups; p.Shape.Placement == nil && (count < short || count > short+1) {
				return fmt.Errorf("layer %d: a group owns %d of %d experts, wanted %d or one more", l, count,
					p.Geometry.Proto.Experts, short)
			}
			filled += count
			for _, rank := range group.Ranks {
				if rank/s.ExpertGroup != group.Ranks[0]/s.ExpertGroup {
					return fmt.Errorf("layer %d: group %v is not of consecutive ranks", l, group.Ranks)
				}
				seat[rank]++
			}
		}
		if wanted := p.wanted(uint32(l)); wanted != nil {
			for _, group := range layer.Experts {
				for _, entry := range group.Slots {
					if entry != 0 && !wanted[[2]uint32{group.Ranks[0], entry - 1}] {
						return fmt.Errorf("layer %d: rank %d has expert %d, which is not wanted there", l, group.Ranks[0], entry-1)
					}
				}
			}
			if int(filled) != len(wanted) {
				return fmt.Errorf("layer %d: %d filled slots, %d experts are wanted", l, filled, len(wanted))
			}
			filled = p.Geometry.Proto.Experts
		}
		if filled != p.Geometry.Proto.Experts || slices.ContainsFunc(seat, func(s int) bool { return s != 1 }) {
			return fmt.Errorf("layer %d: %d filled slots for %d experts, or ranks left out", l, filled, p.Geometry.Proto.Experts)
		}
	}
	return nil
}
