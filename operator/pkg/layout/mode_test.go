package layout

import (
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestModes(t *testing.T) {
	layers := func(size uint32, groups ...[]uint32) *tangramv1.LayerLayout {
		l := &tangramv1.LayerLayout{ExpertGroupSize: size, AttentionGroupSize: size}
		for _, g := range groups {
			l.Experts = append(l.Experts, &tangramv1.ExpertGroup{Ranks: g})
			l.Attention = append(l.Attention, &tangramv1.AttentionGroup{Ranks: g})
		}
		return l
	}
	world := func(ranks int, layers ...*tangramv1.LayerLayout) *tangramv1.Layout {
		return &tangramv1.Layout{Members: make([]*tangramv1.Member, ranks), Layers: layers}
	}
	expert, tensor := layers(1, []uint32{0}, []uint32{1}), layers(2, []uint32{0, 1})
	doubled, alone := layers(2, []uint32{0, 1}), layers(1, []uint32{0})
	doubled.ExpertGroupSize, doubled.Experts[0].Ranks = 3, []uint32{0, 1, 0}
	alone.ExpertGroupSize, alone.Experts[0].Ranks = 2, []uint32{0, 0}
	byData := layers(1, []uint32{0}, []uint32{1})
	byData.ExpertGroupSize, byData.Experts = 2, tensor.Experts
	bare := &tangramv1.LayerLayout{AttentionGroupSize: 1, Attention: expert.Attention}
	for name, c := range map[string]struct {
		l            *tangramv1.Layout
		expert, tens bool
		mode         string
	}{
		"no layout":                  {nil, false, false, ""},
		"expert":                     {world(2, expert, expert), true, false, "ExpertParallel"},
		"tensor":                     {world(2, tensor, tensor), false, true, "TensorParallel"},
		"in the middle of a switch":  {world(2, expert, tensor), false, false, "Mixed"},
		"a joiner that owns nothing": {world(3, expert, expert), false, false, "Mixed"},
		"the same in tensor":         {world(3, tensor, tensor), false, false, "Mixed"},
		"one rank is both":           {world(1, layers(1, []uint32{0})), true, true, "ExpertParallel"},
		"a layer without experts":    {world(2, &tangramv1.LayerLayout{AttentionGroupSize: 1, Attention: expert.Attention}), true, false, "ExpertParallel"},
		"a doubled position":         {world(2, doubled, tensor), false, false, "TensorParallel"},
		"one rank with all shards":   {world(1, alone), false, false, "TensorParallel"},
		"doubled, and a joiner":      {world(3, doubled, doubled), false, false, "Mixed"},
		"tensor, attention by data":  {world(2, bare, byData), false, true, "TensorParallel"},
		"... in one layer alone":     {world(2, tensor, byData), false, false, "Mixed"},
		"... on its way":             {world(2, expert, byData), false, false, "Mixed"},
	} {
		require.Equal(t, c.expert, Is(c.l, Expert), name)
		require.Equal(t, c.tens, Is(c.l, Tensor), name)
		require.Equal(t, c.mode, ModeOf(c.l), name)
	}
}

func TestHas(t *testing.T) {
	whole := func(rank uint32, slots ...uint32) *tangramv1.ExpertGroup {
		return &tangramv1.ExpertGroup{Ranks: []uint32{rank}, Slots: slots}
	}
	each, all := []*tangramv1.AttentionGroup{{Ranks: []uint32{0}}, {Ranks: []uint32{1}}}, []*tangramv1.AttentionGroup{{Ranks: []uint32{0, 1}}}
	l := &tangramv1.Layout{Members: make([]*tangramv1.Member, 2), Layers: []*tangramv1.LayerLayout{
		{Layer: 0, AttentionGroupSize: 1, Attention: each},
		{Layer: 1, AttentionGroupSize: 2, Attention: all, ExpertGroupSize: 1, Experts: []*tangramv1.ExpertGroup{whole(0, 2, 1), whole(1, 3)}},
		{Layer: 2, AttentionGroupSize: 1, Attention: each, ExpertGroupSize: 2,
			Experts: []*tangramv1.ExpertGroup{{Ranks: []uint32{0, 1}, Slots: []uint32{1, 2, 3}}}},
	}}
	own := map[uint32]LayerShape{1: {AttentionGroup: 2}, 2: {ExpertGroup: 2}}
	placed := [][][]uint32{{{0, 1}, {2}}, nil}
	require.False(t, Has(nil, Shape{Mode: Expert}))
	require.False(t, Has(l, Shape{Mode: Expert}))
	require.True(t, Has(l, Shape{Mode: Expert, Layers: own}))
	require.True(t, Has(l, Shape{Mode: Expert, Layers: own, Placement: placed}))
	require.False(t, Has(l, Shape{Mode: Tensor, Layers: own}))
	byData := &tangramv1.Layout{Members: l.Members, Layers: l.Layers[2:]}
	require.True(t, Has(byData, Shape{Mode: Tensor, AttentionByData: true}))
	require.False(t, Has(byData, Shape{Mode: Tensor}))
	copied := &tangramv1.Layout{Members: l.Members, Layers: []*tangramv1.LayerLayout{
		{AttentionGroupSize: 1, Attention: each, ExpertGroupSize: 1, Experts: []*tangramv1.ExpertGroup{whole(0, 2, 1), whole(1, 3, 1)}}}}
	require.True(t, Is(copied, Expert))
	require.False(t, Has(copied, Shape{Mode: Expert}), "a copy that nobody asked for")
	require.True(t, Has(copied, Shape{Mode: Expert, Placement: [][][]uint32{{{0, 1}, {0, 2}}}}))
	require.False(t, Has(l, Shape{Mode: Expert, Layers: map[uint32]LayerShape{1: {AttentionGroup: 2}}}))
	require.False(t, Has(l, Shape{Mode: Expert, Layers: own, Placement: [][][]uint32{{{0}, {1, 2}}, nil}}), "other places")
	require.False(t, Has(l, Shape{Mode: Expert, Layers: own, Placement: [][][]uint32{{{0, 1}, {2}}, {{0}, {1, 2}}}}), "experts that are shared have none")
}

// Each property of a layout of a shape, removed in turn.
func TestHasChecksEveryLayer(t *testing.T) {
	fresh := func() *tangramv1.Layout {
		l := &tangramv1.Layout{Members: make([]*tangramv1.Member, 2)}
		for i := range uint32(2) {
			l.Layers = append(l.Layers, &tangramv1.LayerLayout{Layer: i, ExpertGroupSize: 1, AttentionGroupSize: 1,
				Experts:   []*tangramv1.ExpertGroup{{Ranks: []uint32{0}, Slots: []uint32{1, 3}}, {Ranks: []uint32{1}, Slots: []uint32{2}}},
				Attention: []*tangramv1.AttentionGroup{{Ranks: []uint32{0}}, {Ranks: []uint32{1}}}})
		}
		return l
	}
	anywhere, there := Shape{Mode: Expert}, Shape{Mode: Expert, Placement: [][][]uint32{nil, {{0, 2}, {1}}}}
	require.True(t, Has(fresh(), anywhere))
	require.True(t, Has(fresh(), there))
	for name, c := range map[string]struct {
		change          func(last *tangramv1.LayerLayout)
		anywhere, there bool
	}{
		"heads shared by two":       {func(l *tangramv1.LayerLayout) { l.AttentionGroupSize = 2 }, false, false},
		"no heads on a rank":        {func(l *tangramv1.LayerLayout) { l.Attention = l.Attention[:1] }, false, false},
		"experts shared by two":     {func(l *tangramv1.LayerLayout) { l.ExpertGroupSize = 2 }, false, false},
		"no experts on a rank":      {func(l *tangramv1.LayerLayout) { l.Experts = l.Experts[:1] }, false, false},
		"an expert in other places": {func(l *tangramv1.LayerLayout) { l.Experts[0].Slots[0], l.Experts[1].Slots[0] = 2, 1 }, true, false},
		"a copy":                    {func(l *tangramv1.LayerLayout) { l.Experts[1].Slots = []uint32{2, 3} }, false, false},
	} {
		l := fresh()
		c.change(l.Layers[1])
		require.Equal(t, c.anywhere, Has(l, anywhere), name)
		require.Equal(t, c.there, Has(l, there), name)
	}
	l := fresh()
	l.Layers[0].Experts[1].Slots = []uint32{2, 3}
	require.False(t, Has(l, there), "a copy where no places are named")
}

// The users' Tensor: all ranks share every layer. Otherwise a layout in no mode is Mixed.
func TestModeOf_WhenAllRanksShareEveryLayer(t *testing.T) {
	all := []uint32{0, 1, 0} // a rank at two positions: not Is(Tensor)
	fresh := func() *tangramv1.Layout {
		return &tangramv1.Layout{Members: make([]*tangramv1.Member, 2), Layers: []*tangramv1.LayerLayout{
			{AttentionGroupSize: 2, Attention: []*tangramv1.AttentionGroup{{Ranks: all[:2]}}},
			{AttentionGroupSize: 2, Attention: []*tangramv1.AttentionGroup{{Ranks: all[:2]}}, ExpertGroupSize: 3, Experts: []*tangramv1.ExpertGroup{{Ranks: all}}},
		}}
	}
	require.False(t, Is(fresh(), Tensor))
	require.Equal(t, "TensorParallel", ModeOf(fresh()))
	for name, change := range map[string]func(l *tangramv1.LayerLayout){
		"heads of two groups":   func(l *tangramv1.LayerLayout) { l.Attention = append(l.Attention, l.Attention[0]) },
		"heads on one rank":     func(l *tangramv1.LayerLayout) { l.Attention[0].Ranks = all[:1] },
		"experts of two groups": func(l *tangramv1.LayerLayout) { l.Experts = append(l.Experts, l.Experts[0]) },
		"experts on one rank":   func(l *tangramv1.LayerLayout) { l.Experts[0].Ranks = all[:1] },
	} {
		l := fresh()
		change(l.Layers[1])
		require.Equal(t, Mixed, ModeOf(l), name)
	}
}
