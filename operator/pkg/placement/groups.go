package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// GroupPolicy is Full's treatment of groups of experts. Tokens are routed to few groups, so a group within one node
// saves traffic between nodes.
type GroupPolicy int

const (
	// AutoGroups keeps groups in nodes if that pays: balance over the bound at least 0.98, and at least 95 % of the
	// tokens served in the node of their group.
	AutoGroups GroupPolicy = iota
	// KeepGroups keeps them, however bad the balance.
	KeepGroups
	// IgnoreGroups plans as if there were no groups.
	IgnoreGroups
)

const (
	homeLeast    = 0.95 // share of tokens served in the node of their group
	balanceLeast = 0.98 // of the bound
)

// grouping keeps groups in nodes. For each layer: groups to nodes, a full plan in each node, then changes across nodes,
// as few as possible, because each replica outside its home costs traffic.
type grouping struct {
	on     bool
	nodes  [][]int32 // [node] its live ranks
	nodeOf []int32   // [rank]
	groups [][]int32 // [group] its experts
	home   []int32   // [expert] node of its group
	closed bool      // no more load may leave its home node
	inner  *Planner
	solve  assignment
}

func (q *grouping) ready(problem *Problem, s *state) bool {
	q.nodes, q.groups = q.nodes[:0], q.groups[:0]
	q.nodeOf, q.home = grow(q.nodeOf, s.ranks), grow(q.home, s.experts)
	node, group := map[int]int{}, map[int]int{}
	for _, g := range s.live {
		k, ok := node[problem.Ranks[g].Node]
		if !ok {
			k = len(q.nodes)
			node[problem.Ranks[g].Node] = k
			q.nodes = append(q.nodes, nil)
		}
		q.nodes[k] = append(q.nodes[k], g)
		q.nodeOf[g] = int32(k)
	}
	for e, name := range problem.Groups {
		k, ok := group[name]
		if !ok {
			k = len(q.groups)
			group[name] = k
			q.groups = append(q.groups, nil)
		}
		q.groups[k] = append(q.groups[k], int32(e))
	}
	if q.inner == nil {
		q.inner = &Planner{}
	}
	return len(q.nodes) > 1 && len(q.groups) > 1
}

// hierarchical plans all layers and reports whether keeping groups pays.
func (p *Planner) hierarchical(problem *Problem, c *checked, r *Result, o Options) (bool, error) {
	s, q := &p.state, &p.groups
	q.on = true
	defer func() { q.on = false; p.align.classify(s, problem, false) }()
	p.align.classify(s, problem, true)
	var bounds, peaks float64
	for l := range c.load {
		s.begin(c.load[l], r.Placement.Layer(l))
		bound := max(s.mean, p.replicate()*p.fastest())
		if !q.settleGroups(s) {
			if o.Groups == KeepGroups {
				return false, fmt.Errorf("%w: the %d groups of experts do not fit whole into the slots of the %d nodes", ErrInput, len(q.groups), len(q.nodes))
			}
			return false, nil
		}
		if err := p.planNodes(problem); err != nil {
			return false, err
		}
		p.leaveHome(bound)
		p.likeOldNodes(problem.Old, l)
		near := o
		near.Locality = 0 // an approach would move replicas out of their home node
		p.settle(problem, r, l, bound, near)
		f := r.Layers[l]
		bounds, peaks = bounds+f.Bound, peaks+f.Peak
	}
	return bounds >= balanceLeast*peaks, nil // leaveHome already limits the load served away from home
}

