package layout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// AllRanks is a group of all ranks of the world.
const AllRanks = 0

// ToTheEnd as the last layer of a Range is the last layer of the model.
const ToTheEnd = -1

// Range is a range of layers with one sharding, as users write it.
type Range struct {
	First, Last                 int // model layers; Last may be ToTheEnd
	ExpertGroup, AttentionGroup uint32
}

// Ranges of a world in mode Hybrid; each layer is in at most one. Layers outside all ranges are as in mode Expert.
type Ranges []Range

// end returns the exclusive end of a range in a model with this number of layers.
func (r Range) end(layers int) int {
	if r.Last == ToTheEnd {
		return layers
	}
	return min(r.Last+1, layers)
}

func (r Range) String() string {
	group := func(n uint32) string {
		if n == AllRanks {
			return "all"
		}
		return fmt.Sprint(n)
	}
	where := fmt.Sprint(r.First)
	switch {
	case r.Last == ToTheEnd:
		where += "-"
	case r.Last != r.First:
		where += fmt.Sprint("-", r.Last)
	}
	return fmt.Sprintf("%s=%s/%s", where, group(r.ExpertGroup), group(r.AttentionGroup))
}

// String formats LAYERS=g/t for each range, or the number of ranges if there are many.
func (r Ranges) String() string {
	const most = 4
	if len(r) > most {
		return fmt.Sprintf("%d ranges", len(r))
	}
	var words []string
	for _, x := range r {
		words = append(words, x.String())
	}
	return strings.Join(words, " ")
}

// Shape returns the shape for this number of ranks and layers, valid or not: Shape.Resolve validates it.
func (r Ranges) Shape(layers, ranks int) Shape {
	s := Shape{Mode: Hybrid, Layers: map[uint32]LayerShape{}}
	for l := range layers {
		s.Layers[uint32(l)] = LayerShape{1, 1}
	}
	for _, x := range r {
		for l := x.First; l < x.end(layers); l++ {
			s.Layers[uint32(l)] = LayerShape{cmp.Or(x.ExpertGroup, uint32(ranks)), cmp.Or(x.AttentionGroup, uint32(ranks))}
		}
	}
	return s
}

// Divide rejects groups that do not divide the number of ranks, and suggests sizes that do. It needs no model.
func (r Ranges) Divide(ranks int) error {
	for _, x := range r {
		for _, g := range []struct {
			of   string
			size uint32
		}{{"expert", x.ExpertGroup}, {"attention", x.AttentionGroup}} {
			if g.size != AllRanks && ranks%int(g.size) != 0 {
				return fmt.Errorf("%s: %s groups of %d do not divide %d ranks; groups of %v do, and %s", x.layers(), g.of, g.size, ranks,
					Divisors(uint32(ranks)), multiples(ranks, int(g.size)))
			}
		}
	}
	return nil
}

// layers formats the layers of a range.
func (r Range) layers() string {
	switch r.Last {
	case ToTheEnd:
		return fmt.Sprintf("layers %d to the last", r.First)
	case r.First:
		return fmt.Sprintf("layer %d", r.First)
	}
	return fmt.Sprintf("layers %d to %d", r.First, r.Last)
}

// multiples formats the numbers of ranks around a given one that a group divides.
func multiples(ranks, group int) string {
	above := (ranks/group + 1) * group
	if below := above - group; below > 0 {
		return fmt.Sprintf("%d or %d ranks would", below, above)
	}
	return fmt.Sprintf("%d ranks would", above)
}

// On returns the shape for this number of ranks of a model. The error names the range that does not fit it and sizes
// that do.
func (r Ranges) On(v *geometry.View, ranks int) (Shape, error) {
	layers := int(v.Proto.Layers)
	for _, x := range r {
		if x.First >= layers || x.Last >= layers {
			return Shape{}, fmt.Errorf("%s: the model has %d layers, the last one is %d", x.layers(), layers, layers-1)
		}
	}
	if err := r.Divide(ranks); err != nil {
		return Shape{}, err
	}
	s := r.Shape(layers, ranks)
	_, err := s.Resolve(v, uint32(ranks))
	return s, err
}

// Fitted is On for a number of ranks that the user did not request, as when a pod must leave early: a group that does
// not fit becomes the largest smaller one that does. If not even a group of one fits, it becomes the smallest group
// that does. If none fits, it stays, and the planner rejects it.
func (r Ranges) Fitted(v *geometry.View, ranks int) Shape {
	s := r.Shape(int(v.Proto.Layers), ranks)
	sizes := Divisors(uint32(ranks))
	for l, wanted := range s.Layers {
		fits := func(shape LayerShape) bool {
			if v.Ordinal(l) < 0 {
				shape.ExpertGroup = 0
			}
			return shape.check(v, l, uint32(ranks), false) == nil
		}
		nearest := func(group uint32, with func(uint32) LayerShape) uint32 {
			at, _ := slices.BinarySearch(sizes, group+1) // the sizes before are no larger
			for _, n := range slices.Concat(reversed(sizes[:at]), sizes[at:]) {
				if fits(with(n)) {
					return n
				}
			}
			return group
		}
		now := LayerShape{AttentionGroup: 1}
		now.ExpertGroup = nearest(wanted.ExpertGroup, func(n uint32) LayerShape { return LayerShape{n, 1} })
		now.AttentionGroup = nearest(wanted.AttentionGroup, func(n uint32) LayerShape { return LayerShape{now.ExpertGroup, n} })
		s.Layers[l] = now
	}
	return s
}

func reversed(in []uint32) []uint32 {
	out := slices.Clone(in)
	slices.Reverse(out)
	return out
}

// RangesOf returns the ranges of a layout: adjacent layers of the same sharding are one range. A layer without experts
// joins its neighbor's range.
func RangesOf(l *tangramv1.Layout) Ranges {
	var out Ranges
	open := false // the experts of the last range are not known yet
	for i, layer := range l.GetLayers() {
		bare := len(layer.Experts) == 0
		if n := len(out) - 1; n >= 0 && out[n].AttentionGroup == layer.AttentionGroupSize && (bare || open || out[n].ExpertGroup == layer.ExpertGroupSize) {
			out[n].Last = i
			if !bare {
				out[n].ExpertGroup, open = layer.ExpertGroupSize, false
			}
			continue
		}
		next := Range{First: i, Last: i, ExpertGroup: 1, AttentionGroup: layer.AttentionGroupSize}
		if open = bare; !bare {
			next.ExpertGroup = layer.ExpertGroupSize
		}
		out = append(out, next)
	}
	return out
}
