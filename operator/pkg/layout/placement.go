package layout

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// PlacementOf returns the placement of a layout as in Shape.Placement; nil for a layer whose experts are shared by
// ranks.
func PlacementOf(l *tangramv1.Layout) [][][]uint32 {
	var out [][][]uint32
	for _, layer := range l.GetLayers() {
		if len(layer.Experts) == 0 {
			continue
		}
		var byRank [][]uint32
		if layer.ExpertGroupSize == 1 {
			byRank = make([][]uint32, len(l.Members))
			for _, group := range layer.Experts {
				rank := group.Ranks[0]
				for _, entry := range group.Slots {
					if entry != 0 {
						byRank[rank] = append(byRank[rank], entry-1)
					}
				}
				slices.Sort(byRank[rank])
			}
		}
		out = append(out, byRank)
	}
	return out
}

// PlacementOf returns the experts of a MoE layer by [rank], for the layer's ordinal; nil: no placement is set.
func (s Shape) PlacementOf(ordinal int) [][]uint32 {
	if ordinal < 0 || s.Placement == nil {
		return nil
	}
	return s.Placement[ordinal]
}

// Replicates reports whether the placement gives an expert to several ranks.
func (s Shape) Replicates() bool {
	return slices.ContainsFunc(s.Placement, func(ranks [][]uint32) bool {
		seen := map[uint32]bool{}
		for _, e := range slices.Concat(ranks...) {
			if seen[e] {
				return true
			}
			seen[e] = true
		}
		return false
	})
}

// BadPlacement is an error of Shape.Placement.
type BadPlacement struct{ Why string }

func (e *BadPlacement) Error() string { return "shape: " + e.Why }

func (s LayerShape) checkPlacement(v *geometry.View, layer, ranks uint32, placed [][]uint32) error {
	if placed == nil {
		return nil
	}
	where := fmt.Sprintf("layer %d", layer)
	if at := v.Ordinal(layer); at != int(layer) { // layers without experts come before it
		where += fmt.Sprintf(" (entry %d of the placement)", at)
	}
	bad := func(what string, args ...any) error {
		return &BadPlacement{where + fmt.Sprintf(what, args...)}
	}
	if s.ExpertGroup != 1 {
		return bad(": a placement of whole experts, and expert groups of %d", s.ExpertGroup)
	}
	if len(placed) != int(ranks) {
		return bad(": a placement on %d ranks, the world is to have %d", len(placed), ranks)
	}
	homes := make([]int, v.Proto.Experts)
	for r, experts := range placed {
		if len(experts) == 0 {
			return bad(": rank %d has no expert", r)
		}
		for i, e := range experts {
			switch {
			case e >= v.Proto.Experts:
				return bad(", rank %d: expert %d of %d: the last one is %d", r, e, v.Proto.Experts, v.Proto.Experts-1)
			case i > 0 && e == experts[i-1]:
				return bad(", rank %d: expert %d twice", r, e)
			case i > 0 && e < experts[i-1]:
				return bad(", rank %d: expert %d after %d: experts must ascend", r, e, experts[i-1])
			}
			homes[e]++
		}
	}
	for e, n := range homes {
		if n == 0 {
			return bad(": no rank has expert %d", e)
		}
	}
	return nil
}
