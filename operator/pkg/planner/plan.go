package planner

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// world is the state of a plan under construction. Ranks are those of the layouts between JOIN and LEAVE: the members
// of Current, then the joiners.
type world struct {
	in      Input
	v       *geometry.View
	cur     *tangramv1.Layout
	members []*tangramv1.Member
	info    []Member // by rank; a lost member has only its identity
	answers []bool   // by rank: an agent reports it
	target  []uint32 // ranks of the final layout, ascending
	held    *holdings
	named   []int // by ordinal: held pieces that the current layout names
	old     []oldLayer
	tables  map[uint32]*shardTable
	worths  []worth // scratch of deal
}

func plan(in Input) (*Result, error) {
	w, err := newWorld(in)
	if err != nil {
		return nil, err
	}
	shapes, err := in.Shape.Resolve(w.v, uint32(len(w.target)))
	if err != nil {
		return nil, err
	}
	w.readLayers()
	if err := w.readInventories(); err != nil {
		return nil, err
	}
	joins := w.cur != nil && len(w.members) > len(w.cur.Members)
	changes, err := w.decide(shapes, !joins)
	if err != nil {
		return nil, err
	}
	if len(changes) > 0 {
		if err := w.checkKV(shapes); err != nil {
			return nil, err
		}
	}
	return w.chain(changes, joins)
}

func newWorld(in Input) (*world, error) {
	if in.Geometry == nil {
		return nil, fmt.Errorf("plan: no geometry")
	}
	w := &world{in: in, v: in.Geometry, cur: in.Current, tables: map[uint32]*shardTable{}}
	if w.cur != nil {
		if err := layout.Validate(w.cur, w.v); err != nil {
			return nil, fmt.Errorf("plan: the current layout: %w", err)
		}
		if w.cur.Revision != in.Revision {
			return nil, fmt.Errorf("plan: the world serves revision %q, the plan is for %q: a change of revision is another transition",
				w.cur.Revision, in.Revision)
		}
		if w.cur.World != in.World {
			return nil, fmt.Errorf("plan: the layout is of world %q, the plan is for %q", w.cur.World, in.World)
		}
	}
	byID := make(map[string]*Member, len(in.Members))
	for i := range in.Members {
		m := &in.Members[i]
		if m.Member.GetId() == "" || byID[m.Member.Id] != nil {
			return nil, fmt.Errorf("plan: member id %q is empty or listed twice", m.Member.GetId())
		}
		byID[m.Member.Id] = m
	}
	wanted := make(map[string]bool, len(in.Target))
	for _, id := range in.Target {
		if wanted[id] {
			return nil, fmt.Errorf("plan: member %q is listed twice in the target", id)
		}
		if wanted[id] = true; byID[id] == nil {
			return nil, fmt.Errorf("plan: member %q is in the target, but no agent reports it", id)
		}
	}
	serving := map[string]bool{}
	for _, m := range w.cur.GetMembers() {
		if wanted[m.Id] {
			w.target = append(w.target, uint32(len(w.members)))
		}
		serving[m.Id] = true
		info := Member{Member: m}
		if byID[m.Id] != nil {
			info = *byID[m.Id]
		}
		w.members, w.info = append(w.members, m), append(w.info, info)
		w.answers = append(w.answers, byID[m.Id] != nil)
	}
	for _, id := range in.Target {
		if !serving[id] {
			w.target = append(w.target, uint32(len(w.members)))
			w.members, w.info = append(w.members, byID[id].Member), append(w.info, *byID[id])
		}
	}
	return w, nil
}

// near is the distance of two ranks: 0 in one pod, 1 on one node, 2 in one NVLink domain, 3 on one network of NICs, 4
// beyond.
func (w *world) near(a, b uint32) int {
	x, y := w.members[a], w.members[b]
	switch {
	case x.Pod != "" && x.Pod == y.Pod && x.Node == y.Node:
		return 0
	case x.Node != "" && x.Node == y.Node:
		return 1
	case x.NvlinkDomain != "" && x.NvlinkDomain == y.NvlinkDomain:
		return 2
	case x.Rail != "" && x.Rail == y.Rail:
		return 3
	}
	return 4
}

func ranks(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// everyone names n ranks as holders of the dense weights and as the one pipeline stage.
func (w *world) everyone(n int) (*tangramv1.DenseLayout, []*tangramv1.PipelineStage) {
	return &tangramv1.DenseLayout{Ranks: ranks(n)},
		[]*tangramv1.PipelineStage{{LayerCount: w.v.Proto.Layers, Ranks: ranks(n)}}
}

// step is the set of layers that one LAYOUT flip changes.
type step []*change

// steps distributes the changes over flips: in-place layers all in the first one, rewritten ones as the free banks
// allow. A full rewrite walks (section 8): the free banks are at one end, so layers are taken from that end.
func (w *world) steps(changes []*change) ([]step, error) {
	var attention, inPlace, rewrite []*change
	for _, c := range changes {
		switch {
		case !c.experts:
			attention = append(attention, c)
		case c.inPlace:
			inPlace = append(inPlace, c)
		default:
			rewrite = append(rewrite, c)
		}
	}
	var out []step
	if len(rewrite) > 0 {
		var err error
		if out, err = w.walk(rewrite); err != nil {
			return nil, err
		}
	}
	if inPlace = append(inPlace, attention...); len(inPlace) > 0 {
		if len(out) == 0 {
			out = append(out, nil)
		}
		out[0] = append(out[0], inPlace...)
	}
	for _, s := range out {
		slices.SortFunc(s, func(a, b *change) int { return int(a.layer) - int(b.layer) })
	}
	return out, nil
}

func (w *world) walk(rewrite []*change) ([]step, error) {
	used := make([]bool, w.cur.Banks)
	for o := range w.old {
		used[w.old[o].bank] = true
	}
	for _, h := range w.held.extras {
		if !used[h.bank] {
			return nil, w.stray(h)
		}
	}
	var free []int
	for bank, taken := range used {
		if !taken {
			free = append(free, bank)
		}
	}
	if len(free) == 0 {
		return nil, fmt.Errorf("plan: %d layers must be rewritten, but the layout has %d banks for %d MoE layers: a world "+
			"started with at least 1 spare bank can change its sharding", len(rewrite), w.cur.Banks, w.v.MoELayers())
	}
	bankOf := func(c *change) int { return int(w.old[c.ordinal].bank) }
	slices.SortFunc(rewrite, func(a, b *change) int { return bankOf(a) - bankOf(b) })
	sum := func(n int, of func(int) int) (total int) {
		for i := range n {
			total += of(i)
		}
		return total
	}
	middleFree := float64(sum(len(free), func(i int) int { return free[i] })) / float64(len(free))
	middle := float64(sum(len(rewrite), func(i int) int { return bankOf(rewrite[i]) })) / float64(len(rewrite))
	up := middleFree < middle // free banks below: take the lowest layers first
	if !up {
		slices.Reverse(rewrite)
	}
	var out []step
	for k := len(free); len(rewrite) > 0; {
		slices.Sort(free)
		if !up {
			slices.Reverse(free)
		}
		n := min(k, len(rewrite))
		for i, c := range rewrite[:n] {
			c.next.BankOffset = int32(free[i] - c.ordinal)
			free[i] = bankOf(c)
		}
		out = append(out, slices.Clone(step(rewrite[:n])))
		rewrite = rewrite[n:]
	}
	return out, nil
}
