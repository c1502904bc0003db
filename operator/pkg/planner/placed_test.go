package planner_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
)

// randomPlacement on n ranks: every expert once or more, uneven ranks.
func randomPlacement(r *rand.Rand, v *geometry.View, n int) [][][]uint32 {
	out := make([][][]uint32, v.MoELayers())
	for o := range out {
		has := make([]map[uint32]bool, n)
		for i := range has {
			has[i] = map[uint32]bool{uint32(r.IntN(int(v.Proto.Experts))): true} // a rank has at least one
		}
		for e := range v.Proto.Experts {
			for range 1 + r.IntN(2)*r.IntN(3) {
				has[r.IntN(n)][e] = true
			}
		}
		out[o] = make([][]uint32, n)
		for i := range has {
			for e := range has[i] {
				out[o][i] = append(out[o][i], e)
			}
			slices.Sort(out[o][i])
		}
	}
	return out
}

// Chains between placements, widths and modes: the checker accepts each, only missing pieces move, and a plan to the
// same placement is empty.
func TestRandomPlacements(t *testing.T) {
	r := source(t)
	for i := range worlds(60) {
		tail := uint64(r.IntN(2) * 40)
		v := view(t, shape(1+uint32(r.IntN(30)), 4+uint32(r.IntN(12)), 1+uint32(r.IntN(4)), tail))
		w := &world{v: v, spare: 1 + uint32(r.IntN(2))}
		for step := range 6 {
			n := 1 + r.IntN(4)
			s := layout.Shape{Mode: layout.Expert}
			switch kind := r.IntN(4); {
			case kind == 0:
				s.Mode = layout.Tensor
			case kind == 1 || w.now == nil:
				n = min(n, int(v.Proto.Experts))
			default:
				s.Placement = randomPlacement(r, v, n)
			}
			target := w.ids(n)
			result, err := w.to(target, s)
			require.NoError(t, err, "world %d, step %d", i, step)
			require.Equal(t, result.Plan.Cost.ExpertBoundBytes, result.Plan.Cost.ExpertBytes, "world %d, step %d", i, step)
			again, err := w.to(target, s)
			require.NoError(t, err)
			require.Empty(t, again.Plan.Flips)
		}
	}
}

// One more replica costs one expert's bytes, from the rank that has it; one fewer costs none.
func TestAddedReplicaMovesOneExpert(t *testing.T) {
	v := view(t, shape(4, 4, 2, 0))
	w := &world{v: v, spare: 1}
	target := w.ids(2)
	even := [][]uint32{{0, 1}, {2, 3}}
	more := [][]uint32{{0, 1, 3}, {2, 3}}
	_, err := w.to(target, layout.Shape{Mode: layout.Expert, Placement: [][][]uint32{even, even}})
	require.NoError(t, err)
	result, err := w.to(target, layout.Shape{Mode: layout.Expert, Placement: [][][]uint32{even, more}})
	require.NoError(t, err)
	require.Len(t, result.Plan.Flips, 1)
	require.EqualValues(t, 4*768, result.Plan.Cost.ExpertBytes)
	require.Zero(t, result.Plan.Cost.CheckpointBytes)
	require.Len(t, result.Plan.Flips[0].Delta.Layers, 1, "the other layer stays")
	result, err = w.to(target, layout.Shape{Mode: layout.Expert, Placement: [][][]uint32{even, even}})
	require.NoError(t, err)
	require.Zero(t, result.Plan.Cost.ExpertBytes)
	result, err = w.to(target, layout.Shape{Mode: layout.Expert, Placement: [][][]uint32{nil, more}})
	require.NoError(t, err)
	require.EqualValues(t, 4*768, result.Plan.Cost.ExpertBytes, "a layer without a placement stays as it is")
}

func TestInvalidPlacementsAreRejected(t *testing.T) {
	v := view(t, shape(4, 4, 2, 0))
	even := [][]uint32{{0, 1}, {2, 3}}
	for text, s := range map[string]layout.Shape{
		"a placement of 1 layers for a model with 2":                    {Mode: layout.Expert, Placement: [][][]uint32{even}},
		"layer 0: a placement of whole experts, and expert groups of 2": {Mode: layout.Tensor, Placement: [][][]uint32{even, even}},
		"layer 1: no rank has expert 3":                                 {Mode: layout.Expert, Placement: [][][]uint32{even, {{0, 1}, {2}}}},
		"layer 1, rank 1: expert 4 of 4: the last one is 3":             {Mode: layout.Expert, Placement: [][][]uint32{even, {{0, 1}, {2, 3, 4}}}},
		"layer 0, rank 0: expert 1 twice":                               {Mode: layout.Expert, Placement: [][][]uint32{{{0, 1, 1}, {2, 3}}, nil}},
		"layer 0, rank 1: expert 2 after 3: experts must ascend":        {Mode: layout.Expert, Placement: [][][]uint32{{{0, 1}, {3, 2}}, nil}},
		"layer 1: rank 1 has no expert":                                 {Mode: layout.Expert, Placement: [][][]uint32{even, {{0, 1, 2, 3}, {}}}},
		"layer 0: a first layout with 5 copies of 4 experts":            {Mode: layout.Expert, Placement: [][][]uint32{{{0, 1, 2}, {2, 3}}, even}},
		"layer 1: a placement on 3 ranks, the world is to have 2":       {Mode: layout.Expert, Placement: [][][]uint32{even, {{0, 1}, {2}, {3}}}},
	} {
		w := &world{v: v, spare: 1}
		_, err := w.to(w.ids(2), s)
		require.ErrorContains(t, err, text)
	}
}
