package placement

import (
	"math"
	"math/rand/v2"
)

const (
	// StopWithin of the bound the search ends: a peak this close is as good as the bound. The difference is smaller
	// than the change of a rank's load from one step to the next.
	StopWithin = 9e-4
	// effort is the number of changes that the search evaluates in a layer after the first descent stopped far above
	// the bound. It limits the time if the bound cannot be reached. With less than `much` to gain, it is proportionally
	// smaller.
	effort = 1 << 18
	much   = 0.01
	// slack by which a try may be worse than the best and still be the start of the next.
	slack = 0.05
	// fewRanks are tried for an exchange even after one was found.
	fewRanks = 3
)

// improve lowers the peak by descents; the later ones start from shaken copies of the best.
func (p *Planner) improve(bound float64) {
	s := &p.state
	goal := bound * (1 + StopWithin)
	left := math.MaxInt // the first descent needs no limit: it ends by itself
	peak := p.descend(goal, &left)
	if peak <= goal*(1+StopWithin) { // one rank alone is at its bound
		return
	}
	left = int(effort * min(1, (peak/goal-1)/much))
	p.best = append(p.best[:0], s.slot...)
	p.from = append(p.from[:0], s.slot...)
	round := s.slots + s.experts + s.ranks + 30
	random := rand.New(rand.NewPCG(uint64(s.slots), uint64(s.experts)))
	for left > 0 && peak > goal {
		p.shake(random)
		left -= round // a shake and a restore cost time too
		now := p.descend(goal, &left)
		switch {
		case now < peak*(1-1e-12):
			peak = now
			copy(p.best, s.slot)
			copy(p.from, s.slot)
		case now <= peak*(1+slack):
			copy(p.from, s.slot)
		default:
			p.restore(p.from)
		}
	}
	p.restore(p.best)
}

// restore resets the state to a copy of the slots.
func (p *Planner) restore(slot []int32) {
	s := &p.state
	for e := range s.head {
		s.head[e], s.count[e] = -1, 0
	}
	clear(s.has)
	for j, e := range slot {
		s.slot[j], s.next[j] = Empty, -1
		if e != Empty {
			s.link(int32(j), e)
			s.count[e]++
		}
	}
	for e := range s.share {
		s.share[e] = s.w[e] / float64(max(s.count[e], 1))
		s.more[e] = s.w[e] / float64(s.count[e]+1)
	}
	s.settle()
}

// shake makes a few random changes, of both kinds. A full plan has no empty slots.
func (p *Planner) shake(random *rand.Rand) {
	s := &p.state
	for range 1 + random.IntN(12) {
		if random.IntN(2) == 0 {
			j, e := int32(random.IntN(s.slots)), int32(random.IntN(s.experts))
			if s.count[s.slot[j]] > 1 && !s.has[s.at(s.rankOf[j], e)] {
				s.take(j)
				s.put(j, e)
			}
			continue
		}
		i, j := int32(random.IntN(s.slots)), int32(random.IntN(s.slots))
		if p.mayExchange(i, j) {
			s.swap(i, j)
		}
	}
}

// mayExchange: no rank may get an expert that it already holds, so two slots of one rank never qualify.
func (p *Planner) mayExchange(i, j int32) bool {
	s := &p.state
	g, h, a, b := s.rankOf[i], s.rankOf[j], s.slot[i], s.slot[j]
	return a != b && (a == Empty || !s.has[s.at(h, a)]) && (b == Empty || !s.has[s.at(g, b)])
}

// descend changes the hottest rank until its time is at most goal or no change helps, and returns the peak. A change
// helps if all ranks that it touches end below the current peak: then the peak falls, or fewer ranks have it.
func (p *Planner) descend(goal float64, left *int) float64 {
	s := &p.state
	for {
		g, peak := s.hottest()
		if *left <= 0 {
			return peak
		}
		if i, j, ok := p.exchange(g, peak, goal, left); ok {
			s.swap(i, j)
			continue
		}
		if peak <= goal*(1+StopWithin) {
			return peak // close enough to skip changes that cost more to find
		}
		j, e, ok := p.replica(g, peak, left)
		if !ok {
			return peak
		}
		if s.slot[j] != Empty {
			s.take(j)
		}
		s.put(j, e)
	}
}

// exchange finds a pair of slots, one of them on rank g, whose exchange leaves the two ranks best: coldest ranks first,
// because they have most room. It ends with the first pair that brings both to the goal, or with the best pair of the
// first few ranks that have any.
func (p *Planner) exchange(g int32, peak, goal float64, left *int) (i, j int32, ok bool) {
	s := &p.state
	p.cold = p.cold[:0]
	for _, h := range s.live {
		if s.time(h) < peak { // not g
			p.cold = append(p.cold, h)
		}
	}
	limit := peak * (1 - 1e-12) // ignores changes below rounding
	least := limit
	for n := 1; len(p.cold) > 0 && least > goal && (n <= fewRanks || least == limit); n++ {
		h := p.popColdest()
		*left -= int(s.start[g+1]-s.start[g]) * int(s.start[h+1]-s.start[h])
		if x, y, t := p.exchangeWith(g, h, least, goal); t < least {
			i, j, least = x, y, t
		}
	}
	return i, j, least < limit
}

