package planner

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/bound"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// chain is the growing chain of flips, and the state of the world after the flips so far.
type chain struct {
	*world
	now    *tangramv1.Layout
	dense  []bool   // by rank: holds the dense weights, verified
	pages  []uint64 // by rank: of its banks, without dense
	extra  []uint64 // by rank: of pieces that no layout names, freed after the first flip
	nears  []uint8  // near(a, b) at a*members+b
	wire   map[*tangramv1.LayerLayout][]byte
	bounds *bound.Memo
	// Scratch of the current layer's bound: one list for all experts, refilled each time.
	holders []bound.Held
	out     *Result
}

// newChain returns a chain without flips.
func (w *world) newChain() (*chain, error) {
	c := &chain{world: w, wire: map[*tangramv1.LayerLayout][]byte{}, bounds: bound.NewMemo(w.v)}
	c.out = &Result{Plan: &tangramv1.Plan{World: w.in.World, Cost: &tangramv1.Cost{}}}
	n := len(w.members)
	c.dense, c.pages, c.extra = make([]bool, n), make([]uint64, n), make([]uint64, n)
	c.nears = make([]uint8, n*n)
	for a := range n {
		c.dense[a] = w.info[a].Inventory.GetDense()
		for b := range n {
			c.nears[a*n+b] = uint8(w.near(uint32(a), uint32(b)))
		}
	}
	if w.cur == nil {
		return c, nil
	}
	c.now = w.cur
	hash, err := c.hash(w.cur)
	if err != nil {
		return nil, err
	}
	c.out.Plan.FromEpoch, c.out.Plan.FromHash, c.out.Final = w.cur.Epoch, hash, w.cur
	return c, nil
}

func (w *world) chain(changes []*change, joins bool) (*Result, error) {
	c, err := w.newChain()
	if err != nil {
		return nil, err
	}
	if w.cur == nil {
		if err := c.first(changes); err != nil {
			return nil, err
		}
		return c.finish()
	}
	n := len(w.members)
	for o := range w.old {
		for r := range n {
			c.pages[r] += c.layerPages(w.old[o].layer, w.old[o].seats[r], w.old[o].shards, nil, nil)
		}
	}
	for _, h := range w.held.extras {
		c.extra[h.rank] += (w.v.PieceBytes(h.run.Count)-1)/w.v.Proto.PageBytes + 2
	}
	if joins {
		if err := c.join(); err != nil {
			return nil, err
		}
	}
	steps, err := w.steps(changes)
	if err != nil {
		return nil, err
	}
	if len(steps) == 0 && c.damaged() { // no member joins then: joiners would take heads
		steps = []step{nil} // same layout, but some of its pieces must be fetched again
	}
	for _, s := range steps {
		if err := c.layout(s); err != nil {
			return nil, err
		}
	}
	if len(w.target) < n {
		if err := c.leave(); err != nil {
			return nil, err
		}
	}
	return c.finish()
}

func (c *chain) finish() (*Result, error) {
	p := c.out.Plan
	p.FinalHash = p.FromHash
	if n := len(p.Flips); n > 0 {
		p.FinalHash = p.Flips[n-1].TargetHash
		if err := layout.Validate(c.now, c.v); err != nil {
			return nil, fmt.Errorf("plan: the final layout, a fault of the planner: %w", err)
		}
	}
	c.out.Final = c.now
	return c.out, nil
}

// hash is layout.Hash, but caches the wire form of each layer: a chain of n flips would otherwise marshal every layer n
// times. Fields 1-5, 6 (layers), 7-9.
func (c *chain) hash(l *tangramv1.Layout) ([]byte, error) {
	options := proto.MarshalOptions{Deterministic: true}
	head, err := options.Marshal(&tangramv1.Layout{World: l.World, Epoch: l.Epoch, Revision: l.Revision,
		GeometryFingerprint: l.GeometryFingerprint, Members: l.Members})
	if err != nil {
		return nil, fmt.Errorf("plan: marshal layout: %w", err)
	}
	sum := sha256.New()
	sum.Write(head)
	for _, layer := range l.Layers {
		wire, ok := c.wire[layer]
		if !ok {
			if wire, err = options.Marshal(&tangramv1.Layout{Layers: []*tangramv1.LayerLayout{layer}}); err != nil {
				return nil, fmt.Errorf("plan: marshal layer %d: %w", layer.Layer, err)
			}
			c.wire[layer] = wire
		}
		sum.Write(wire)
	}
	tail, err := options.Marshal(&tangramv1.Layout{Dense: l.Dense, Stages: l.Stages, Banks: l.Banks})
	if err != nil {
		return nil, fmt.Errorf("plan: marshal layout: %w", err)
	}
	sum.Write(tail)
	return sum.Sum(nil), nil
}

