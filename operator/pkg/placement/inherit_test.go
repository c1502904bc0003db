package placement

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// inherited is the content that ranks keep, by definition. A slot of the same number keeps its expert. An expert
// without one takes an empty slot of its rank, otherwise that of the least needed expert with more replicas, which is
// dropped.
func inherited(pr *Problem, experts, l int) []int32 {
	var out [][]int32
	count := make([]int, experts)
	type late struct {
		g int
		e int32
	}
	var waits []late
	for g, k := range pr.Ranks {
		out = append(out, slices.Repeat([]int32{Empty}, min(k.Slots, experts)))
		if g >= pr.Old.Ranks() {
			continue
		}
		for i, e := range pr.Old.Rank(l, g) {
			if e == Empty {
				continue
			}
			count[e]++
			if slices.Contains(out[g], e) {
				continue
			}
			if i < len(out[g]) {
				out[g][i] = e
			} else {
				waits = append(waits, late{g, e})
			}
		}
	}
	for _, w := range waits {
		if slices.Contains(out[w.g], w.e) {
			continue
		}
		at := slices.Index(out[w.g], Empty)
		if at < 0 {
			load := pr.Layers[l].Load
			for i, b := range out[w.g] {
				if count[b] <= count[w.e] {
					continue
				}
				if at < 0 || count[b] > count[out[w.g][at]] || count[b] == count[out[w.g][at]] && load[b] < load[out[w.g][at]] {
					at = i
				}
			}
			if at < 0 {
				count[w.e]--
				continue
			}
			count[out[w.g][at]]--
		}
		out[w.g][at] = w.e
	}
	return slices.Concat(out...)
}

func TestInheritMatchesReference(t *testing.T) {
	var p Planner
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 27))
		experts := 2 + r.IntN(6-3*int(seed%2))
		pr := &Problem{Ranks: anyRanks(r, experts), Layers: []Layer{{}, {}}}
		lists := make([][][]int32, 2)
		ranks := 1 + r.IntN(len(pr.Ranks)+1)
		for l := range lists {
			for range experts {
				pr.Layers[l].Load = append(pr.Layers[l].Load, float64(r.IntN(4)))
			}
			for range ranks {
				var held []int32
				for range r.IntN(6 + 4*int(seed%2)) {
					held = append(held, int32(r.IntN(experts+1)-1)) // including empty and duplicate ones
				}
				lists[l] = append(lists[l], held)
			}
		}
		var err error
		pr.Old, err = FromLists(lists, experts, 1)
		require.NoError(t, err)
		c, err := pr.check()
		require.NoError(t, err)
		result := p.begin(pr, c)
		s := &p.state
		for l := range pr.Layers {
			s.begin(c.load[l], result.Placement.Layer(l))
			p.replicate() // as a plan does first
			s.remember(pr.Old, l)
			p.inherit(pr.Old, l)
			require.Equal(t, inherited(pr, experts, l), append([]int32(nil), s.slot...), "seed %d", seed)
			for g := range int32(s.ranks) {
				for e := range int32(experts) {
					require.Equal(t, slices.Contains(s.slot[s.start[g]:s.start[g+1]], e), s.has[s.at(g, e)])
				}
			}
			require.Zero(t, s.moved)
			s.forget(pr.Old, l)
		}
		got, err := p.Incremental(pr, Options{Price: 0.01})
		require.NoError(t, err)
		require.NoError(t, verify(pr, got), "seed %d", seed)
	}
}
