package placement

// replicate sets count: one replica each, then one more for the expert with the hottest replicas, until the slots are
// used up. This greedy method reaches r*, the minimum possible largest load of a replica (reference: DeepSeek-EPLB's
// second step), which it returns.
//
// A rank holds an expert once, so counts must be realisable: with s[g] slots, the k experts with most replicas have at
// most sum over g of min(s[g], k) (Gale and Ryser). Sets of counts under such bounds form a polymatroid, so the greedy
// method stays exact: an expert that is full once stays full.
func (p *Planner) replicate() float64 {
	s := &p.state
	h, low := p.heap[:0], lowBits(s.experts)
	for e := range int32(s.experts) {
		s.count[e] = 1
		h = append(h, mostFirst(s.w[e], e, low)) // hottest replica first
	}
	for i := len(h)/2 - 1; i >= 0; i-- {
		sink(h, i, h[i])
	}
	hottest := func() float64 { e := h[0] & low; return s.w[e] / float64(s.count[e]) }
	star, capped := 0.0, false
	p.fit.reset(s)
	for spare := s.slots - s.experts; spare > 0; { // some expert can have one more as long as slots are left
		e := int32(h[0] & low)
		if p.fit.more(s.count[e]) {
			s.count[e]++
			sink(h, 0, mostFirst(hottest(), e, low))
			spare--
			continue
		}
		if !capped { // the hottest one from here on
			star, capped = hottest(), true
		}
		last := h[len(h)-1]
		h = h[:len(h)-1]
		sink(h, 0, last)
	}
	for e := range s.experts {
		s.share[e] = s.w[e] / float64(s.count[e])
		s.more[e] = s.w[e] / float64(s.count[e]+1)
	}
	if !capped {
		star = hottest()
	}
	p.heap = h
	return star
}

// fit checks whether an expert may have one more replica.
type fit struct {
	even bool
	most int32   // ranks that have slots
	with []int32 // [c] experts of count c, only if uneven; count 1 is not needed
	room []int64 // [k] sum over ranks of min(slots, k), only if uneven
}

func (f *fit) reset(s *state) {
	f.most, f.even = int32(len(s.live)), true
	first := s.live[0]
	for _, g := range s.live {
		f.even = f.even && s.start[g+1]-s.start[g] == s.start[first+1]-s.start[first]
	}
	if f.even { // only the number of ranks limits
		return
	}
	f.with = grow(f.with, int(f.most)+1)
	clear(f.with)
	f.room = grow(f.room, s.experts+1)
	clear(f.room)
	for _, g := range s.live { // first as differences: rank g adds one for each k up to its slots
		f.room[s.start[g+1]-s.start[g]]++
	}
	still := int64(len(s.live))
	for k, total := 1, int64(0); k <= s.experts; k++ {
		ends := f.room[k]
		total += still
		f.room[k] = total
		still -= ends
	}
}

// more raises one count from c to c+1 if that can be realised.
func (f *fit) more(c int32) bool {
	if c >= f.most {
		return false
	}
	if f.even {
		return true
	}
	f.with[c]--
	f.with[c+1]++
	// The sum of the k largest counts is linear between the ends of a run of equal counts, and room is concave: only
	// the ends of runs can be binding.
	k, sum := int64(0), int64(0)
	for x := f.most; x > 1; x-- { // all experts with count 1 or more fit: there are at least as many slots
		n := int64(f.with[x])
		k, sum = k+n, sum+n*int64(x)
		if sum > f.room[k] {
			f.with[c]++
			f.with[c+1]--
			return false
		}
	}
	return true
}
