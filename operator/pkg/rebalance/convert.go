package rebalance

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/placement"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// FromLayout reads a layout in mode Expert as a placement: each rank has `slots` slots, or as many as its fullest layer
// has, if those are more.
func FromLayout(l *tangramv1.Layout, v *geometry.View, slots int) (*placement.Placement, error) {
	if len(l.GetMembers()) == 0 {
		return nil, fmt.Errorf("rebalance: no layout is in force")
	}
	held := layout.PlacementOf(l)
	lists := make([][][]int32, len(held))
	for o, ranks := range held {
		if ranks == nil {
			number := v.Proto.MoeLayers[o]
			return nil, fmt.Errorf("rebalance: layer %d: an expert is shared by %d ranks; only whole experts are placed (mode Expert)", number, l.Layers[number].ExpertGroupSize)
		}
		for _, experts := range ranks {
			var list []int32
			for _, e := range experts {
				list = append(list, int32(e))
			}
			lists[o] = append(lists[o], list)
		}
	}
	return placement.FromLists(lists, int(v.Proto.Experts), slots)
}

// ForShape is the placement as layout.Shape wants it: [layer][rank] experts, ascending.
func ForShape(p *placement.Placement) [][][]uint32 {
	out := make([][][]uint32, p.Layers())
	for l := range out {
		out[l] = make([][]uint32, p.Ranks())
		for r := range out[l] {
			for _, e := range p.Rank(l, r) {
				if e != placement.Empty {
					out[l][r] = append(out[l][r], uint32(e))
				}
			}
			slices.Sort(out[l][r])
		}
	}
	return out
}
