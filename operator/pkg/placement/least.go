package placement

import "slices"

// never is a price that no change pays.
const never = 1e12

// Least keeps the parts of a full plan for the same problem that are worth their moves, layer by layer. It compares the
// old placement, the changes that pay for themselves (Incremental) and the full plan. It takes the one with the minimal
//
//	peak / mean + Price * moved slots
//
// and of equal ones (within StopWithin) the one with the fewest moves. A layer without load stays as it is. Experts
// without load stay in place if there is room, and get no further copies. Slots may stay empty for that, but no rank
// with slots is without an expert. Without an old placement the result is the full plan.
func (p *Planner) Least(problem *Problem, full *Result, o Options) (*Result, error) {
	if problem.Old == nil {
		return full, nil
	}
	c, err := problem.check()
	if err != nil {
		return nil, err
	}
	step, err := p.Incremental(problem, o)
	if err != nil {
		return nil, err
	}
	stay, err := p.Incremental(problem, Options{Price: never, Locality: o.Locality})
	if err != nil {
		return nil, err
	}
	out := &Result{Placement: &Placement{Experts: c.experts, Start: c.start, Slot: slices.Clone(full.Placement.Slot)}, Layers: slices.Clone(full.Layers), Hierarchical: full.Hierarchical}
	for l, load := range c.load {
		for _, r := range []*Result{step, out} { // an exchange may have moved a useless copy too
			r.settleIdle(problem.Old, load, l)
			r.recount(p, problem, c, l)
		}
		cost := func(r *Result) float64 {
			f := r.Layers[l]
			if f.Mean <= 0 {
				return 0
			}
			return f.Peak/f.Mean + o.Price*float64(f.Moved)
		}
		best := stay
		for _, r := range []*Result{step, out} {
			if r == out && out.Hierarchical && r.atHome(problem, load, l) > best.atHome(problem, load, l)+1e-9 || cost(r) < cost(best)-StopWithin {
				best = r
			}
		}
		if best != out {
			copy(out.Placement.Layer(l), best.Placement.Layer(l))
			out.Layers[l] = best.Layers[l]
		}
		if out.fill(load, l) {
			out.recount(p, problem, c, l)
		}
	}
	return out, nil
}

// settleIdle places the experts without load of a layer again: all loaded ones stay, and these return to their ranks in
// the old placement.
func (r *Result) settleIdle(old *Placement, load []float64, l int) {
	slots, homeless := r.Placement.Layer(l), map[int32]bool{}
	for j, e := range slots {
		if e != Empty && load[e] == 0 {
			slots[j], homeless[e] = Empty, true
		}
	}
	ranks := min(old.Ranks(), r.Placement.Ranks())
	seat := func(g int, e int32) bool {
		now, was := r.Placement.Rank(l, g), old.Rank(l, g)
		if slices.Contains(now, e) {
			return false
		}
		j := slices.Index(was, e)
		if j < 0 || j >= len(now) || now[j] != Empty {
			j = slices.Index(now, Empty)
		}
		if j < 0 {
			return false
		}
		now[j] = e
		return true
	}
	// First one copy of each expert; those with the fewest ranks to return to choose first. Then experts whose old
	// ranks have no room, and last the other old copies.
	back := map[int32][]int{}
	var order []int32
	for g := range ranks {
		for _, e := range old.Rank(l, g) {
			if e == Empty || load[e] > 0 || slices.Contains(back[e], g) {
				continue
			}
			if back[e] = append(back[e], g); len(back[e]) == 1 {
				order = append(order, e)
			}
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return len(back[a]) - len(back[b]) })
	for _, e := range order {
		for _, g := range back[e] {
			if homeless[e] && seat(g, e) {
				delete(homeless, e)
			}
		}
	}
	for e := range int32(len(load)) {
		for g := 0; homeless[e] && g < r.Placement.Ranks(); g++ {
			if seatFree(r.Placement.Rank(l, g), e) {
				delete(homeless, e)
			}
		}
	}
	for _, e := range order {
		for _, g := range back[e] {
			seat(g, e)
		}
	}
}

// seatFree puts an expert into an empty slot of a rank without it.
func seatFree(now []int32, e int32) bool {
	j := slices.Index(now, Empty)
	if j < 0 || slices.Contains(now, e) {
		return false
	}
	now[j] = e
	return true
}

// fill gives each rank of a layer that has slots but no expert a copy of the lightest one, because a serving rank needs
// an expert.
func (r *Result) fill(load []float64, l int) bool {
	filled := false
	for g := range r.Placement.Ranks() {
		now := r.Placement.Rank(l, g)
		if len(now) == 0 || slices.ContainsFunc(now, func(e int32) bool { return e != Empty }) {
			continue
		}
		lightest := 0
		for e, w := range load {
			if w < load[lightest] {
				lightest = e
			}
		}
		now[0], filled = int32(lightest), true
	}
	return filled
}

// recount computes the peak and the moves of a layer from the content of its slots.
func (r *Result) recount(p *Planner, problem *Problem, c *checked, l int) {
	count := make([]int, c.experts)
	for _, e := range r.Placement.Layer(l) {
		if e != Empty {
			count[e]++
		}
	}
	f := &r.Layers[l]
	f.Peak = 0
	for g := range r.Placement.Ranks() {
		time := 0.0
		for _, e := range r.Placement.Rank(l, g) {
			if e != Empty {
				time += c.load[l][e] / float64(count[e])
			}
		}
		f.Peak = max(f.Peak, time/c.speed[g])
	}
	f.Bound = min(f.Bound, f.Peak)
	f.Moved = moved(problem.Old, r.Placement, l, &p.align)
}

// atHome is the share of a layer's tokens that are served in the node that serves most of their group.
func (r *Result) atHome(problem *Problem, load []float64, l int) float64 {
	count, by, total := make([]int, len(load)), map[[2]int]float64{}, 0.0
	for _, e := range r.Placement.Layer(l) {
		if e != Empty {
			count[e]++
		}
	}
	most := map[int]float64{}
	for g := range r.Placement.Ranks() {
		for _, e := range r.Placement.Rank(l, g) {
			if e == Empty {
				continue
			}
			k := [2]int{problem.Groups[e], problem.Ranks[g].Node}
			by[k] += load[e] / float64(count[e])
			total += load[e] / float64(count[e])
			most[k[0]] = max(most[k[0]], by[k])
		}
	}
	home := 0.0
	for _, w := range most {
		home += w
	}
	if total == 0 {
		return 1
	}
	return home / total
}
