package placement

import "math"

// step is a change that can be undone.
type step struct {
	swap bool
	i, j int32 // swap: the two slots; else slot i
	was  int32 // otherwise: the old content of slot i
}

// Incremental starts from the old placement and makes the changes that pay. Each change is on the rank that is then
// hottest, and the plan is the point at which
//
//	peak / mean + Price * moved slots
//
// is minimal. Experts without any holder (a dead rank) are placed first, at any cost. Without an old placement it is a
// full plan.
func (p *Planner) Incremental(problem *Problem, o Options) (*Result, error) {
	c, err := problem.check()
	if err != nil {
		return nil, err
	}
	if o.Price < 0 || math.IsNaN(o.Price) || math.IsInf(o.Price, 0) {
		return nil, badOption("the price of a moved slot", o.Price)
	}
	if problem.Old == nil {
		return p.Full(problem, o)
	}
	r := p.begin(problem, c)
	for l := range c.load {
		s := &p.state
		s.begin(c.load[l], r.Placement.Layer(l))
		bound := max(s.mean, p.replicate()*p.fastest())
		s.remember(problem.Old, l)
		p.ask.ready(s, problem, l, o)
		p.inherit(problem.Old, l)
		p.repair()
		p.rebalance(bound, o)
		s.forget(problem.Old, l)
		p.figures(problem, r, l, bound)
	}
	return r, nil
}

// inherit copies the old placement: an expert keeps its slot if the rank still has that slot, otherwise it gets another
// one. Experts without room are dropped, the least needed first: those with most replicas, then the lightest.
func (p *Planner) inherit(old *Placement, l int) {
	s := &p.state
	for e := range s.experts {
		s.count[e], s.share[e], s.head[e] = 0, 0, -1
	}
	for g := range min(s.ranks, old.Ranks()) {
		for _, e := range old.Rank(l, g) {
			if e != Empty {
				s.count[e]++ // a duplicate replica counts twice, which only makes it less needed
			}
		}
	}
	late := p.roomy[:0] // (slot of the old layer) without a slot of the same index
	for g := range int32(min(s.ranks, old.Ranks())) {
		was := old.Rank(l, int(g))
		room := int(s.start[g+1] - s.start[g])
		for i, e := range was {
			if e == Empty || s.has[s.at(g, e)] {
				continue
			}
			if i < room {
				s.slot[s.start[g]+int32(i)] = e
				s.has[s.at(g, e)] = true
			} else {
				late = append(late, old.Start[g]+int32(i))
			}
		}
	}
	for _, k := range late {
		e, g := old.Layer(l)[k], p.align.oldRank[k]
		if s.has[s.at(g, e)] {
			continue
		}
		victim := int32(-1)
		for j := s.start[g]; j < s.start[g+1]; j++ {
			if b := s.slot[j]; b == Empty {
				victim = j
				break
			} else if s.count[b] > s.count[e] && (victim < 0 || s.lessNeeded(b, s.slot[victim])) {
				victim = j
			}
		}
		gone := e
		if victim >= 0 {
			gone = s.slot[victim]
			s.slot[victim] = e
			s.has[s.at(g, e)] = true
		}
		if gone != Empty {
			s.count[gone]--
			s.has[s.at(g, gone)] = false
		}
	}
	p.roomy = late[:0]
	p.best = append(p.best[:0], s.slot...)
	p.restore(p.best)
}

func (s *state) lessNeeded(a, b int32) bool {
	if s.count[a] != s.count[b] {
		return s.count[a] > s.count[b]
	}
	return s.w[a] < s.w[b]
}

// repair places experts without a replica, heaviest first, where the peak of the touched ranks is lowest: in an empty
// slot, or in that of an expert with several replicas. One of the two exists, because there are at least as many slots
// as experts.
func (p *Planner) repair() {
	s := &p.state
	for {
		lost := int32(-1)
		for e := range int32(s.experts) {
			if s.count[e] == 0 && (lost < 0 || s.w[e] > s.w[lost]) {
				lost = e
			}
		}
		if lost < 0 {
			return
		}
		hot, _ := s.hottest()
		slot, least, free := int32(-1), math.Inf(1), false
		for j := range int32(s.slots) {
			b := s.slot[j]
			if b != Empty && s.count[b] < 2 || b != Empty && free {
				continue
			}
			if t := p.peakAfter(hot, j, lost, math.Inf(1)); t < least || b == Empty && !free {
				slot, least, free = j, t, b == Empty
			}
		}
		if s.slot[slot] != Empty {
			s.take(slot)
		}
		s.put(slot, lost)
	}
}

