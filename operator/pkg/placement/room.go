package placement

import (
	"cmp"
	"slices"
)

// Limits of the search for room: roomRanks ranks, coldest first, each with spare slots of roomOthers others.
const (
	roomRanks  = 8
	roomOthers = 4
)

// makeRoom makes two changes together if no single one relieves rank hot: a rank whose experts have no other replica
// can take none, until one of its experts moves into a spare slot elsewhere, which alone relieves no rank. A spare slot
// is empty, or its expert has another replica. Of the tried pairs it applies the one that removes most load over the
// aim; not ok: none does.
func (p *Planner) makeRoom(hot int32, to aim) bool {
	s := &p.state
	var experts []int32 // of the hottest rank
	for _, e := range s.slot[s.start[hot]:s.start[hot+1]] {
		if e != Empty && s.share[e] > 0 {
			experts = append(experts, e)
		}
	}
	slices.SortFunc(experts, func(a, b int32) int { return cmp.Or(cmp.Compare(s.share[b], s.share[a]), cmp.Compare(a, b)) })
	cold := slices.Clone(s.live)
	slices.SortFunc(cold, func(a, b int32) int { return cmp.Or(cmp.Compare(s.time(a), s.time(b)), cmp.Compare(a, b)) })
	before := p.allExcess(to)
	for _, e := range experts {
		var best [2]candidate
		most := before * 1e-12
		looked := 0
		for _, h := range cold {
			j := p.single(h)
			if h == hot || j < 0 || s.has[s.at(h, e)] || s.time(h) >= to.at {
				continue
			}
			if looked++; looked > roomRanks {
				break
			}
			others := 0
			for _, r := range cold {
				k := p.spare(r, s.slot[j], e)
				if r == h || k < 0 {
					continue
				}
				if others++; others > roomOthers {
					break
				}
				pair := [2]candidate{{i: k, e: s.slot[j]}, {i: j, e: e}}
				was := s.time(hot)
				p.apply(pair[0])
				p.apply(pair[1])
				gain, relieved := before-p.allExcess(to), s.time(hot) < was*(1-1e-12)
				p.undo()
				p.undo()
				if relieved && gain > most {
					best, most = pair, gain
				}
			}
		}
		if most > before*1e-12 {
			p.apply(best[0])
			p.apply(best[1])
			return true
		}
	}
	return false
}

// allExcess is the load over the aim of all ranks.
func (p *Planner) allExcess(to aim) float64 {
	sum := 0.0
	for _, g := range p.state.live {
		sum += to.excess(p.state.time(g))
	}
	return sum
}

// single is the slot of a rank's lightest expert without another replica, or -1.
func (p *Planner) single(g int32) int32 {
	s, at := &p.state, int32(-1)
	for j := s.start[g]; j < s.start[g+1]; j++ {
		if e := s.slot[j]; e != Empty && s.count[e] == 1 && (at < 0 || s.share[e] < s.share[s.slot[at]]) {
			at = j
		}
	}
	return at
}

// spare is the slot of a rank that can best take expert b: an empty one, or that of the least needed expert, but not of
// e; -1: none.
func (p *Planner) spare(g, b, e int32) int32 {
	s, at := &p.state, int32(-1)
	if s.has[s.at(g, b)] {
		return -1
	}
	for j := s.start[g]; j < s.start[g+1]; j++ {
		c := s.slot[j]
		if c == Empty {
			return j
		}
		if c != e && s.count[c] > 1 && !p.keep[c] && (at < 0 || s.share[c] < s.share[s.slot[at]]) {
			at = j
		}
	}
	return at
}
