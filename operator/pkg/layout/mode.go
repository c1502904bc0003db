package layout

import tangramv1 "tangram.dev/proto/tangram/v1"

// Is says whether a layout is wholly in a mode: every layer is shared out as the mode says,
// and over all members. (A world of one rank is in both modes; one in the middle of a chain
// may be in none.)
func Is(l *tangramv1.Layout, m Mode) bool {
	ranks := uint32(len(l.GetMembers()))
	if ranks == 0 {
		return false
	}
	size := uint32(1)
	if m == Tensor {
		size = ranks
	}
	for _, layer := range l.Layers {
		if layer.AttentionGroupSize != size || sum(layer.Attention, (*tangramv1.AttentionGroup).GetRanks) != ranks {
			return false
		}
		if len(layer.Experts) > 0 && (layer.ExpertGroupSize != size || sum(layer.Experts, (*tangramv1.ExpertGroup).GetRanks) != ranks) {
			return false
		}
	}
	return true
}

func sum[G any](groups []G, ranks func(G) []uint32) uint32 {
	var n uint32
	for _, g := range groups {
		n += uint32(len(ranks(g)))
	}
	return n
}