// settleGroups gives each group a node: the heaviest first, to the node with room that would finish first. Then groups
// change places while that makes the hottest node cooler.
func (q *grouping) settleGroups(s *state) bool {
	weight := make([]float64, len(q.groups))
	order := make([]int, len(q.groups))
	for k, experts := range q.groups {
		order[k] = k
		for _, e := range experts {
			weight[k] += s.w[e]
		}
	}
	// The largest groups first if sizes differ, because they are the hardest to place.
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(len(q.groups[b]), len(q.groups[a])), cmp.Compare(weight[b], weight[a]))
	})
	room, speed, load := make([]int, len(q.nodes)), make([]float64, len(q.nodes)), make([]float64, len(q.nodes))
	for n, ranks := range q.nodes {
		for _, g := range ranks {
			room[n] += int(s.start[g+1] - s.start[g])
			speed[n] += 1 / s.slow[g]
		}
	}
	at := make([]int, len(q.groups))
	for _, k := range order {
		best := -1
		for n := range q.nodes {
			if room[n] >= len(q.groups[k]) && (best < 0 || (load[n]+weight[k])/speed[n] < (load[best]+weight[k])/speed[best]) {
				best = n
			}
		}
		if best < 0 {
			return false
		}
		at[k] = best
		room[best] -= len(q.groups[k])
		load[best] += weight[k]
	}
	for q.cool(at, weight, load, speed, room) {
	}
	for k, experts := range q.groups {
		for _, e := range experts {
			q.home[e] = int32(at[k])
		}
	}
	return true
}

// cool exchanges two groups, one of the hottest node, if that lowers the larger load of the two nodes.
func (q *grouping) cool(at []int, weight, load, speed []float64, room []int) bool {
	hot := 0
	for n := range load {
		if load[n]/speed[n] > load[hot]/speed[hot] {
			hot = n
		}
	}
	least, a, b := load[hot]/speed[hot]*(1-1e-12), -1, -1
	for i := range at {
		for j := range at {
			if at[i] != hot {
				continue
			}
			d, size := weight[i]-weight[j], len(q.groups[i])-len(q.groups[j])
			t := max((load[hot]-d)/speed[hot], (load[at[j]]+d)/speed[at[j]])
			if t < least && room[at[j]] >= size && room[hot] >= -size {
				least, a, b = t, i, j
			}
		}
	}
	if a < 0 {
		return false
	}
	d, size := weight[a]-weight[b], len(q.groups[a])-len(q.groups[b])
	load[hot], load[at[b]] = load[hot]-d, load[at[b]]+d
	room[hot], room[at[b]] = room[hot]+size, room[at[b]]-size
	at[a], at[b] = at[b], at[a]
	return true
}

// planNodes makes a full plan in each node and combines them.
func (p *Planner) planNodes(problem *Problem) error {
	s, q := &p.state, &p.groups
	p.best = append(p.best[:0], s.slot...) // all empty
	slot := p.best
	for n, ranks := range q.nodes {
		part := &Problem{Layers: make([]Layer, 1)}
		var experts []int32
		for e := range int32(s.experts) {
			if q.home[e] == int32(n) {
				experts = append(experts, e)
				part.Layers[0].Load = append(part.Layers[0].Load, s.w[e])
			}
		}
		if len(experts) == 0 {
			continue
		}
		for _, g := range ranks {
			part.Ranks = append(part.Ranks, Rank{Slots: int(s.start[g+1] - s.start[g]), Speed: problem.Ranks[g].Speed})
		}
		r, err := q.inner.Full(part, Options{Groups: IgnoreGroups})
		if err != nil {
			return fmt.Errorf("node %d: %w", problem.Ranks[ranks[0]].Node, err)
		}
		for k, g := range ranks {
			for i, e := range r.Placement.Rank(0, k) {
				slot[int(s.start[g])+i] = experts[e]
			}
		}
	}
	p.restore(slot)
	return nil
}