// emit adds a flip to `next` and advances the world to it.
func (c *chain) emit(kind tangramv1.FlipKind, delta *tangramv1.LayoutDelta, next *tangramv1.Layout, b *parts) error {
	hash, err := c.hash(next)
	if err != nil {
		return err
	}
	flip := &tangramv1.Flip{Kind: kind, Epoch: next.Epoch, TargetHash: hash, Delta: delta, Cost: &b.cost}
	for r, part := range b.parts {
		if part == nil {
			continue
		}
		if limit := c.info[r].MemoryBytes; limit != 0 && part.PeakBytes > limit {
			return &memoryError{rank: part.Rank, member: part.Member, flip: len(c.out.Plan.Flips), kind: kind, peak: part.PeakBytes,
				steady: part.SteadyBytes, limit: limit}
		}
		flip.Parts = append(flip.Parts, part)
	}
	p := c.out.Plan
	p.Flips = append(p.Flips, flip)
	p.Cost.ExpertBytes += b.cost.ExpertBytes
	p.Cost.ExpertBoundBytes += b.cost.ExpertBoundBytes
	p.Cost.DenseBytes += b.cost.DenseBytes
	p.Cost.DenseBoundBytes += b.cost.DenseBoundBytes
	p.Cost.LocalBytes += b.cost.LocalBytes
	p.Cost.CheckpointBytes += b.cost.CheckpointBytes
	c.out.Layouts = append(c.out.Layouts, next)
	c.now = next
	clear(c.extra) // dropped at this flip's Retire
	return nil
}

// first is the first start: one rank reads each byte from the checkpoint.
func (c *chain) first(changes []*change) error {
	n := len(c.members)
	spare := c.in.Options.SpareBanks
	if spare == 0 {
		spare = 1
	}
	next := &tangramv1.Layout{World: c.in.World, Epoch: 1, Revision: c.in.Revision, GeometryFingerprint: c.v.Fingerprint,
		Members: c.members, Banks: uint32(c.v.MoELayers()) + spare}
	next.Dense, next.Stages = c.everyone(n)
	delta := &tangramv1.LayoutDelta{MembersChanged: true, Members: c.members, Dense: next.Dense, Stages: next.Stages,
		Banks: next.Banks}
	b := c.newParts(n)
	for _, ch := range changes {
		next.Layers = append(next.Layers, ch.next)
		if ch.ordinal >= 0 {
			c.bring(b, ch, true)
		}
	}
	delta.Layers = next.Layers
	c.bringDense(b)
	c.settle(b, nil)
	return c.emit(tangramv1.FlipKind_FLIP_KIND_FIRST, delta, next, b)
}

// join appends the joiners: they fetch the dense weights and own nothing.
func (c *chain) join() error {
	n := len(c.members)
	delta := &tangramv1.LayoutDelta{MembersChanged: true, Members: c.members}
	delta.Dense, delta.Stages = c.everyone(n)
	next, err := layout.ApplyDelta(c.now, delta, c.now.Epoch+1)
	if err != nil {
		return err
	}
	b := c.newParts(n)
	c.repair(b, nil)
	c.bringDense(b)
	c.settle(b, nil)
	return c.emit(tangramv1.FlipKind_FLIP_KIND_JOIN, delta, next, b)
}

// layout adds one flip between layouts of the same members.
func (c *chain) layout(s step) error {
	delta := &tangramv1.LayoutDelta{}
	b := c.newParts(len(c.members))
	for _, ch := range s {
		delta.Layers = append(delta.Layers, ch.next)
		if ch.experts {
			c.bring(b, ch, len(c.out.Plan.Flips) == 0)
		}
	}
	next, err := layout.ApplyDelta(c.now, delta, c.now.Epoch+1)
	if err != nil {
		return err
	}
	if len(c.out.Plan.Flips) == 0 {
		c.repair(b, s)
		c.bringDense(b)
	}
	c.settle(b, nil)
	return c.emit(tangramv1.FlipKind_FLIP_KIND_LAYOUT, delta, next, b)
}

// leave removes the members that are not in the target. Parts have the numbering before it, and fetch nothing: an
// earlier flip fetched all missing pieces.
func (c *chain) leave() error {
	delta := &tangramv1.LayoutDelta{MembersChanged: true, Renumber: make([]uint32, len(c.members))}
	stays := make([]bool, len(c.members))
	for i, rank := range c.target {
		delta.Renumber[rank], stays[rank] = uint32(i)+1, true
		delta.Members = append(delta.Members, c.members[rank])
	}
	delta.Dense, delta.Stages = c.everyone(len(c.target))
	next, err := layout.ApplyDelta(c.now, delta, c.now.Epoch+1)
	if err != nil {
		return fmt.Errorf("plan: leave, a fault of the planner: %w", err)
	}
	b := c.newParts(len(c.members))
	c.settle(b, stays)
	return c.emit(tangramv1.FlipKind_FLIP_KIND_LEAVE, delta, next, b)
}
