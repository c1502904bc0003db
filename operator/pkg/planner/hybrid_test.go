package planner_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
)

// The final layout has the ranges of layers that a user wrote, counted by groups: from ExpertParallel to Hybrid,
// TensorParallel, another Hybrid, an unrequested number of ranks, and back, with a death and its repair in between. The
// checker replays each plan.
func TestUserWrittenHybrids(t *testing.T) {
	r := source(t)
	for i := range worlds(120) {
		v := view(t, shape(6+uint32(r.IntN(20)), 8, 1+uint32(r.IntN(6)), uint64(r.IntN(2)*40)))
		layers := int(v.Proto.Layers)
		b := &broken{world: &world{v: v, spare: 1 + uint32(r.IntN(2))}, dead: map[string]bool{}}
		ranks := []int{2, 3, 4, 6}[r.IntN(4)]
		written := func() (out layout.Ranges) {
			sizes := append(layout.Divisors(uint32(ranks)), layout.AllRanks)
			for first := 0; first < layers; {
				last := first + r.IntN(layers-first)
				out = append(out, layout.Range{First: first, Last: last, ExpertGroup: sizes[r.IntN(len(sizes))], AttentionGroup: sizes[r.IntN(len(sizes))]})
				first = last + 1 + r.IntN(2)
			}
			return out
		}
		to := func(n int, s layout.Shape) {
			t.Helper()
			_, err := b.to(b.ids(n), s)
			require.NoError(t, err, "world %d", i)
		}
		hybrid := func() layout.Ranges {
			t.Helper()
			ranges := written()
			s, err := ranges.On(v, ranks)
			require.NoError(t, err, "world %d: %v on %d ranks", i, ranges, ranks)
			to(ranks, s)
			requireWritten(t, b.world, ranges, ranks, fmt.Sprintf("world %d: %v", i, ranges))
			require.True(t, layout.Follows(b.now, s))
			again := layout.RangesOf(b.now)
			same, err := again.On(v, ranks)
			require.NoError(t, err)
			require.True(t, layout.Follows(b.now, same), "what the status tells may be copied to the spec: %v", again)
			return ranges
		}
		to(ranks, expertShape)
		hybrid()
		to(ranks, tensorShape)
		ranges := hybrid()
		to(ranks-1, ranges.Fitted(v, ranks-1)) // a pod left early
		exact, err := ranges.On(v, ranks)
		require.NoError(t, err)
		to(ranks, exact)
		if ranks == 2 {
			continue // no rank could take over a lost group
		}
		b.dead[b.now.Members[r.IntN(ranks)].Id] = true
		b.repaired(t)
		require.Len(t, b.now.Members, ranks-1)
		to(ranks, exact)
		requireWritten(t, b.world, ranges, ranks, fmt.Sprintf("world %d, after a repair: %v", i, ranges))
	}
}

// requireWritten: each layer has the groups of its range, over all ranks; a layer outside all ranges has groups of one.
func requireWritten(t *testing.T, w *world, ranges layout.Ranges, ranks int, what string) {
	t.Helper()
	for l, layer := range w.now.Layers {
		experts, attention := 1, 1
		for _, x := range ranges {
			if x.First <= l && (l <= x.Last || x.Last == layout.ToTheEnd) {
				experts, attention = int(x.ExpertGroup), int(x.AttentionGroup)
			}
		}
		if experts == layout.AllRanks {
			experts = ranks
		}
		if attention == layout.AllRanks {
			attention = ranks
		}
		seen := map[uint32]int{}
		for _, g := range layer.Attention {
			require.Len(t, g.Ranks, attention, "%s, layer %d", what, l)
			for _, rank := range g.Ranks {
				seen[rank]++
			}
		}
		if w.v.Ordinal(uint32(l)) >= 0 {
			for _, g := range layer.Experts {
				require.Len(t, g.Ranks, experts, "%s, layer %d", what, l)
				for _, rank := range g.Ranks {
					seen[rank]++
				}
			}
			require.Len(t, layer.Experts, ranks/experts, "%s, layer %d", what, l)
		}
		require.Len(t, seen, ranks, "%s, layer %d", what, l)
	}
}
