package kernels

import (
	"fmt"
	"math"
	"math/bits"

	"tangram.dev/operator/pkg/geometry"
)

// families of shapes whose groups are one rank or all: the shapes of widths without measurements.
var families = []func(int) Shape{Expert, Tensor, func(p int) Shape { return Shape{p, p, 1} }, func(p int) Shape { return Shape{p, 1, p} }}

// At is NewStep for any width up to MeasuredRanks. Measured widths are powers of two; others are interpolated within
// the same family, linearly in logarithms, because times follow powers of sizes. The error names the kernel that was
// not measured.
func At(t *Table, v *geometry.View, engine, routing string, shape Shape) (*Step, error) {
	if err := shape.Check(); err != nil {
		return nil, err
	}
	below := 1 << (bits.Len(uint(shape.Ranks)) - 1)
	if below == shape.Ranks {
		return NewStep(t, v, engine, routing, shape)
	}
	for _, of := range families {
		if shape != of(shape.Ranks) {
			continue
		}
		a, err := NewStep(t, v, engine, routing, of(below))
		if err != nil {
			return nil, err
		}
		b, err := NewStep(t, v, engine, routing, of(2*below))
		if err != nil {
			return nil, fmt.Errorf("kernels: %v lies beyond what was measured: %w", shape, err)
		}
		return between(a, b, shape), nil
	}
	return nil, fmt.Errorf("kernels: %v was not measured, nor shapes that it lies between", shape)
}

// mostGuessed ranks: three doublings of the measured widths.
const mostGuessed = 8 * MeasuredRanks

// Guess is At, and extrapolates the two widest measured worlds of the same kind to wider ones, linearly in logarithms.
// It is only a starting point until such a world has measured itself. Step.Beyond is the distance: no table has
// collectives that leave a node.
func Guess(t *Table, v *geometry.View, engine, routing string, shape Shape) (*Step, error) {
	if shape.Ranks <= MeasuredRanks {
		return At(t, v, engine, routing, shape)
	}
	if err := shape.Check(); err != nil {
		return nil, err
	}
	if shape.Ranks > mostGuessed {
		return nil, fmt.Errorf("kernels: %v: of more than %d ranks nothing is guessed, %d were measured", shape, mostGuessed, MeasuredRanks)
	}
	kind := shape.Kind()
	a, err := NewStep(t, v, engine, routing, kind.On(MeasuredRanks/2))
	if err != nil {
		return nil, err
	}
	b, err := NewStep(t, v, engine, routing, kind.On(MeasuredRanks))
	if err != nil {
		return nil, err
	}
	out := between(a, b, shape)
	out.beyond = math.Log2(float64(shape.Ranks) / MeasuredRanks)
	return out, nil
}

// between interpolates two widths, or extrapolates beyond the second.
func between(a, b *Step, s Shape) *Step {
	share := math.Log(float64(s.Ranks)/float64(a.shape.Ranks)) / math.Log(float64(b.shape.Ranks)/float64(a.shape.Ranks))
	mix := func(x, y grid) grid {
		out := make(grid, len(x))
		for i := range x {
			if x[i] > 0 && y[i] > 0 {
				out[i] = math.Exp(math.Log(x[i]) + math.Log(y[i]/x[i])*share)
			}
		}
		return out
	}
	out := &Step{shape: s, layers: a.layers, moe: mix(a.moe, b.moe), all: mix(a.all, b.all), dense: mix(a.dense, b.dense), context: mix(a.context, b.context),
		generation: make([]grid, len(a.generation))}
	for i := range a.generation {
		out.generation[i] = mix(a.generation[i], b.generation[i])
	}
	return out
}
