package layout

import (
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestIs(t *testing.T) {
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
	for name, c := range map[string]struct {
		l            *tangramv1.Layout
		expert, tens bool
	}{
		"no layout":                  {nil, false, false},
		"expert":                     {world(2, expert, expert), true, false},
		"tensor":                     {world(2, tensor, tensor), false, true},
		"in the middle of a switch":  {world(2, expert, tensor), false, false},
		"a joiner that owns nothing": {world(3, expert, expert), false, false},
		"the same in tensor":         {world(3, tensor, tensor), false, false},
		"one rank is both":           {world(1, layers(1, []uint32{0})), true, true},
		"a layer without experts":    {world(2, &tangramv1.LayerLayout{AttentionGroupSize: 1, Attention: expert.Attention}), true, false},
	} {
		require.Equal(t, c.expert, Is(c.l, Expert), name)
		require.Equal(t, c.tens, Is(c.l, Tensor), name)
	}
}