// rebalance searches down to the bound and keeps the best prefix of its changes.
func (p *Planner) rebalance(bound float64, o Options) {
	s := &p.state
	p.log = p.log[:0]
	p.keep = grow(p.keep, s.experts)
	clear(p.keep)
	worth := func() float64 {
		_, peak := s.hottest()
		return peak/s.mean + o.Price*float64(s.moved)
	}
	// A rank above the aim is worth a change. Lowering the aim by x gains x of the mean and costs about one more moved
	// slot on each rank, so beyond x = Price * ranks it no longer pays.
	to := aimAt(bound + s.mean*o.Price*float64(len(s.live)))
	best, at := worth(), 0
search:
	for len(p.log)-at <= max(16, len(s.live)) { // without a lower cost; at least 16, for worlds of few ranks
		g, peak := s.hottest()
		if peak <= to.at*(1+1e-12) {
			break
		}
		c, ok := p.cheapest(g, peak, to)
		if !ok {
			c, ok = p.force(g, to)
		}
		switch {
		case ok:
			p.apply(c)
		case !p.makeRoom(g, to):
			break search
		}
		if now := worth(); now < best-1e-12 {
			best, at = now, len(p.log)
		}
	}
	for len(p.log) > at {
		p.undo()
	}
}

// force gives the heaviest expert of the hottest rank another replica where that hurts least, even if the load over the
// aim grows: an expert whose share is about the mean needs nearly a whole rank, which later changes clear. The replica
// stays for this layer.
func (p *Planner) force(hot int32, to aim) (candidate, bool) {
	s := &p.state
	heaviest := Empty
	for _, e := range s.slot[s.start[hot]:s.start[hot+1]] {
		if e != Empty && (heaviest == Empty || s.share[e] > s.share[heaviest]) {
			heaviest = e
		}
	}
	if p.keep[heaviest] { // heaviest exists: the hottest rank is over the aim, so it has load
		return candidate{}, false
	}
	best, slot := math.Inf(-1), int32(-1)
	for j := range int32(s.slots) {
		b := s.slot[j]
		if s.has[s.at(s.rankOf[j], heaviest)] || b != Empty && (s.count[b] < 2 || p.keep[b]) {
			continue
		}
		if gain, ok := p.gain(hot, j, heaviest, to); ok && gain > best {
			best, slot = gain, j
		}
	}
	if slot < 0 {
		return candidate{}, false
	}
	p.keep[heaviest] = true
	return candidate{i: slot, e: heaviest}, true
}

// apply makes a change and logs it.
func (p *Planner) apply(c candidate) {
	s := &p.state
	if c.swap {
		p.log = append(p.log, step{swap: true, i: c.i, j: c.j})
		s.swap(c.i, c.j)
		return
	}
	p.log = append(p.log, step{i: c.i, was: s.slot[c.i]})
	if s.slot[c.i] != Empty {
		s.take(c.i)
	}
	s.put(c.i, c.e)
}

func (p *Planner) undo() {
	s := &p.state
	last := p.log[len(p.log)-1]
	p.log = p.log[:len(p.log)-1]
	if last.swap {
		s.swap(last.i, last.j)
		return
	}
	s.take(last.i)
	if last.was != Empty {
		s.put(last.i, last.was)
	}
}

// candidate is a change of the incremental search.
type candidate struct {
	swap  bool
	i, j  int32 // swap: slots; else slot i
	e     int32 // otherwise: the new expert of slot i
	score float64
}

// cheapest finds the change of rank g that removes most load over the aim per moved slot. The sum of that load over all
// ranks falls with each change, so the search ends. A replica of a very hot expert may make its new rank the hottest
// for a while; later changes clear it.
func (p *Planner) cheapest(g int32, peak float64, to aim) (candidate, bool) {
	best := candidate{score: 0}
	limit := peak * (1 - 1e-12)
	p.cheapestReplica(g, to, &best)
	p.cheapestSwap(g, limit, to, &best)
	return best, best.score > 0
}