// leaveHome balances the nodes with the search of the incremental mode. A replica in its home node counts as unmoved;
// the cost is the load away from home instead of moves.
func (p *Planner) leaveHome(bound float64) {
	s, q := &p.state, &p.groups
	for g := range int32(s.ranks) {
		for e := range int32(s.experts) {
			s.was[s.at(g, e)] = q.nodeOf[g] == q.home[e]
		}
	}
	s.moved, p.log = 0, p.log[:0]
	p.keep = grow(p.keep, s.experts)
	clear(p.keep)
	p.ask.on, q.closed = false, false
	_, best := s.hottest()
	at, to := 0, aimAt(bound*(1+StopWithin)/(0.5+0.5*balanceLeast)) // half of the allowed loss
	for len(p.log) < 8*s.slots {
		g, peak := s.hottest()
		if peak <= to.at {
			break
		}
		c, ok := p.cheapest(g, peak, to)
		if !ok {
			break
		}
		p.apply(c)
		if !q.closed && q.share(s) < homeLeast+0.001 { // a margin for rounding
			p.undo()
			q.closed = true
		}
		if _, now := s.hottest(); now < best {
			best, at = now, len(p.log)
		}
	}
	for len(p.log) > at {
		p.undo()
	}
}

// perAway is the gain per load that leaves its home node. A change without such load has a small cost too, otherwise it
// would always come first.
func (q *grouping) perAway(gain, away, mean float64) float64 {
	if away > 1e-9*mean && q.closed {
		return 0
	}
	return gain / (max(away, 0) + 0.02*mean)
}

// away returns the load away from home that is added if e's count changes by `more` and its replicas away from home by
// `out`.
func (q *grouping) away(s *state, e int32, more, out int) float64 {
	n := 0
	for j := s.head[e]; j >= 0; j = s.next[j] {
		n += s.arrives(s.rankOf[j], e)
	}
	c := int(s.count[e])
	return s.w[e] * (float64(n+out)/float64(c+more) - float64(n)/float64(c))
}

// share of the tokens that are served in the node of their group.
func (q *grouping) share(s *state) float64 {
	in, all := 0.0, 0.0
	for j, e := range s.slot {
		if e != Empty {
			all += s.share[e]
			if q.nodeOf[s.rankOf[j]] == q.home[e] {
				in += s.share[e]
			}
		}
	}
	if all == 0 {
		return 1
	}
	return in / all
}

// likeOldNodes renames whole equivalent nodes to match the old placement; the ranks within a node follow in seat.
// Afterwards only the slots are valid.
func (p *Planner) likeOldNodes(old *Placement, l int) {
	s, q := &p.state, &p.groups
	if old == nil {
		return
	}
	n := len(q.nodes)
	weight, columns := make([]float64, n*n), make([]int32, n)
	for a := range n {
		for b := range n {
			if !q.alike(s, a, b) {
				weight[a*n+b] = -1 // an exchange among equivalent nodes is always better
				continue
			}
			for _, g := range q.nodes[b] {
				if int(g) >= old.Ranks() {
					continue
				}
				for _, e := range old.Rank(l, int(g)) {
					for j := firstOf(s, e); j >= 0; j = s.next[j] {
						if q.nodeOf[s.rankOf[j]] == int32(a) {
							weight[a*n+b]++
						}
					}
				}
			}
		}
	}
	q.solve.heaviest(n, weight, columns)
	p.from = append(p.from[:0], s.slot...)
	for a, b := range columns {
		for k, g := range q.nodes[b] {
			h := q.nodes[a][k]
			copy(s.slot[s.start[g]:s.start[g+1]], p.from[s.start[h]:s.start[h+1]])
		}
	}
	for e, a := range q.home {
		q.home[e] = columns[a]
	}
}

func firstOf(s *state, e int32) int32 {
	if e == Empty {
		return -1
	}
	return s.head[e]
}

// alike reports whether the nodes' ranks have equal slots and speeds, in order.
func (q *grouping) alike(s *state, a, b int) bool {
	return slices.EqualFunc(q.nodes[a], q.nodes[b], func(g, h int32) bool {
		return s.start[g+1]-s.start[g] == s.start[h+1]-s.start[h] && s.slow[g] == s.slow[h]
	})
}
