package layout

import (
	"cmp"
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Mixed is ModeOf's result for a layout that is in no mode: in the middle of a chain, or with different layers.
const Mixed = "Mixed"

// Is reports whether a layout is wholly in a mode: every layer is sharded as the mode says, over all members. In
// TensorParallel, attention may be by data if it is so in all layers. A world of one rank is in both modes. A layout in
// the middle of a chain may be in none, and so is one after a repair in TensorParallel, in which one rank has two
// positions. Places and replicas of experts do not matter.
func Is(l *tangramv1.Layout, m Mode) bool {
	experts := func(layer *tangramv1.LayerLayout) bool { return len(layer.Experts) > 0 }
	return has(l, Shape{Mode: m}, true) ||
		m == Tensor && slices.ContainsFunc(l.GetLayers(), experts) && has(l, Shape{Mode: m, AttentionByData: true}, true)
}

// Has reports whether a layout has a shape, on all of its ranks; nil has none. Without a placement in the shape, each
// expert has one copy, anywhere.
func Has(l *tangramv1.Layout, s Shape) bool { return has(l, s, false) }

// Follows reports whether a layout has a shape, except for places and replicas of whole experts: the part that a
// rebalance leaves unchanged.
func Follows(l *tangramv1.Layout, s Shape) bool {
	if len(s.Layers) == 0 {
		return Is(l, s.Mode)
	}
	s.Placement = nil
	return has(l, s, true)
}

func has(l *tangramv1.Layout, s Shape, copies bool) bool {
	ranks := uint32(len(l.GetMembers()))
	if ranks == 0 {
		return false
	}
	experts, attention := uint32(1), uint32(1)
	if s.Mode == Tensor {
		experts = ranks
		if !s.AttentionByData {
			attention = ranks
		}
	}
	placed, ordinal := PlacementOf(l), 0
	for _, layer := range l.Layers {
		want := s.Layers[layer.Layer]
		if layer.AttentionGroupSize != cmp.Or(want.AttentionGroup, attention) || distinct(layer.Attention) != ranks {
			return false
		}
		if len(layer.Experts) == 0 {
			continue
		}
		if layer.ExpertGroupSize != cmp.Or(want.ExpertGroup, experts) || distinct(layer.Experts) != ranks {
			return false
		}
		switch {
		case ordinal < len(s.Placement) && s.Placement[ordinal] != nil:
			if !slices.EqualFunc(s.Placement[ordinal], placed[ordinal], slices.Equal) {
				return false
			}
		case !copies && Shape{Placement: placed[ordinal : ordinal+1]}.Replicates():
			return false
		}
		ordinal++
	}
	return true
}

// ModeOf names the mode that users see: "ExpertParallel", "TensorParallel", or Mixed. A Tensor layout in which ranks
// have several positions is Tensor too. A world of one rank is Expert, unless its experts are still in shards. Empty:
// no layout.
func ModeOf(l *tangramv1.Layout) string {
	switch {
	case len(l.GetMembers()) == 0:
		return ""
	case Is(l, Expert):
		return Expert.String()
	case shared(l):
		return Tensor.String()
	}
	return Mixed
}

// shared reports whether every layer has one expert group over all members, and one attention group; or every layer has
// each request's heads on one of them.
func shared(l *tangramv1.Layout) bool {
	ranks, whole := uint32(len(l.Members)), 0
	for _, layer := range l.Layers {
		if layer.AttentionGroupSize == 1 {
			whole++
		} else if len(layer.Attention) != 1 {
			return false
		}
		if distinct(layer.Attention) != ranks || len(layer.Experts) > 1 || (len(layer.Experts) == 1 && distinct(layer.Experts) != ranks) {
			return false
		}
	}
	return whole == 0 || whole == len(l.Layers)
}

// distinct returns the number of different ranks in the groups.
func distinct[G interface{ GetRanks() []uint32 }](groups []G) uint32 {
	seen := map[uint32]bool{}
	for _, g := range groups {
		for _, rank := range g.GetRanks() {
			seen[rank] = true
		}
	}
	return uint32(len(seen))
}
