package layout

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// A delta has all differences, and nothing else.
func TestDiffContainsExactlyDifferences(t *testing.T) {
	v := testView(t, 12, 4)
	stages := []*tangramv1.PipelineStage{{}}
	for name, change := range map[string]func(*tangramv1.Layout){
		"nothing": func(*tangramv1.Layout) {},
		"banks":   func(l *tangramv1.Layout) { l.Banks = 7 },
		"dense":   func(l *tangramv1.Layout) { l.Dense = &tangramv1.DenseLayout{Ranks: []uint32{1}} },
		"stages":  func(l *tangramv1.Layout) { l.Stages = stages },
		"members": func(l *tangramv1.Layout) { l.Members = append(l.Members, &tangramv1.Member{Id: "c"}) },
		"a layer": func(l *tangramv1.Layout) { l.Layers[1].BankOffset = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := sound(v), sound(v)
			change(b)
			d, err := Diff(a, b)
			require.NoError(t, err)
			require.Equal(t, name == "banks", d.Banks != 0)
			require.Equal(t, name == "dense", d.Dense != nil)
			require.Equal(t, name == "stages", len(d.Stages) != 0)
			require.Equal(t, name == "members", d.MembersChanged)
			require.Equal(t, name == "a layer", len(d.Layers) != 0)
			got, err := ApplyDelta(a, d, b.Epoch)
			require.NoError(t, err)
			require.True(t, proto.Equal(b, got))
		})
	}
}

// Stages are replaced whole if one of them or their number differs.
func TestDiffReplacesAllStagesTogether(t *testing.T) {
	v := testView(t, 12, 4)
	stages := func(counts ...uint32) (out []*tangramv1.PipelineStage) {
		for _, n := range counts {
			out = append(out, &tangramv1.PipelineStage{LayerCount: n})
		}
		return out
	}
	for _, c := range []struct{ was, is, want []*tangramv1.PipelineStage }{
		{stages(1, 1), stages(1, 1), nil},
		{stages(1, 1), stages(1, 2), stages(1, 2)},
		{stages(2, 1), stages(1, 1), stages(1, 1)},
		{stages(1), stages(1, 1), stages(1, 1)},
		{stages(1, 1), stages(1), stages(1)},
	} {
		a, b := sound(v), sound(v)
		a.Stages, b.Stages = c.was, c.is
		d, err := Diff(a, b)
		require.NoError(t, err)
		require.True(t, proto.Equal(&tangramv1.LayoutDelta{Stages: c.want}, d), "%v to %v: %v", c.was, c.is, d)
	}
}

func TestDiffRejectsInexpressibleChanges(t *testing.T) {
	v := testView(t, 12, 4)
	for says, change := range map[string]func(*tangramv1.Layout){
		"diff of 2 and 1 layers":    func(l *tangramv1.Layout) { l.Layers = l.Layers[:1] },
		"needs a renumbering":       func(l *tangramv1.Layout) { l.Members = l.Members[:1] },
		"rank 1 is b and elsewhere": func(l *tangramv1.Layout) { l.Members[1].Id = "elsewhere" },
	} {
		b := sound(v)
		change(b)
		_, err := Diff(sound(v), b)
		require.ErrorContains(t, err, says)
	}
}

func TestApplyDeltaRejectsMismatchedDelta(t *testing.T) {
	v := testView(t, 12, 4)
	for says, d := range map[string]*tangramv1.LayoutDelta{
		"renumber has 1 entries for 2 members": {Renumber: []uint32{1}},
		"delta names layer 2 of 2":             {Layers: []*tangramv1.LayerLayout{{Layer: 2}}},
		"delta names layer 9 of 2":             {Layers: []*tangramv1.LayerLayout{{Layer: 9}}},
	} {
		_, err := ApplyDelta(sound(v), d, 4)
		require.ErrorContains(t, err, says)
	}
	heads := sound(v)
	heads.Layers[1].Experts = heads.Layers[1].Experts[:1]
	heads.Layers[0].Experts = heads.Layers[0].Experts[:1]
	_, err := ApplyDelta(heads, &tangramv1.LayoutDelta{Renumber: []uint32{1, 0}}, 4)
	require.ErrorContains(t, err, "leaving rank 1 still has heads")
	strange := sound(v) // off the wire
	strange.Layers[0].Experts[0].Ranks[0] = 2
	_, err = ApplyDelta(strange, &tangramv1.LayoutDelta{Renumber: []uint32{1, 2}}, 4)
	require.ErrorContains(t, err, "leaving rank 2 still owns experts")
}

// Ranks in unchanged layers get their new numbers, everywhere; their pieces are the same.
func TestApplyDeltaRenumbersAllRanks(t *testing.T) {
	v := testView(t, 12, 4)
	l := sound(v)
	out, err := ApplyDelta(l, &tangramv1.LayoutDelta{Renumber: []uint32{2, 1}, MembersChanged: true,
		Members: []*tangramv1.Member{l.Members[1], l.Members[0]}}, 4)
	require.NoError(t, err)
	require.NoError(t, Validate(out, v))
	for i, layer := range out.Layers {
		was := l.Layers[i]
		require.Equal(t, []uint32{1}, layer.Experts[0].Ranks)
		require.Equal(t, []uint32{0}, layer.Experts[1].Ranks)
		require.Equal(t, []uint32{1, 0}, layer.Attention[0].Ranks)
		require.Equal(t, was.Experts[0].Slots, layer.Experts[0].Slots)
		require.Equal(t, was.Attention[0].QueryHeadBounds, layer.Attention[0].QueryHeadBounds)
		require.Equal(t, [3]uint32{was.Layer, was.ExpertGroupSize, was.AttentionGroupSize},
			[3]uint32{layer.Layer, layer.ExpertGroupSize, layer.AttentionGroupSize})
	}
	for rank := range uint32(2) {
		require.Equal(t, InventoryOf(l, v, rank).Expert, InventoryOf(out, v, 1-rank).Expert)
	}
	same, err := ApplyDelta(l, &tangramv1.LayoutDelta{Renumber: []uint32{1, 2}}, 4)
	require.NoError(t, err)
	require.Same(t, l.Layers[0], same.Layers[0], "a layer that stays is shared")
}

// A layer is renumbered if any of its ranks is, at any position.
func TestApplyDeltaRenumbers_WhenOneRankChanges(t *testing.T) {
	for _, to := range [][]uint32{{1, 2, 4}, {1, 4, 3}, {4, 2, 3}} { // rank + 1 stays
		l := &tangramv1.Layout{Members: make([]*tangramv1.Member, 3), Layers: []*tangramv1.LayerLayout{
			{Attention: []*tangramv1.AttentionGroup{{Ranks: []uint32{0, 1, 2}}}}}}
		out, err := ApplyDelta(l, &tangramv1.LayoutDelta{Renumber: to}, 4)
		require.NoError(t, err)
		require.Equal(t, []uint32{to[0] - 1, to[1] - 1, to[2] - 1}, out.Layers[0].Attention[0].Ranks)
	}
}
