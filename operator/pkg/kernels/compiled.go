package kernels

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"tangram.dev/operator/pkg/geometry"
)

// compiledFormat is the format of a compiled table. It changes whenever an older reader would misread a file.
const compiledFormat = "tangram-pace-1"

// Compiled is one engine's table for one model and one routing, evaluated on the grid of steps: a file for programs
// without tables (e2e/engine/pace, in C++). Its steps equal those of Step for figures rounded to five digits, the
// precision of the measurements. Microseconds of one layer. A grid is by tokens: point i at 2^(i/8) (1 + (i mod 8)/8),
// linear in between.
type Compiled struct {
	Format    string          `json:"format"`
	Model     string          `json:"model"`
	Engine    string          `json:"engine"`
	Routing   string          `json:"routing"`
	Layers    int             `json:"layers"`
	PerOctave int             `json:"points_per_octave"`
	Attention []CompiledGroup `json:"attention"`
	Shapes    []CompiledShape `json:"shapes"`
}

// CompiledGroup is the work of ranks that share heads: by tokens of the group, except Context: of one prompt.
type CompiledGroup struct {
	Ranks   int     `json:"ranks"`
	Dense   figures `json:"dense"`
	Context figures `json:"context"`
	// Generation of one token for each request, over their mean context; one grid per point of the grid of requests.
	// Beyond the last point of either, times are proportional.
	Generation []figures `json:"generation"`
}

// CompiledShape is the work of all ranks together, by tokens of all.
type CompiledShape struct {
	Ranks          int     `json:"ranks"`
	ExpertGroup    int     `json:"expert_group"`
	AttentionGroup int     `json:"attention_group"`
	MoE            figures `json:"moe"`
	Around         figures `json:"around"`
}

// Shape returns its shape.
func (c *CompiledShape) Shape() Shape { return Shape{c.Ranks, c.ExpertGroup, c.AttentionGroup} }

// figures are written with five digits.
type figures []float64

// MarshalJSON writes the shortest form.
func (f figures) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, v := range f {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendFloat(out, v, 'g', 5, 64)
	}
	return append(out, ']'), nil
}

// The written part of the generation grid: the measured range only.
const (
	mostContext     = 1 << 17
	requestPoints   = 9*perOctave + 1  // to mostRequests
	contextPoints   = 17*perOctave + 1 // to mostContext
	mostCompileable = 256
)

// Compile compiles all measured shapes of up to `ranks` ranks. For widths in between it adds the four shapes whose
// groups are one rank or all, interpolated linearly in logarithms, because times follow powers of sizes. The error
// names missing data.
func Compile(t *Table, v *geometry.View, engine, routing string, ranks int) (*Compiled, error) {
	if ranks < 1 || ranks > mostCompileable {
		return nil, fmt.Errorf("kernels: %d ranks: 1 to %d", ranks, mostCompileable)
	}
	out := &Compiled{Format: compiledFormat, Model: v.Proto.Model, Engine: engine, Routing: routing, Layers: int(v.Proto.Layers), PerOctave: perOctave}
	for p := 1; p <= ranks; p++ {
		if p&(p-1) != 0 {
			for _, of := range families {
				s, err := At(t, v, engine, routing, of(p))
				if err != nil {
					return nil, err
				}
				out.add(s)
			}
			continue
		}
		for g := 1; g <= p; g *= 2 {
			for a := 1; a <= p; a *= 2 {
				if s, err := NewStep(t, v, engine, routing, Shape{p, g, a}); err == nil {
					out.add(s)
				} else if p == 1 {
					return nil, err
				}
			}
		}
	}
	return out, nil
}

func (c *Compiled) add(s *Step) {
	if !slices.ContainsFunc(c.Attention, func(g CompiledGroup) bool { return g.Ranks == s.shape.AttentionGroup }) {
		g := CompiledGroup{Ranks: s.shape.AttentionGroup, Dense: rounded(s.dense), Context: rounded(s.context)}
		for _, row := range s.generation[:requestPoints] {
			g.Generation = append(g.Generation, rounded(row[:contextPoints]))
		}
		c.Attention = append(c.Attention, g)
	}
	c.Shapes = append(c.Shapes, CompiledShape{Ranks: s.shape.Ranks, ExpertGroup: s.shape.ExpertGroup, AttentionGroup: s.shape.AttentionGroup,
		MoE: rounded(s.moe), Around: rounded(s.all)})
}

