package placement

// demand is a layer's load by source rank. Replicas share evenly for every source, so each replica serves 1/count of
// the tokens from rank s for expert e: one on s saves their transfer, one in the node of s their transfer over the
// network. The cost term is
//
//   - Locality * sum over slots (rank g, expert e) of share[e] * (own + node)/2 / mean
//
// with own and node the shares of e's tokens from g and from all ranks of g's node. It is in units of the peak over the
// mean, the scale that also measures moves.
type demand struct {
	on     bool
	weight float64
	own    []float64 // [rank*experts+expert]
	node   []float64
	sum    map[int][]float64 // by node: [expert]
}

func (d *demand) ready(s *state, problem *Problem, l int, o Options) {
	by := problem.Layers[l].BySource
	if d.on = by != nil; !d.on {
		return
	}
	if d.sum == nil {
		d.sum = map[int][]float64{}
	}
	d.own, d.node = grow(d.own, s.ranks*s.experts), grow(d.node, s.ranks*s.experts)
	for _, r := range problem.Ranks {
		d.sum[r.Node] = grow(d.sum[r.Node], s.experts)
		clear(d.sum[r.Node])
	}
	for g, row := range by {
		sum := d.sum[problem.Ranks[g].Node]
		for e, w := range row {
			sum[e] += w
		}
	}
	for g, row := range by {
		sum := d.sum[problem.Ranks[g].Node]
		for e, w := range row {
			i := g*s.experts + e
			if d.own[i], d.node[i] = 0, 0; s.w[e] > 0 {
				d.own[i], d.node[i] = w/s.w[e], sum[e]/s.w[e]
			}
		}
	}
	if s.mean > 0 { // otherwise there is nothing to weigh
		d.weight = o.Locality / s.mean / 2
	}
}

// worth is the cost term of a replica of e on rank g, without its sign.
func (d *demand) worth(s *state, g, e int32) float64 {
	i := s.at(g, e)
	return d.weight * s.share[e] * (d.own[i] + d.node[i])
}

// shares of the tokens that are served on their source rank, and in its node.
func (d *demand) shares(s *state) (local, near float64) {
	if !d.on {
		return 0, 0
	}
	total := 0.0
	for j, e := range s.slot {
		if e != Empty {
			i := s.at(s.rankOf[j], e)
			local += s.share[e] * d.own[i]
			near += s.share[e] * d.node[i]
			total += s.share[e]
		}
	}
	if total == 0 {
		return 0, 0
	}
	return local / total, near / total
}

// approach exchanges slots as long as that brings tokens nearer without a higher peak. Only a free plan uses it,
// because it counts no moves.
func (p *Planner) approach(o Options) {
	s, d := &p.state, &p.ask
	if !d.on || o.Locality <= 0 {
		return
	}
	_, peak := s.hottest()
	for changed, rounds := true, 0; changed && rounds < 8; rounds++ {
		changed = false
		for i := range int32(s.slots) {
			g, best, to := s.rankOf[i], 1e-9, int32(-1)
			for j := range int32(s.slots) {
				if !p.mayExchange(i, j) {
					continue
				}
				gain, diff := p.nearer(i, j)
				if h := s.rankOf[j]; gain > best && (s.load[g]-diff)*s.slow[g] <= peak && (s.load[h]+diff)*s.slow[h] <= peak {
					best, to = gain, j
				}
			}
			if to >= 0 {
				s.swap(i, to)
				changed = true
			}
		}
	}
}

// nearer returns the gain in worth of an exchange, and the load that moves from i's rank to j's.
func (p *Planner) nearer(i, j int32) (gain, diff float64) {
	s, d := &p.state, &p.ask
	g, h, a, b := s.rankOf[i], s.rankOf[j], s.slot[i], s.slot[j]
	if a != Empty {
		gain += d.worth(s, h, a) - d.worth(s, g, a)
		diff += s.share[a]
	}
	if b != Empty {
		gain += d.worth(s, g, b) - d.worth(s, h, b)
		diff -= s.share[b]
	}
	return gain, diff
}
