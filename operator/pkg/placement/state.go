package placement

import "math"

// state is one layer during the search: flat arrays that are reused from layer to layer. Invariant outside of put and
// take: no rank holds two replicas of an expert, and load[g] is the sum of share over the slots of rank g.
type state struct {
	experts, ranks, slots int

	start  []int32   // [rank+1]
	rankOf []int32   // [slot]
	slow   []float64 // [rank] 1 / speed
	live   []int32   // ranks that have slots
	speeds float64   // sum over live

	w     []float64 // [expert] load of the expert
	mean  float64   // time of each rank if all were equal
	share []float64 // [expert] load of each of its replicas: w / count
	more  []float64 // [expert] the share with one more replica
	count []int32   // [expert] replicas
	slot  []int32   // [slot] expert or Empty; a view of the result
	head  []int32   // [expert] a slot that holds it, or -1
	next  []int32   // [slot] another slot of the same expert, or -1
	has   []bool    // [rank*experts+expert]
	load  []float64 // [rank]

	was []bool // [rank*experts+expert] held in the old placement
	// moved is the number of (rank, expert) pairs held now and not before. Valid only while was is set.
	moved int
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// shape prepares the arrays for a problem.
func (s *state) shape(c *checked) {
	s.experts, s.ranks, s.slots = c.experts, len(c.speed), int(c.start[len(c.speed)])
	s.start, s.speeds = c.start, c.speeds
	s.rankOf = grow(s.rankOf, s.slots)
	s.slow = grow(s.slow, s.ranks)
	s.live = s.live[:0]
	for g := range s.ranks {
		s.slow[g] = 1 / c.speed[g]
		if c.start[g+1] > c.start[g] {
			s.live = append(s.live, int32(g))
		}
		for j := c.start[g]; j < c.start[g+1]; j++ {
			s.rankOf[j] = int32(g)
		}
	}
	s.share, s.count, s.head = grow(s.share, s.experts), grow(s.count, s.experts), grow(s.head, s.experts)
	s.more = grow(s.more, s.experts)
	s.next, s.load = grow(s.next, s.slots), grow(s.load, s.ranks)
	s.has, s.was = grow(s.has, s.ranks*s.experts), grow(s.was, s.ranks*s.experts)
	clear(s.was)
}

// begin starts a layer with empty slots.
func (s *state) begin(w []float64, slot []int32) {
	s.w, s.slot = w, slot
	total := 0.0
	for e := range s.experts {
		total += w[e]
		s.head[e], s.count[e], s.share[e] = -1, 0, 0
	}
	s.mean = total / s.speeds
	for j := range slot {
		slot[j], s.next[j] = Empty, -1
	}
	clear(s.has)
	clear(s.load)
	s.moved = 0
}

func (s *state) at(g, e int32) int { return int(g)*s.experts + int(e) }

func (s *state) time(g int32) float64 { return s.load[g] * s.slow[g] }

// put places another replica of e in the empty slot j of a rank without one.
func (s *state) put(j, e int32) {
	g := s.rankOf[j]
	s.count[e]++
	s.reshare(e)
	s.link(j, e)
	s.load[g] += s.share[e]
	if !s.was[s.at(g, e)] {
		s.moved++
	}
}

// take empties slot j.
func (s *state) take(j int32) {
	e, g := s.slot[j], s.rankOf[j]
	s.unlink(j)
	s.load[g] -= s.share[e]
	s.count[e]--
	s.reshare(e)
	if !s.was[s.at(g, e)] {
		s.moved--
	}
}

// reshare spreads the load of e over its count, and updates the ranks that hold it.
func (s *state) reshare(e int32) {
	before := s.share[e]
	s.share[e] = 0
	if s.count[e] > 0 {
		s.share[e] = s.w[e] / float64(s.count[e])
	}
	s.more[e] = s.w[e] / float64(s.count[e]+1)
	if d := s.share[e] - before; d != 0 {
		for j := s.head[e]; j >= 0; j = s.next[j] {
			s.load[s.rankOf[j]] += d
		}
	}
}

func (s *state) link(j, e int32) {
	s.slot[j], s.next[j], s.head[e] = e, s.head[e], j
	s.has[s.at(s.rankOf[j], e)] = true
}

func (s *state) unlink(j int32) {
	e := s.slot[j]
	if s.head[e] == j {
		s.head[e] = s.next[j]
	} else {
		k := s.head[e]
		for s.next[k] != j {
			k = s.next[k]
		}
		s.next[k] = s.next[j]
	}
	s.slot[j], s.next[j] = Empty, -1
	s.has[s.at(s.rankOf[j], e)] = false
}

// swap exchanges the content of slots i and j of two ranks; one of them may be empty.
func (s *state) swap(i, j int32) {
	a, b := s.slot[i], s.slot[j]
	g, h := s.rankOf[i], s.rankOf[j]
	s.moved += s.swapMoves(i, j)
	if a != Empty {
		s.unlink(i)
		s.load[g] -= s.share[a]
		s.load[h] += s.share[a]
	}
	if b != Empty {
		s.unlink(j)
		s.load[h] -= s.share[b]
		s.load[g] += s.share[b]
		s.link(i, b)
	}
	if a != Empty {
		s.link(j, a)
	}
}

// swapMoves is the change of moved by a swap.
func (s *state) swapMoves(i, j int32) int {
	a, b := s.slot[i], s.slot[j]
	g, h := s.rankOf[i], s.rankOf[j]
	m := 0
	if a != Empty {
		m += s.arrives(h, a) - s.arrives(g, a)
	}
	if b != Empty {
		m += s.arrives(g, b) - s.arrives(h, b)
	}
	return m
}

func (s *state) arrives(g, e int32) int {
	if s.was[s.at(g, e)] {
		return 0
	}
	return 1
}

// settle recomputes the loads, which drift by rounding over many changes.
func (s *state) settle() {
	clear(s.load)
	for j, e := range s.slot {
		if e != Empty {
			s.load[s.rankOf[j]] += s.share[e]
		}
	}
}

// hottest is the slowest rank and its time.
func (s *state) hottest() (int32, float64) {
	best, peak := s.live[0], math.Inf(-1)
	for _, g := range s.live {
		if t := s.time(g); t > peak {
			best, peak = g, t
		}
	}
	return best, peak
}

// remember records the old layer's holdings in `was`; forget clears them for the next layer.
func (s *state) remember(old *Placement, l int) {
	for g := range min(s.ranks, old.Ranks()) {
		for _, e := range old.Rank(l, g) {
			if e != Empty {
				s.was[s.at(int32(g), e)] = true
			}
		}
	}
}

func (s *state) forget(old *Placement, l int) {
	for g := range min(s.ranks, old.Ranks()) {
		for _, e := range old.Rank(l, g) {
			if e != Empty {
				s.was[s.at(int32(g), e)] = false
			}
		}
	}
}