// rounded converts to microseconds with the written precision.
func rounded(g grid) figures {
	out := make(figures, len(g))
	for i, v := range g {
		out[i], _ = strconv.ParseFloat(strconv.FormatFloat(v*1e6, 'g', 5, 64), 64)
	}
	return out
}

// WriteJSON writes the file.
func (c *Compiled) WriteJSON(w io.Writer) error {
	return json.NewEncoder(w).Encode(c)
}

// ReadCompiled reads a compiled table. The error names the fault and its place.
func ReadCompiled(r io.Reader) (*Compiled, error) {
	c := &Compiled{}
	in := json.NewDecoder(r)
	in.DisallowUnknownFields()
	if err := in.Decode(c); err != nil {
		return nil, fmt.Errorf("kernels: a compiled table: %w", err)
	}
	if c.Format != compiledFormat || c.PerOctave != perOctave {
		return nil, fmt.Errorf("kernels: a compiled table of format %q with %d points in an octave; this program reads %q with %d", c.Format, c.PerOctave, compiledFormat, perOctave)
	}
	if c.Layers < 1 || len(c.Shapes) == 0 {
		return nil, fmt.Errorf("kernels: a compiled table of %d layers and %d shapes", c.Layers, len(c.Shapes))
	}
	for _, g := range c.Attention {
		where := fmt.Sprintf("attention of %d ranks", g.Ranks)
		if err := firstOf(g.Dense.check(where+": dense", gridSize, 0), g.Context.check(where+": context", gridSize, 0)); err != nil {
			return nil, err
		}
		if len(g.Generation) < 2 || len(g.Generation) > gridSize {
			return nil, fmt.Errorf("kernels: %s: generation has %d grids, of 2 to %d", where, len(g.Generation), gridSize)
		}
		for i, row := range g.Generation {
			if err := row.check(fmt.Sprintf("%s: generation %d", where, i), len(g.Generation[0]), math.SmallestNonzeroFloat64); err != nil {
				return nil, err
			}
		}
	}
	for i := range c.Shapes {
		s := &c.Shapes[i]
		where := s.Shape().String()
		if err := firstOf(s.Shape().Check(), s.MoE.check(where+": moe", gridSize, 0), s.Around.check(where+": around", gridSize, 0)); err != nil {
			return nil, err
		}
		if c.group(s.AttentionGroup) == nil {
			return nil, fmt.Errorf("kernels: %s: there is no attention of %d ranks", where, s.AttentionGroup)
		}
		if slices.ContainsFunc(c.Shapes[:i], func(o CompiledShape) bool { return o.Shape() == s.Shape() }) {
			return nil, fmt.Errorf("kernels: %s is there twice", where)
		}
	}
	return c, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (f figures) check(where string, points int, least float64) error {
	if len(f) != points || points < 2 || points > gridSize {
		return fmt.Errorf("kernels: %s has %d points, want %d", where, len(f), points)
	}
	for i, v := range f {
		if !(v >= least) || math.IsInf(v, 0) {
			return fmt.Errorf("kernels: %s: %v at point %d is no time", where, v, i)
		}
	}
	return nil
}

func (c *Compiled) group(ranks int) *CompiledGroup {
	for i := range c.Attention {
		if c.Attention[i].Ranks == ranks {
			return &c.Attention[i]
		}
	}
	return nil
}

// Step returns the step of a shape in the table.
func (c *Compiled) Step(shape Shape) (*Step, error) {
	for i := range c.Shapes {
		s := &c.Shapes[i]
		if s.Shape() != shape {
			continue
		}
		g := c.group(shape.AttentionGroup)
		out := &Step{shape: shape, layers: float64(c.Layers), moe: s.MoE.seconds(), all: s.Around.seconds(), dense: g.Dense.seconds(), context: g.Context.seconds()}
		for i := range gridSize {
			row := g.Generation[min(i, len(g.Generation)-1)].seconds()
			if last := len(g.Generation) - 1; i > last {
				for j := range row {
					row[j] *= sizeAt(i) / sizeAt(last)
				}
			}
			out.generation = append(out.generation, row)
		}
		return out, nil
	}
	return nil, fmt.Errorf("kernels: %v is not in the compiled table of %s", shape, c.Model)
}

// seconds expands to the whole grid: proportional beyond the last point.
func (f figures) seconds() grid {
	out := make(grid, gridSize)
	for i := range out {
		last := len(f) - 1
		if i <= last {
			out[i] = f[i] * 1e-6
		} else {
			out[i] = f[last] * 1e-6 * (sizeAt(i) / sizeAt(last))
		}
	}
	return out
}
