package placement

import (
	"cmp"
	"slices"
)

// pack places the replicas counted by replicate: longest first, each on the rank that would finish first (LPT with
// cardinality). Replicas of an expert are placed in sequence, so they only need to avoid the ranks of its earlier ones.
func (p *Planner) pack() {
	s := &p.state
	p.order = grow(p.order, s.experts)
	low := lowBits(s.experts)
	for e := range p.order {
		p.order[e] = mostFirst(s.share[e], int32(e), low)
	}
	slices.Sort(p.order)
	for i, key := range p.order {
		p.order[i] = key & low
	}
	p.free = grow(p.free, s.ranks)
	for g := range s.ranks {
		p.free[g] = s.start[g]
	}
	p.queues.fill(s)
	for _, o := range p.order {
		if !p.packExpert(int32(o)) { // the last ranks with room already hold it: prefer room to balance
			p.packByRoom()
			return
		}
	}
}

// packExpert places all replicas of an expert; false: impossible.
func (p *Planner) packExpert(e int32) bool {
	s := &p.state
	if s.count[e] == 1 { // the general case below, in one step
		class := p.queues.first(s, s.share[e])
		g := p.queues.head(class) // there are enough slots left for all replicas
		p.place(g, e)
		if p.free[g] < s.start[g+1] {
			p.queues.later(class, s)
		} else {
			p.queues.pop(class)
		}
		return true
	}
	p.aside = p.aside[:0]
	for range s.count[e] {
		class := p.queues.first(s, s.share[e])
		if class < 0 {
			return false
		}
		g := p.queues.pop(class)
		p.place(g, e)
		p.aside = append(p.aside, g)
	}
	for _, g := range p.aside {
		if p.free[g] < s.start[g+1] {
			p.queues.push(s, g)
		}
	}
	return true
}

func (p *Planner) place(g, e int32) {
	s := &p.state
	s.link(p.free[g], e)
	s.load[g] += s.share[e]
	p.free[g]++
}

// packByRoom places each expert on the ranks with most room left. It always works if the counts can be realised at all
// (the constructive proof of Gale and Ryser's theorem); the following search improves the balance.
func (p *Planner) packByRoom() {
	s := &p.state
	for e := range s.head {
		s.head[e] = -1
	}
	clear(s.has)
	clear(s.load)
	p.roomy = append(p.roomy[:0], s.live...)
	for g := range s.ranks {
		p.free[g] = s.start[g]
	}
	for _, o := range p.order {
		slices.SortFunc(p.roomy, func(a, b int32) int {
			room := cmp.Compare(s.start[b+1]-p.free[b], s.start[a+1]-p.free[a])
			return cmp.Or(room, cmp.Compare(s.time(a), s.time(b)), cmp.Compare(a, b))
		})
		for _, g := range p.roomy[:s.count[o]] {
			p.place(g, int32(o))
		}
	}
}
