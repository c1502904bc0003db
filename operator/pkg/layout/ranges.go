package layout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// AllRanks is a group of as many ranks as the world has.
const AllRanks = 0

// ToTheEnd is the last layer of a Range that goes on to the last one of the model.
const ToTheEnd = -1

// Range of layers of one sharding, as people write it.
type Range struct {
	First, Last                 int // model layers; Last may be ToTheEnd
	ExpertGroup, AttentionGroup uint32
}

// Ranges of a world in mode Hybrid, each layer in one at most. Layers of no range are as in mode Expert.
type Ranges []Range

// end of a range, exclusive, in a model of so many layers.
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

// String in few words: LAYERS=g/t for each range, or how many there are.
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

// Shape on so many ranks of a model of so many layers, valid or not: Shape.Resolve judges it.
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

// Divide says which groups do not divide so many ranks, and which sizes would. It needs no model.
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

// layers of a range in words.
func (r Range) layers() string {
	switch r.Last {
	case ToTheEnd:
		return fmt.Sprintf("layers %d to the last", r.First)
	case r.First:
		return fmt.Sprintf("layer %d", r.First)
	}
	return fmt.Sprintf("layers %d to %d", r.First, r.Last)
}

// multiples of a group next to a width that it does not divide, in words.
func multiples(ranks, group int) string {
	above := (ranks/group + 1) * group
	if below := above - group; below > 0 {
		return fmt.Sprintf("%d or %d ranks would", below, above)
	}
	return fmt.Sprintf("%d ranks would", above)
}

// On gives the shape on so many ranks of a model, or says which range does not fit it and what would.
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

// Fitted is On for a width that nobody asked for, as when a pod leaves in a hurry: a group that does not fit becomes the largest smaller
// one that does. Where not even groups of one do, the layer takes the smallest groups that fit; if none do, they stay as they are, for the planner to refuse.
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
			at, _ := slices.BinarySearch(sizes, group+1) // those before are no larger
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

// RangesOf a layout: neighbours of the same sharding are one range. A layer without experts goes with whatever is beside it.
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
