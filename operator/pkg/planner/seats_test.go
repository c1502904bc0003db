package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func entries(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i) + 1
	}
	return out
}

// Balanced: each expert once, and the groups' numbers of them differ by at most one.
func TestBalanced(t *testing.T) {
	for _, c := range []struct {
		sizes   []int
		experts int
		want    bool
	}{
		{[]int{2, 2}, 4, true}, {[]int{3, 2}, 5, true}, {[]int{2, 3}, 5, true}, {[]int{3, 3, 2}, 8, true},
		{[]int{4, 2, 2}, 8, false}, {[]int{3, 3, 1}, 7, false}, {[]int{3, 3}, 5, false}, {[]int{1, 3}, 4, false},
	} {
		for g := 1; g < 4; g++ {
			w, old := &world{held: &holdings{experts: c.experts}}, oldLayer{layer: &tangramv1.LayerLayout{}}
			for _, n := range c.sizes {
				old.layer.Experts = append(old.layer.Experts, &tangramv1.ExpertGroup{Slots: append([]uint32{0}, entries(n)...)})
				old.pieces += n * g
			}
			require.Equal(t, c.want, w.balanced(old, g), "%+v", c)
		}
	}
}

// Old groups keep the block of the target that contains their ranks; groups without a rank there get the remaining
// blocks.
func TestBlocksOfOldGroups(t *testing.T) {
	for name, c := range map[string]struct {
		groups []int32 // by rank; -1: none
		target []uint32
		want   []int
	}{
		"all stay":                    {[]int32{0, 0, 1, 1}, []uint32{0, 1, 2, 3}, []int{0, 1}},
		"the other way round":         {[]int32{1, 1, 0, 0}, []uint32{0, 1, 2, 3}, []int{1, 0}},
		"one is new":                  {[]int32{0, 0, 1, 1, -1}, []uint32{0, 1, 2, 4}, []int{0, 1}},
		"the first is new":            {[]int32{-1, 0, 1, 1, 0}, []uint32{0, 1, 2, 3}, []int{0, 1}},
		"a whole group is new":        {[]int32{0, 0, 1, 1, -1, -1}, []uint32{2, 3, 4, 5}, []int{1, 0}},
		"two groups are new":          {[]int32{0, 0, 1, 1, 2, 2, -1, -1, -1, -1}, []uint32{4, 5, 6, 7, 8, 9}, []int{1, 2, 0}},
		"the middle one stays":        {[]int32{-1, -1, 1, 1, -1, -1, 2}, []uint32{0, 1, 2, 3, 4, 5}, []int{0, 1, 2}},
		"two groups in one block":     {[]int32{0, 0, 1, 1}, []uint32{0, 2, 1, 3}, nil},
		"one group in two blocks":     {[]int32{0, -1, 0, -1, 1}, []uint32{0, 1, 2, 3}, nil},
		"a group in another's block":  {[]int32{0, 1, -1, -1, 1, 0}, []uint32{0, 1, 2, 3}, nil},
		"both in one, none in theirs": {[]int32{-1, -1, 0, 1}, []uint32{0, 1, 2, 3}, nil},
	} {
		w, old := &world{target: c.target}, oldLayer{layer: &tangramv1.LayerLayout{}}
		n := int32(0)
		for _, group := range c.groups {
			old.seats = append(old.seats, seat{group: group})
			n = max(n, group+1)
		}
		for range n {
			old.layer.Experts = append(old.layer.Experts, &tangramv1.ExpertGroup{})
		}
		got, ok := w.blocks(old, len(c.target)/int(n))
		require.Equal(t, c.want != nil, ok, name)
		if ok {
			require.Equal(t, c.want, got, name)
		}
	}
}

// A piece in a layer's bank is in the way, unless its rank's future group has the same piece at that place.
func TestPiecesInTheWayOfSharedExperts(t *testing.T) {
	v := model(t, 4, 8, 3, 0)
	w := &world{v: v, target: []uint32{0, 1, 2, 4}, held: &holdings{experts: 4}}
	layer := &tangramv1.LayerLayout{Layer: 1, ExpertGroupSize: 2, Experts: []*tangramv1.ExpertGroup{
		{Ranks: []uint32{0, 1}, Slots: []uint32{1, 3}}, {Ranks: []uint32{2, 3}, Slots: []uint32{0, 2, 4}}}}
	w.old = []oldLayer{{layer: layer, bank: 5, shards: newShardTable(8, 2)}, {}}
	run := func(start, count uint32) geometry.Run { return geometry.Run{Start: start, Count: count} }
	for name, c := range map[string]struct {
		rank, bank, slot, expert uint32
		run                      geometry.Run
		ordinal                  int32
		inTheWay                 bool
		position                 int
	}{
		"the first position's":   {4, 5, 1, 1, run(0, 4), 0, false, 0},
		"the other's":            {4, 5, 2, 3, run(4, 4), 0, false, 1},
		"of the first group":     {1, 5, 1, 2, run(4, 4), 0, false, 1},
		"of another group":       {4, 5, 1, 2, run(4, 4), 0, true, -1},
		"of another expert":      {4, 5, 1, 3, run(0, 4), 0, true, -1},
		"in an empty slot":       {4, 5, 0, 1, run(0, 4), 0, true, -1},
		"beyond the slots":       {4, 5, 3, 1, run(0, 4), 0, true, -1},
		"far beyond":             {4, 5, 9, 1, run(0, 4), 0, true, -1},
		"a part":                 {4, 5, 1, 1, run(0, 3), 0, true, -1},
		"a whole one":            {4, 5, 1, 1, run(0, 8), 0, true, -1},
		"of another layer":       {4, 5, 1, 1, run(0, 4), 1, true, 0},
		"in another bank":        {4, 6, 1, 1, run(0, 8), 0, false, -1},
		"of who is not there":    {3, 5, 1, 1, run(0, 8), 0, false, -1},
		"of who is after all":    {5, 5, 1, 1, run(0, 8), 0, false, -1},
		"of a rank in the first": {0, 5, 1, 1, run(0, 4), 0, true, -1},
	} {
		h := holder{rank: c.rank, bank: c.bank, slot: c.slot, run: c.run, extra: true}
		w.held.extras, w.held.extraOf, w.held.extraExpert = []holder{h}, []int32{c.ordinal}, []uint32{c.expert}
		require.Equal(t, c.inTheWay, w.inTheWay(0, []int{0, 1}, 2), name)
		group := 1
		if c.rank < 2 {
			group = 0
		}
		require.Equal(t, c.position, w.positionOf(0, group, &h, c.expert), name)
	}
}

// A seat is the same if its pieces are, at the same places; for a rank in no group, if it stays in none.
func TestSameSeat(t *testing.T) {
	a := &tangramv1.LayerLayout{Experts: []*tangramv1.ExpertGroup{{Slots: []uint32{1, 2}}, {Slots: []uint32{3}}}}
	b := &tangramv1.LayerLayout{Experts: []*tangramv1.ExpertGroup{{Slots: []uint32{3}}, {Slots: []uint32{1, 2}}}}
	at := func(group int32, positions ...int32) seat { return seat{group: group, positions: positions} }
	require.True(t, sameSeat(a, at(0, 1), b, at(1, 1)), "the group has another number")
	require.False(t, sameSeat(a, at(0, 1), b, at(0, 1)))
	require.False(t, sameSeat(a, at(0, 1), b, at(1, 1, 2)))
	require.True(t, sameSeat(a, at(-1), b, at(-1)))
	require.False(t, sameSeat(a, at(-1), b, at(0, 0)))
	require.False(t, sameSeat(a, at(0, 0), b, at(-1)))
}