// popColdest removes the rank with the least time from p.cold.
func (p *Planner) popColdest() int32 {
	s, at := &p.state, 0
	for k, h := range p.cold {
		if s.time(h) < s.time(p.cold[at]) {
			at = k
		}
	}
	h := p.cold[at]
	p.cold[at] = p.cold[len(p.cold)-1]
	p.cold = p.cold[:len(p.cold)-1]
	return h
}

func (p *Planner) exchangeWith(g, h int32, limit, goal float64) (i, j int32, least float64) {
	s := &p.state
	least = limit
	loadG, loadH, slowG, slowH := s.load[g], s.load[h], s.slow[g], s.slow[h]
	hasG, hasH := s.has[s.at(g, 0):s.at(g+1, 0)], s.has[s.at(h, 0):s.at(h+1, 0)]
	heldH, share := s.slot[s.start[h]:s.start[h+1]], s.share
	for x := s.start[g]; x < s.start[g+1]; x++ {
		a := s.slot[x]
		if a == Empty || hasH[a] {
			continue
		}
		shareA := share[a]
		for y, b := range heldH {
			d := shareA
			if b != Empty {
				d -= share[b]
			}
			t := (loadH + d) * slowH
			if t >= least || d <= 0 {
				continue
			}
			t = max(t, (loadG-d)*slowG)
			if t >= least || b != Empty && hasG[b] {
				continue
			}
			if i, j, least = x, s.start[h]+int32(y), t; t <= goal {
				return i, j, least
			}
		}
	}
	return i, j, least
}

// replica finds the change of one replica that leaves its touched ranks best: a slot that is empty or whose expert has
// another replica gets an expert of rank hot, or a slot of rank hot gets any expert.
func (p *Planner) replica(hot int32, peak float64, left *int) (slot, expert int32, ok bool) {
	s := &p.state
	least := peak * (1 - 1e-12)
	try := func(j, e int32) {
		b := s.slot[j]
		if b != Empty && s.count[b] < 2 || s.has[s.at(s.rankOf[j], e)] {
			return
		}
		g, t := s.rankOf[j], s.more[e] // exact for the slot's rank, which holds e and b in no other slot
		if b != Empty {
			t -= s.share[b]
		}
		if (s.load[g]+t)*s.slow[g] >= least || g != hot && (s.load[hot]+s.more[e]-s.share[e])*s.slow[hot] >= least {
			*left--
			return
		}
		*left -= int(s.count[e]) + 2
		if t := p.peakAfter(hot, j, e, least); t < least {
			slot, expert, ok, least = j, e, true, t
		}
	}
	for j := range int32(s.slots) {
		if s.rankOf[j] == hot {
			for e := range int32(s.experts) {
				try(j, e)
			}
			continue
		}
		if b := s.slot[j]; b != Empty && s.count[b] < 2 {
			continue
		}
		for i := s.start[hot]; i < s.start[hot+1]; i++ {
			if s.slot[i] != Empty {
				try(j, s.slot[i])
			}
		}
	}
	return slot, expert, ok
}

// peakAfter is the largest time among rank hot and the ranks whose load changes when slot j gets expert e, or +Inf if
// that is not below the limit.
func (p *Planner) peakAfter(hot, j, e int32, limit float64) float64 {
	p.changes(j, e)
	s := &p.state
	worst := (s.load[hot] + p.delta[hot]) * s.slow[hot]
	for _, g := range p.touch {
		worst = max(worst, (s.load[g]+p.delta[g])*s.slow[g])
	}
	for _, g := range p.touch {
		p.delta[g] = 0
	}
	if worst >= limit {
		return math.Inf(1)
	}
	return worst
}

// changes sets delta on the ranks in touch: the change of the loads if slot j gets e.
func (p *Planner) changes(j, e int32) {
	s := &p.state
	if len(p.delta) != s.ranks {
		p.delta = make([]float64, s.ranks)
	}
	p.touch = p.touch[:0]
	add := func(g int32, d float64) {
		if p.delta[g] == 0 {
			p.touch = append(p.touch, g)
		}
		p.delta[g] += d
	}
	if b := s.slot[j]; b != Empty {
		more := s.w[b]/float64(s.count[b]-1) - s.share[b]
		for k := s.head[b]; k >= 0; k = s.next[k] {
			if k == j {
				add(s.rankOf[k], -s.share[b])
			} else {
				add(s.rankOf[k], more)
			}
		}
	}
	share := s.w[e] / float64(s.count[e]+1)
	add(s.rankOf[j], share)
	for k := s.head[e]; k >= 0; k = s.next[k] {
		add(s.rankOf[k], share-s.share[e])
	}
}