// perMove is the gain per moved slot. A change without new moves (it undoes an earlier one) counts as a small fraction
// of a move, so that it comes first.
func perMove(gain float64, moves int32) float64 {
	if moves <= 0 {
		return gain * 4
	}
	return gain / float64(moves)
}

// enoughRanks are tried for a swap even after one was found that heals the hottest rank: the next may need fewer moves,
// because it holds an expert that moves anyway.
const enoughRanks = 2

// other is a candidate slot for an exchange with the hottest rank.
type other struct {
	slot    int32
	arrives int32   // moves of its expert going to the hottest rank
	share   float64 // 0 if empty
}

// cheapestSwap tries the ranks below the aim, coldest first, until rank g is healed: later ranks have less room. A swap
// of two ranks over the aim heals neither.
func (p *Planner) cheapestSwap(g int32, limit float64, to aim, best *candidate) {
	s := &p.state
	p.cold = p.cold[:0]
	for _, h := range s.live {
		if s.time(h) < to.at { // not g, which is over it
			p.cold = append(p.cold, h)
		}
	}
	over := to.excess(s.time(g))
	for n := 0; len(p.cold) > 0 && (best.score < over/2 || n < enoughRanks && best.score < over); n++ {
		h := p.popColdest()
		p.swapWith(g, h, limit, to, best)
	}
}

func (p *Planner) swapWith(g, h int32, limit float64, to aim, best *candidate) {
	s := &p.state
	p.others = p.others[:0]
	for j := s.start[h]; j < s.start[h+1]; j++ {
		b := s.slot[j]
		if b == Empty {
			p.others = append(p.others, other{slot: j})
		} else if !s.has[s.at(g, b)] {
			p.others = append(p.others, other{j, int32(s.arrives(g, b) - s.arrives(h, b)), s.share[b]})
		}
	}
	loadG, slowG, loadH, slowH := s.load[g], s.slow[g], s.load[h], s.slow[h]
	before := to.excess(s.time(g)) + to.excess(s.time(h))
	for i := s.start[g]; i < s.start[g+1]; i++ {
		a := s.slot[i]
		if a == Empty || s.has[s.at(h, a)] {
			continue
		}
		shareA, arrivesA := s.share[a], int32(s.arrives(h, a)-s.arrives(g, a))
		for _, o := range p.others {
			d := shareA - o.share
			tg, th := (loadG-d)*slowG, (loadH+d)*slowH
			if tg >= limit || th >= limit {
				continue
			}
			gain := before - to.excess(tg) - to.excess(th)
			if p.ask.on {
				gain += p.swapNearer(i, o.slot)
			}
			score := perMove(gain, arrivesA+o.arrives)
			if p.groups.on {
				score = p.groups.perAway(gain, shareA*float64(arrivesA)+o.share*float64(o.arrives), s.mean)
			}
			if score > best.score {
				*best = candidate{swap: true, i: i, j: o.slot, score: score}
			}
		}
	}
}

func (p *Planner) swapNearer(i, j int32) float64 {
	gain, _ := p.nearer(i, j)
	return gain * p.state.mean / float64(len(p.state.live))
}

// aim is the maximum time for each rank.
type aim struct {
	at     float64
	little float64 // weight of uneven load below the aim, see excess; cached, because a division each time is slow
}

func aimAt(t float64) aim { return aim{t, 0.02 / t} }

// excess is the load over the aim, plus a little for uneven load below it: of two changes that heal equally, the one
// with more equal ranks is better for the next window.
func (a aim) excess(t float64) float64 {
	x := t - a.at
	if x > 0 {
		return x
	}
	return x * x * a.little
}

