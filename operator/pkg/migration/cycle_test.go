package migration

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/placement"
)

// scattered is a random placement on ranks with these slots: an expert is at most once on a rank, slots may be empty.
// Each expert has a replica; if lost is not 0, one in `lost` experts has none.
func scattered(r *rand.Rand, layers, experts int, slots []int, lost int) *placement.Placement {
	lists := make([][][]int32, layers)
	for l := range lists {
		var free [][2]int
		for g, n := range slots {
			lists[l] = append(lists[l], slices.Repeat([]int32{placement.Empty}, n))
			for i := range n {
				free = append(free, [2]int{g, i})
			}
		}
		r.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
		for k, at := range free {
			e := int32(k)
			if k >= experts { // one more replica, or none
				e = int32(r.IntN(experts))
				if r.IntN(4) == 0 || slices.Contains(lists[l][at[0]], e) {
					continue
				}
			}
			if lost == 0 || r.IntN(lost) > 0 {
				lists[l][at[0]][at[1]] = e
			}
		}
	}
	p, err := placement.FromLists(lists, experts, 0)
	if err != nil {
		panic(err)
	}
	return p
}

// world is two placements on random ranks: some leave, some join, some get larger or smaller.
func world(r *rand.Rand) (old, now *placement.Placement, load [][]float64, ranks []placement.Rank) {
	layers, experts := 1+r.IntN(3), 2+r.IntN(7)
	shape := func() []int {
		out, sum := []int{}, 0
		for len(out) < 2+r.IntN(4) || sum < experts {
			out = append(out, 1+r.IntN(4))
			sum += out[len(out)-1]
		}
		return out
	}
	before := shape()
	after := before
	if r.IntN(2) == 0 {
		after = shape()
	}
	for range after {
		ranks = append(ranks, placement.Rank{Speed: []float64{0, 0.5, 1, 2}[r.IntN(4)]})
	}
	most := []int{2, 4, 2000}[r.IntN(3)]
	for range layers { // all shares and times are integers, so equality is exact
		row := make([]float64, experts)
		for e := range row {
			row[e] = 2 * 27720 * float64(r.IntN(2)*r.IntN(most))
		}
		load = append(load, row)
	}
	old, now = scattered(r, layers, experts, before, 3+r.IntN(20)), scattered(r, layers, experts, after, 0)
	if layers > 1 && r.IntN(3) == 0 { // equal layers: the first comes first
		copy(old.Layer(1), old.Layer(0))
		copy(now.Layer(1), now.Layer(0))
		copy(load[1], load[0])
	}
	return old, now, load, ranks
}

// part is a change that is made completely or not at all.
type part struct {
	layer, moves int
	slots        []int
	done, lost   bool
}

// slowly is Cycle by its definition: it values each change by making it, and evaluates all again after each.
type slowly struct {
	old, now, next *placement.Placement
	load           [][]float64
	ranks          []placement.Rank
	parts          []*part // by layer and first slot
}

func (s *slowly) start() {
	s.next = &placement.Placement{Experts: s.now.Experts, Start: s.now.Start, Slot: slices.Repeat([]int32{placement.Empty}, len(s.now.Slot))}
	for l := range s.load {
		var rankOf []int
		for g := range s.ranks {
			if g < s.old.Ranks() {
				copy(s.next.Rank(l, g), s.old.Rank(l, g))
			}
			rankOf = append(rankOf, slices.Repeat([]int{g}, len(s.now.Rank(l, g)))...)
		}
		was, want := slices.Clone(s.next.Layer(l)), s.now.Layer(l)
		var parts []*part
		for j := range want {
			if was[j] == want[j] {
				continue
			}
			p := &part{layer: l, slots: []int{j}}
			parts = append(slices.DeleteFunc(parts, func(q *part) bool {
				shared := slices.ContainsFunc(q.slots, func(i int) bool {
					return slices.ContainsFunc([]int32{was[i], want[i]}, func(e int32) bool {
						return e != placement.Empty && (e == was[j] || e == want[j])
					})
				})
				if shared {
					p.slots = append(p.slots, q.slots...)
				}
				return shared
			}), p)
		}
		for _, p := range parts {
			slices.Sort(p.slots)
			for _, j := range p.slots {
				if e, g := want[j], rankOf[j]; e != placement.Empty {
					if g >= s.old.Ranks() || !slices.Contains(s.old.Rank(l, g), e) {
						p.moves++
					}
					p.lost = p.lost || !slices.Contains(was, e)
				}
			}
		}
		slices.SortFunc(parts, func(a, b *part) int { return cmp.Compare(a.slots[0], b.slots[0]) })
		s.parts = append(s.parts, parts...)
	}
}

