// Package bound computes the fewest bytes that any plan to a shape can move. It shares
// no code with pkg/planner, on purpose: the one proves the other. Pure.
//
// Experts, per layer: over all layouts in which consecutive ranks form groups of g, the
// groups' expert counts differ by at most one, and positions in a group are free.
//   - g = 1: exact, a transportation problem.
//   - one group (g = P): exact, a linear assignment of ranks to positions.
//   - several groups of g > 1: a true lower bound that may not be reachable, as each
//     expert is allowed its own seating.
package bound

import (
	"encoding/binary"
	"slices"

	"tangram.dev/operator/pkg/geometry"
)

// Held is a run of granules of some expert that a rank holds.
type Held struct {
	Rank uint32
	Run  geometry.Run
}

// Memo remembers the bounds of layers that are held alike. Not for concurrent use.
type Memo struct {
	v     *geometry.View
	known map[string]uint64
	key   []byte
}

// NewMemo for layers of one geometry.
func NewMemo(v *geometry.View) *Memo { return &Memo{v: v, known: map[string]uint64{}} }

// class are the experts that are held alike and sharded alike.
type class struct {
	count uint64
	shift uint32                 // expert modulo g
	runs  map[int][]geometry.Run // by index in target
}

// Layer is the bound of one layer: held[e] are the holders of expert e, target the ranks
// of the wanted layout in order, g the size of an expert group (it divides len(target)).
func (m *Memo) Layer(held [][]Held, target []uint32, g uint32) uint64 {
	index := make(map[uint32]int, len(target))
	for i, rank := range target {
		index[rank] = i
	}
	counts := map[string]uint64{}
	example := map[string]int{}
	var order []string
	for e, hs := range held {
		m.key = binary.AppendUvarint(m.key[:0], uint64(uint32(e)%g))
		for _, h := range hs {
			if i, ok := index[h.Rank]; ok {
				m.key = binary.AppendUvarint(m.key, uint64(i))
				m.key = binary.AppendUvarint(m.key, uint64(h.Run.Start))
				m.key = binary.AppendUvarint(m.key, uint64(h.Run.Count))
			}
		}
		n := counts[string(m.key)]
		if n == 0 {
			key := string(m.key)
			order = append(order, key)
			example[key] = e
		}
		counts[string(m.key)] = n + 1
	}
	slices.Sort(order)
	whole := binary.AppendUvarint(nil, uint64(g))
	whole = binary.AppendUvarint(whole, uint64(len(target)))
	for _, key := range order {
		whole = binary.AppendUvarint(whole, counts[key])
		whole = binary.AppendUvarint(whole, uint64(len(key)))
		whole = append(whole, key...)
	}
	if known, ok := m.known[string(whole)]; ok {
		return known
	}
	classes := make([]class, len(order))
	for i, key := range order {
		e := example[key]
		c := class{count: counts[key], shift: uint32(e) % g, runs: map[int][]geometry.Run{}}
		for _, h := range held[e] {
			if at, ok := index[h.Rank]; ok {
				c.runs[at] = append(c.runs[at], h.Run)
			}
		}
		classes[i] = c
	}
	result := m.solve(classes, len(target), int(g))
	m.known[string(whole)] = result
	return result
}

func (m *Memo) solve(classes []class, ranks, g int) uint64 {
	groups := ranks / g
	if groups == 1 {
		cost := make([]uint64, g*g)
		for i := range g {
			for p := range g {
				for _, c := range classes {
					cost[i*g+p] += c.count * m.missing(c, i, m.shard(c.shift, g, p))
				}
			}
		}
		return assignment(g, cost)
	}
	experts := uint64(0)
	f := newFlow(len(classes) + groups + 3)
	source, common, sink := len(classes)+groups, len(classes)+groups+1, len(classes)+groups+2
	one := make([]uint64, g*g)
	for i, c := range classes {
		experts += c.count
		f.edge(source, i, c.count, 0)
		for j := range groups {
			for r := range g {
				for p := range g {
					one[r*g+p] = m.missing(c, j*g+r, m.shard(c.shift, g, p))
				}
			}
			cost := one[0]
			if g > 1 {
				cost = assignment(g, one)
			}
			f.edge(i, len(classes)+j, c.count, cost)
		}
	}
	for j := range groups {
		f.edge(len(classes)+j, sink, experts/uint64(groups), 0)
		f.edge(len(classes)+j, common, 1, 0)
	}
	f.edge(common, sink, experts%uint64(groups), 0)
	return f.run(source, sink)
}

func (m *Memo) shard(shift uint32, g, p int) geometry.Run {
	return geometry.ShardOf(m.v.Granules, uint32(g), shift, uint32(p))
}

// missing are the bytes that target rank i lacks to hold `want` of an expert of the
// class. The tail comes along only where the rank holds nothing of the expert.
func (m *Memo) missing(c class, i int, want geometry.Run) uint64 {
	lacks := uint64(0)
	for granule := want.Start; granule < want.End(); granule++ {
		if !slices.ContainsFunc(c.runs[i], func(r geometry.Run) bool { return r.Start <= granule && granule < r.End() }) {
			lacks++
		}
	}
	if lacks == 0 {
		return 0
	}
	bytes := lacks * m.v.Proto.GranuleBytes
	if len(c.runs[i]) == 0 {
		bytes += m.v.Proto.ExpertTailBytes
	}
	return bytes
}

// Placed is the bound of a layer of g = 1 whose experts are asked for by name: placed[i] are those of rank target[i].
// It is what those ranks lack of them; no layout that has them can do with less.
func Placed(v *geometry.View, held [][]Held, target []uint32, placed [][]uint32) uint64 {
	total := uint64(0)
	for i, rank := range target {
		for _, e := range placed[i] {
			has, any := make([]bool, v.Granules), false
			for _, h := range held[e] {
				for x := h.Run.Start; h.Rank == rank && x < h.Run.End(); x++ {
					has[x], any = true, true
				}
			}
			lacks := uint64(0)
			for _, here := range has {
				if !here {
					lacks++
				}
			}
			if total += lacks * v.Proto.GranuleBytes; !any {
				total += v.Proto.ExpertTailBytes
			}
		}
	}
	return total
}

// Dense is the bound of the dense weights: each rank that lacks them gets them once. On
// a first start those are all ranks, and one copy of the bytes comes from the checkpoint.
func Dense(v *geometry.View, lacking int) uint64 { return uint64(lacking) * v.Proto.DenseBytes }
