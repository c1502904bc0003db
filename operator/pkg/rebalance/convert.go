package rebalance

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/placement"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Whole returns the layers, by MoE ordinal, whose experts are whole and spread over all ranks: only these are placed.
// In mode ExpertParallel these are all layers.
func Whole(l *tangramv1.Layout) []int {
	var out []int
	for o, ranks := range layout.PlacementOf(l) {
		spread := ranks != nil
		for _, held := range ranks {
			spread = spread && len(held) > 0
		}
		if spread {
			out = append(out, o)
		}
	}
	return out
}

// Of selects the elements with these ordinals, in their order.
func Of[T any](all []T, ordinals []int) []T {
	out := make([]T, 0, len(ordinals))
	for _, o := range ordinals {
		out = append(out, all[o])
	}
	return out
}

// FromLayers is FromLayout for some layers, by MoE ordinal: layer i of the placement is ordinals[i].
func FromLayers(l *tangramv1.Layout, v *geometry.View, ordinals []int, slots int) (*placement.Placement, error) {
	lists := make([][][]int32, len(ordinals))
	for i, ranks := range Of(layout.PlacementOf(l), ordinals) {
		for _, experts := range ranks {
			var list []int32
			for _, e := range experts {
				list = append(list, int32(e))
			}
			lists[i] = append(lists[i], list)
		}
	}
	return placement.FromLists(lists, int(v.Proto.Experts), slots)
}

// FromLayout reads a layout in mode ExpertParallel as a placement. Each rank has `slots` slots, or as many as its
// fullest layer has if those are more.
func FromLayout(l *tangramv1.Layout, v *geometry.View, slots int) (*placement.Placement, error) {
	if len(l.GetMembers()) == 0 {
		return nil, fmt.Errorf("rebalance: no layout is active")
	}
	all := make([]int, v.MoELayers())
	for o := range all {
		all[o] = o
		if number := v.Proto.MoeLayers[o]; l.Layers[number].ExpertGroupSize > 1 {
			return nil, fmt.Errorf("rebalance: layer %d: %d ranks share an expert; only whole experts are placed (mode ExpertParallel)", number, l.Layers[number].ExpertGroupSize)
		}
	}
	return FromLayers(l, v, all, slots)
}

// ForShape returns the placement in the format of layout.Shape: [layer][rank] experts, ascending.
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