func (s *slowly) take(parts []*part) {
	for _, p := range parts {
		p.done = true
		for _, j := range p.slots {
			s.next.Layer(p.layer)[j] = s.now.Layer(p.layer)[j]
		}
	}
}

// offer is the best of a layer: one part or all remaining ones.
func (s *slowly) offer(l, limit int) (best []*part, gain float64, moves int) {
	var choices [][]*part
	var rest []*part
	for _, p := range s.parts {
		if p.layer == l && !p.done {
			choices, rest = append(choices, []*part{p}), append(rest, p)
		}
	}
	for _, c := range append(choices, rest) {
		n := 0
		for _, p := range c {
			n += p.moves
		}
		trial := &slowly{now: s.now, next: &placement.Placement{Experts: s.next.Experts, Start: s.next.Start, Slot: slices.Clone(s.next.Slot)}}
		trial.take(c)
		for _, p := range c {
			p.done = false
		}
		x := peakOf(s.next, l, s.load[l], s.ranks) - peakOf(trial.next, l, s.load[l], s.ranks)
		if n <= limit && x*float64(max(moves, 1)) > gain*float64(max(n, 1)) {
			best, gain, moves = c, x, n
		}
	}
	return best, gain, moves
}

func (s *slowly) run(limit int) []int32 {
	s.start()
	for _, p := range s.parts {
		if p.lost {
			s.take([]*part{p})
			limit -= p.moves
		}
	}
	for {
		var best []*part
		gain, moves := 0.0, 0
		for l := range s.load {
			c, x, n := s.offer(l, limit)
			if x > 0 && (best == nil || x*float64(moves) > gain*float64(n)) {
				best, gain, moves = c, x, n
			}
		}
		if best == nil {
			return s.next.Slot
		}
		s.take(best)
		limit -= moves
	}
}

// A cycle takes the parts that lower a peak most per move, as a whole, and restores lost experts before all else.
func TestCycleTakesMostValuableParts(t *testing.T) {
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 4))
		old, now, load, ranks := world(r)
		limit := r.IntN(10)
		want := (&slowly{old: old, now: now, load: load, ranks: ranks}).run(limit)
		got, err := Cycle(old, now, load, ranks, limit)
		require.NoError(t, err)
		require.Equal(t, now.Start, got.Start)
		require.Equal(t, want, got.Slot, "seed %d", seed)
	}
}

// Required moves and their holders, for arbitrary placements: with empty slots, duplicates, dead and new ranks.
func TestMoves_WhenPlacementsAreArbitrary(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		old, now, _, _ := world(r)
		if k := r.IntN(len(old.Slot)); r.IntN(2) == 0 && k > 0 {
			old.Slot[k] = old.Slot[k-1] // an expert twice, often on one rank
		}
		gone := make([]bool, r.IntN(old.Ranks()+1)) // may cover fewer ranks than exist
		for g := range gone {
			gone[g] = r.IntN(3) == 0
		}
		var want []Move
		for l := range now.Layers() {
			for g := range now.Ranks() {
				for i, e := range now.Rank(l, g) {
					var from []int32
					for h := range old.Ranks() {
						if slices.Contains(old.Rank(l, h), e) && (h >= len(gone) || !gone[h]) {
							from = append(from, int32(h))
						}
					}
					if e != placement.Empty && !slices.Contains(from, int32(g)) {
						want = append(want, Move{Layer: int32(l), Expert: e, To: int32(g), Slot: int32(i), From: from, Source: Nowhere})
					}
				}
			}
		}
		got, err := Moves(old, now, gone)
		require.NoError(t, err)
		require.Equal(t, want, got, "seed %d", seed)
	}
}

// If two ranks are equally hot, no part alone lowers the peak: all remaining parts of the layer do, if the limit admits
// them.
func TestCycleTakesWholeLayer_WhenNoPartHelps(t *testing.T) {
	place := func(slots ...int32) *placement.Placement {
		return &placement.Placement{Experts: 8, Start: []int32{0, 2, 4, 6, 8}, Slot: slots}
	}
	old, now := place(0, 1, 2, 3, 4, 5, 6, 7), place(0, 4, 2, 6, 1, 5, 3, 7)
	load := [][]float64{{5, 5, 5, 5, 1, 1, 1, 1}}
	for limit, want := range map[int]*placement.Placement{3: old, 4: now, 5: now} {
		got, err := Cycle(old, now, load, make([]placement.Rank, 4), limit)
		require.NoError(t, err)
		require.Equal(t, want.Slot, got.Slot, "at most %d moves", limit)
	}
}
