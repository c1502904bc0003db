package rebalance

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// FromLayout reads a layout in mode Expert as a placement: rank by rank, `slots` slots each, or as many as the fullest
// rank of any layer has, if those are more.
func FromLayout(l *tangramv1.Layout, v *geometry.View, slots int) (*placement.Placement, error) {
	ranks := len(l.GetMembers())
	if ranks == 0 {
		return nil, fmt.Errorf("rebalance: no layout is in force")
	}
	held := make([][][]int32, v.MoELayers()) // [layer][rank] experts
	for o, number := range v.Proto.MoeLayers {
		held[o] = make([][]int32, ranks)
		layer := l.Layers[number]
		if layer.ExpertGroupSize != 1 {
			return nil, fmt.Errorf("rebalance: layer %d: an expert is shared by %d ranks; only whole experts are placed (mode Expert)", number, layer.ExpertGroupSize)
		}
		for _, group := range layer.Experts {
			rank := group.Ranks[0]
			for _, entry := range group.Slots {
				if entry != 0 {
					held[o][rank] = append(held[o][rank], int32(entry-1))
				}
			}
			slots = max(slots, len(held[o][rank]))
		}
	}
	out := &placement.Placement{Experts: int(v.Proto.Experts)}
	for r := range ranks + 1 {
		out.Start = append(out.Start, int32(r*slots))
	}
	for o := range held {
		for _, experts := range held[o] {
			out.Slot = append(out.Slot, experts...)
			for range slots - len(experts) {
				out.Slot = append(out.Slot, placement.Empty)
			}
		}
	}
	return out, nil
}

// AsLoad is the placement as pkg/load judges it.
func AsLoad(p *placement.Placement) load.Placement {
	out := make(load.Placement, p.Layers())
	for l := range out {
		for r := range p.Ranks() {
			out[l] = append(out[l], p.Rank(l, r))
		}
	}
	return out
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
