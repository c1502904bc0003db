package migration

import (
	"fmt"
	"math"

	"tangram.dev/operator/pkg/placement"
)

// Cycle returns the part of the change from old to now that moves at most `limit` slots and gains most per move. It is
// itself a placement, in which every expert is held; the next cycle plans from there. Moves that repair an expert
// without a live holder come first and are exempt from the limit. The shape (ranks, slots) is the new one.
//
// Changes of a layer's slots that share an expert belong together: all or none of them, so that an expert has its old
// replicas or its new ones. Load is [layer][expert].
func Cycle(old, now *placement.Placement, load [][]float64, ranks []placement.Rank, limit int) (*placement.Placement, error) {
	if err := alike(old, now); err != nil {
		return nil, err
	}
	if len(load) != now.Layers() || len(ranks) != now.Ranks() || limit < 0 {
		return nil, fmt.Errorf("%w: loads of %d layers on %d ranks and at most %d moves do not match a placement of %d layers on %d ranks",
			ErrInput, len(load), len(ranks), limit, now.Layers(), now.Ranks())
	}
	next := &placement.Placement{Experts: now.Experts, Start: now.Start, Slot: append([]int32(nil), now.Slot...)}
	var layers []*layerParts
	for l := range load {
		if len(load[l]) != now.Experts {
			return nil, fmt.Errorf("%w: layer %d has loads of %d experts, want %d", ErrInput, l, len(load[l]), now.Experts)
		}
		p := newLayerParts(old, now, next, l, load[l], ranks)
		limit -= p.mustDo()
		layers = append(layers, p)
	}
	offers := make([]offer, len(layers))
	for l, p := range layers {
		offers[l] = p.best(limit)
	}
	for {
		at := -1
		for l, o := range offers {
			if o.gain > 0 && (at < 0 || o.gain*float64(offers[at].moves) > offers[at].gain*float64(o.moves)) {
				at = l
			}
		}
		if at < 0 {
			return next, nil
		}
		limit -= offers[at].moves
		layers[at].take(offers[at].parts)
		for l, p := range layers { // the limit may no longer admit other offers
			if l == at || offers[l].moves > limit {
				offers[l] = p.best(limit)
			}
		}
	}
}

// offer is a set of parts of a layer that lowers its peak by gain with this number of moves.
type offer struct {
	parts []int
	moves int
	gain  float64
}

// layerParts are the independent parts of one layer's change.
type layerParts struct {
	slot  []int32   // content in the new shape, with the parts taken so far; a view
	was   []int32   // old content; Empty if the slot is new
	want  []int32   // desired content
	part  []int     // [slot] its part, -1: stays
	moves []int     // [part] slots that get an expert that their rank lacks
	done  []bool    // [part]
	lost  []bool    // [part] it has an expert without a replica in `was`
	rank  []int     // [slot]
	load  []float64 // [expert]
	slow  []float64 // [rank]
	count []int     // [expert] scratch
	time  []float64 // [rank] scratch
}

func newLayerParts(old, now, next *placement.Placement, l int, load []float64, ranks []placement.Rank) *layerParts {
	n := now.Slots()
	p := &layerParts{slot: next.Layer(l), want: now.Layer(l), was: make([]int32, n), part: make([]int, n), rank: make([]int, n),
		load: load, slow: make([]float64, len(ranks)), count: make([]int, now.Experts), time: make([]float64, len(ranks))}
	parent := make([]int, now.Experts) // union of experts that share a slot's change
	for e := range parent {
		parent[e] = e
	}
	find := func(e int) int {
		for parent[e] != e {
			parent[e] = parent[parent[e]]
			e = parent[e]
		}
		return e
	}
	for g := range ranks {
		if p.slow[g] = 1; ranks[g].Speed > 0 {
			p.slow[g] = 1 / ranks[g].Speed
		}
		for j := now.Start[g]; j < now.Start[g+1]; j++ {
			p.rank[j], p.was[j] = g, placement.Empty
			if g < old.Ranks() && j-now.Start[g] < old.Start[g+1]-old.Start[g] {
				p.was[j] = old.Rank(l, g)[j-now.Start[g]]
			}
			if a, b := p.was[j], p.want[j]; a != b && a != placement.Empty && b != placement.Empty {
				parent[find(int(a))] = find(int(b))
			}
		}
	}
	copy(p.slot, p.was)
	for _, e := range p.was {
		if e != placement.Empty {
			p.count[e]++
		}
	}
	index := map[int]int{}
	for j := range n {
		a, b := p.was[j], p.want[j]
		if p.part[j] = -1; a == b {
			continue
		}
		root := find(int(max(a, b))) // one of them may be Empty (-1)
		k, ok := index[root]
		if !ok {
			k = len(p.moves)
			index[root] = k
			p.moves, p.done, p.lost = append(p.moves, 0), append(p.done, false), append(p.lost, false)
		}
		p.part[j] = k
		if b != placement.Empty {
			if !holds(old, l, p.rank[j], b) {
				p.moves[k]++
			}
			p.lost[k] = p.lost[k] || p.count[b] == 0
		}
	}
	return p
}

// mustDo takes the parts that restore lost experts and returns their moves.
func (p *layerParts) mustDo() int {
	n := 0
	for k := range p.moves {
		if p.lost[k] {
			p.take([]int{k})
			n += p.moves[k]
		}
	}
	return n
}

func (p *layerParts) take(parts []int) {
	for _, k := range parts {
		p.done[k] = true
		p.set(k, p.want)
	}
}

func (p *layerParts) set(part int, from []int32) {
	for j, k := range p.part {
		if k == part {
			p.slot[j] = from[j]
		}
	}
}

// best returns the part, or the whole rest of the layer, that lowers the peak most per move. The whole rest is a
// candidate, because with two equally hot ranks no single part lowers the peak.
func (p *layerParts) best(limit int) offer {
	before := p.peak()
	best, rest := offer{}, offer{}
	for k := range p.moves {
		if p.done[k] {
			continue
		}
		rest.parts = append(rest.parts, k)
		rest.moves += p.moves[k]
		if p.moves[k] > limit {
			continue
		}
		p.set(k, p.want)
		o := offer{parts: []int{k}, moves: p.moves[k], gain: before - p.peak()}
		p.set(k, p.was)
		if o.gain*float64(max(best.moves, 1)) > best.gain*float64(max(o.moves, 1)) {
			best = o
		}
	}
	if rest.moves <= limit {
		for _, k := range rest.parts {
			p.set(k, p.want)
		}
		rest.gain = before - p.peak()
		for _, k := range rest.parts {
			p.set(k, p.was)
		}
		if rest.gain*float64(max(best.moves, 1)) > best.gain*float64(max(rest.moves, 1)) {
			best = rest
		}
	}
	return best
}

func (p *layerParts) peak() float64 {
	clear(p.count)
	clear(p.time)
	for _, e := range p.slot {
		if e != placement.Empty {
			p.count[e]++
		}
	}
	peak := math.Inf(-1)
	for j, e := range p.slot {
		if e != placement.Empty {
			g := p.rank[j]
			p.time[g] += p.load[e] / float64(p.count[e]) * p.slow[g]
			peak = max(peak, p.time[g])
		}
	}
	return peak
}
