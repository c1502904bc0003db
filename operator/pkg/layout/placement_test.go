package layout

import (
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestPlacementOf(t *testing.T) {
	require.Empty(t, PlacementOf(nil))
	whole := func(rank uint32, slots ...uint32) *tangramv1.ExpertGroup {
		return &tangramv1.ExpertGroup{Ranks: []uint32{rank}, Slots: slots}
	}
	l := &tangramv1.Layout{Members: make([]*tangramv1.Member, 2), Layers: []*tangramv1.LayerLayout{
		{Layer: 0}, // no experts
		{Layer: 1, ExpertGroupSize: 1, Experts: []*tangramv1.ExpertGroup{whole(1, 3, 0, 1), whole(0, 2, 0, 0, 1)}},
		{Layer: 2, ExpertGroupSize: 2, Experts: []*tangramv1.ExpertGroup{{Ranks: []uint32{0, 1}, Slots: []uint32{1, 2, 3}}}},
	}}
	require.Equal(t, [][][]uint32{{{0, 1}, {0, 2}}, nil}, PlacementOf(l))
}

func TestReplicates(t *testing.T) {
	for _, c := range []struct {
		placement [][][]uint32
		want      bool
	}{
		{nil, false},
		{[][][]uint32{nil, nil}, false},
		{[][][]uint32{{{0, 1}, {2}}, {{2}, {0, 1}}}, false},
		{[][][]uint32{nil, {{0, 1}, {1}}}, true},
	} {
		require.Equal(t, c.want, Shape{Mode: Expert, Placement: c.placement}.Replicates(), "%v", c.placement)
	}
}
