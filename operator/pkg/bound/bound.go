// Package bound computes the fewest bytes that any plan to a shape can move. It shares no code with pkg/planner, so
// that each can verify the other. Pure.
//
// Experts, per layer: over all layouts in which consecutive ranks form groups of g, the
// groups' expert counts differ by at most one, and positions in a group are free.
//   - g = 1: exact, a transportation problem.
//   - one group (g = P): exact, a linear assignment of ranks to positions.
//   - several groups of g > 1: a true lower bound that may not be reachable, as each
//     expert is allowed its own seating.
package bound

import (
	"bytes"
	"encoding/binary"
	"slices"

	"tangram.dev/operator/pkg/geometry"
)

// Held is a run of granules of some expert that a rank holds.
type Held struct {
	Rank uint32
	Run  geometry.Run
}

// Memo caches the bounds of layers with equal holdings. Not for concurrent use.
type Memo struct {
	v     *geometry.View
	known map[string]uint64
	// Scratch space of the current layer.
	key, whole []byte
	keys       [][]byte // by expert
	seats      []seat
	classes    []class
}

// NewMemo returns an empty Memo for layers of one geometry.
func NewMemo(v *geometry.View) *Memo { return &Memo{v: v, known: map[string]uint64{}} }

// class groups the experts with equal holders and equal sharding.
type class struct {
	count uint64
	shift uint32 // expert modulo g
	held  []seat // by index in target
}

// seat is a rank's index in the target and a run that it holds.
type seat struct {
	at  int
	run geometry.Run
}

// Layer returns the bound of one layer. held[e] are the holders of expert e, target the ranks of the desired layout in
// order, g the size of an expert group (it divides len(target)).
func (m *Memo) Layer(held [][]Held, target []uint32, g uint32) uint64 {
	index := make([]int, slices.Max(target)+1) // + 1
	for i, rank := range target {
		index[rank] = i + 1
	}
	// For each expert: its seats, and their bytes as the key that groups equal experts and indexes the memo.
	seats, order := make([][]seat, len(held)), make([]int, len(held))
	all := m.seats[:0]
	m.keys, m.key = m.keys[:0], m.key[:0]
	for e, hs := range held {
		from, at := len(all), len(m.key)
		for _, h := range hs {
			if int(h.Rank) < len(index) && index[h.Rank] > 0 {
				all = append(all, seat{index[h.Rank] - 1, h.Run})
			}
		}
		mine := all[from:len(all):len(all)]
		m.key = binary.AppendUvarint(m.key, uint64(uint32(e)%g))
		for _, s := range mine {
			m.key = binary.AppendUvarint(m.key, uint64(s.at))
			m.key = binary.AppendUvarint(m.key, uint64(s.run.Start))
			m.key = binary.AppendUvarint(m.key, uint64(s.run.Count))
		}
		m.keys = append(m.keys, m.key[at:len(m.key):len(m.key)])
		seats[e], order[e] = mine, e
	}
	m.seats = all
	keys := m.keys
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(keys[a], keys[b]) })
	whole := binary.AppendUvarint(m.whole[:0], uint64(g))
	whole = binary.AppendUvarint(whole, uint64(len(target)))
	classes := m.classes[:0]
	for i := 0; i < len(order); {
		c, key := class{shift: uint32(order[i]) % g, held: seats[order[i]]}, keys[order[i]]
		for ; i < len(order) && bytes.Equal(keys[order[i]], key); i++ {
			c.count++
		}
		classes = append(classes, c)
		whole = binary.AppendUvarint(whole, c.count)
		whole = binary.AppendUvarint(whole, uint64(len(key)))
		whole = append(whole, key...)
	}
	m.whole, m.classes = whole, classes
	if known, ok := m.known[string(whole)]; ok {
		return known
	}
	result := m.solve(classes, len(target), int(g))
	m.known[string(whole)] = result
	return result
}

// solve solves the transportation problem of classes and groups. A group without any holder of a class fetches all of
// it, for any order of its ranks. One edge to `none` stands for all such groups, so the number of edges is that of
// holders, not classes times groups.
func (m *Memo) solve(classes []class, ranks, g int) uint64 {
	groups := ranks / g
	if groups == 1 {
		cost := make([]uint64, g*g)
		for _, c := range classes {
			m.costs(c, 0, g, func(i int, one uint64) { cost[i] += c.count * one })
		}
		return assignment(g, cost)
	}
	experts := uint64(0)
	// One or two edges for each class and group, and one for each holder; most classes have one holder.
	f := newFlow(len(classes)+groups+4, 3*(len(classes)+groups)+1)
	source, none, common, sink := len(classes)+groups, len(classes)+groups+1, len(classes)+groups+2, len(classes)+groups+3
	one := make([]uint64, g*g)
	for i, c := range classes {
		experts += c.count
		f.edge(source, i, c.count, 0)
		all := uint64(0)
		for p := range g {
			all += m.missing(nil, m.shard(c.shift, g, p))
		}
		f.edge(i, none, c.count, all)
		for from := 0; from < len(c.held); { // adjacent if from one group; otherwise two edges of equal cost
			j := c.held[from].at / g
			m.costs(c, j, g, func(i int, cost uint64) { one[i] = cost })
			cost := one[0]
			if g > 1 {
				cost = assignment(g, one)
			}
			f.edge(i, len(classes)+j, c.count, cost)
			for from < len(c.held) && c.held[from].at/g == j {
				from++
			}
		}
	}
	short := experts / uint64(groups)
	for j := range groups {
		f.edge(none, len(classes)+j, short+1, 0)
		f.edge(len(classes)+j, sink, short, 0)
		f.edge(len(classes)+j, common, 1, 0)
	}
	f.edge(common, sink, experts%uint64(groups), 0)
	return f.run(source, sink)
}

// costs calls set(r*g+p, bytes) with the bytes that rank r of a group lacks to hold position p of an expert of the
// class.
func (m *Memo) costs(c class, group, g int, set func(int, uint64)) {
	var runs []geometry.Run
	for r := range g {
		runs = runs[:0]
		for _, s := range c.held {
			if s.at == group*g+r {
				runs = append(runs, s.run)
			}
		}
		for p := range g {
			set(r*g+p, m.missing(runs, m.shard(c.shift, g, p)))
		}
	}
}

func (m *Memo) shard(shift uint32, g, p int) geometry.Run {
	return geometry.ShardOf(m.v.Granules, uint32(g), shift, uint32(p))
}

// missing returns the bytes that a rank with these runs of an expert lacks to hold `want`. The tail counts only if the
// rank holds nothing of the expert.
func (m *Memo) missing(runs []geometry.Run, want geometry.Run) uint64 {
	lacks := uint64(0)
	for granule := want.Start; granule < want.End(); granule++ {
		if !slices.ContainsFunc(runs, func(r geometry.Run) bool { return r.Start <= granule && granule < r.End() }) {
			lacks++
		}
	}
	if lacks == 0 {
		return 0
	}
	bytes := lacks * m.v.Proto.GranuleBytes
	if len(runs) == 0 {
		bytes += m.v.Proto.ExpertTailBytes
	}
	return bytes
}

// Placed returns the bound of a layer of g = 1 with a given placement: placed[i] are the experts of rank target[i]. It
// sums the bytes that those ranks lack, which no layout with this placement can avoid.
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

// Dense returns the bound of the dense weights: each rank that lacks them receives them once. On a first start these
// are all ranks, and one copy of the bytes comes from the checkpoint.
func Dense(v *geometry.View, lacking int) uint64 { return uint64(lacking) * v.Proto.DenseBytes }