// cheapestReplica evaluates all changes of one replica that relieve rank g. A change has three effects: the existing
// replicas of expert e get lighter (relief), the other replicas of the expert b that gives its slot get heavier (harm),
// and the slot's rank holds e instead of b. The first two are computed once per expert. The sum is inexact if a rank
// holds both e and b, so it only selects the changes for exact evaluation.
func (p *Planner) cheapestReplica(g int32, to aim, best *candidate) {
	s := &p.state
	p.relief, p.excess = grow(p.relief, s.experts), grow(p.excess, s.ranks)
	for _, h := range s.live {
		p.excess[h] = to.excess(s.time(h))
	}
	clear(p.relief)
	p.most = 0
	for _, h := range s.live {
		if s.load[h]*s.slow[h] <= to.at {
			continue // the gain of such ranks is negligible
		}
		for _, e := range s.slot[s.start[h]:s.start[h+1]] {
			if e != Empty {
				p.relief[e] += p.excess[h] - to.excess((s.load[h]+s.more[e]-s.share[e])*s.slow[h])
				if p.relief[e] > p.most {
					p.most = p.relief[e]
				}
			}
		}
	}
	p.hot, p.mostHot = p.hot[:0], 0
	for _, e := range s.slot[s.start[g]:s.start[g+1]] {
		if e != Empty {
			p.hot = append(p.hot, wish{e, s.more[e], p.relief[e]})
			p.mostHot = max(p.mostHot, p.relief[e])
		}
	}
	for _, h := range s.live {
		if h != g && s.load[h]*s.slow[h] >= to.at { // no room for more load
			continue
		}
		for j := s.start[h]; j < s.start[h+1]; j++ {
			b := s.slot[j]
			if b == Empty {
				p.offer(g, j, to, p.excess[h], s.load[h], best)
				break // its other empty slots are equivalent
			}
			if s.count[b] < 2 || p.keep[b] {
				continue
			}
			before := p.excess[h]
			less := s.w[b]/float64(s.count[b]-1) - s.share[b]
			for k := s.head[b]; k >= 0; k = s.next[k] {
				if r := s.rankOf[k]; k != j {
					before += p.excess[r] - to.excess((s.load[r]+less)*s.slow[r])
				}
			}
			p.offer(g, j, to, before, s.load[h]-s.share[b], best)
		}
	}
}

// wish of an expert for one more replica.
type wish struct {
	e      int32
	more   float64 // share of each replica with it
	relief float64
}

// offer tries slot j, whose rank has the given load without it, for the experts of rank hot, or for all if it is on
// that rank. The relief is an upper bound on a change's gain.
func (p *Planner) offer(hot, j int32, to aim, before, load float64, best *candidate) {
	s := &p.state
	g := s.rankOf[j]
	slow := s.slow[g]
	if g != hot {
		if (before+p.mostHot)*4 <= best.score {
			return
		}
		for _, x := range p.hot {
			about := before + x.relief - to.excess((load+x.more)*slow)
			if about*4 > best.score {
				p.tryReplica(hot, j, x.e, to, about, best)
			}
		}
		return
	}
	if (before+p.most)*4 <= best.score {
		return
	}
	was := s.was[s.at(g, 0):s.at(g+1, 0)]
	for e, more := range s.more {
		about := before + p.relief[e] - to.excess((load+more)*slow)
		if about > best.score || was[e] && about*4 > best.score {
			p.tryReplica(hot, j, int32(e), to, about, best)
		}
	}
}

func (p *Planner) tryReplica(hot, j, e int32, to aim, about float64, best *candidate) {
	s := &p.state
	b, g := s.slot[j], s.rankOf[j]
	if s.has[s.at(g, e)] {
		return
	}
	moves := s.arrives(g, e)
	if b != Empty {
		moves -= s.arrives(g, b)
	}
	if !p.groups.on && perMove(about, int32(moves)) <= best.score {
		return
	}
	gain, _ := p.gain(hot, j, e, to) // no gain if the hottest rank stays as hot
	score := perMove(gain, int32(moves))
	if p.groups.on {
		away := p.groups.away(s, e, 1, s.arrives(g, e))
		if b != Empty {
			away += p.groups.away(s, b, -1, -s.arrives(g, b))
		}
		score = p.groups.perAway(gain, away, s.mean)
	}
	if score > best.score {
		*best = candidate{i: j, e: e, score: score}
	}
}

// gain is the decrease of the load over the aim, over all ranks, if slot j gets expert e. Not ok: rank hot stays as
// hot.
func (p *Planner) gain(hot, j, e int32, to aim) (gain float64, ok bool) {
	s := &p.state
	p.changes(j, e)
	ok = p.delta[hot] < 0
	for _, h := range p.touch {
		d := p.delta[h]
		p.delta[h] = 0
		if ok {
			gain += to.excess(s.time(h)) - to.excess((s.load[h]+d)*s.slow[h])
		}
	}
	return gain, ok
}
