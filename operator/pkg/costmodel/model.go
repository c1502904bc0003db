// Package costmodel estimates the cost of a step, a transition and a token's KV: seconds of a step from a prior that
// measurements correct, seconds of a transition from planned bytes, KV tokens from an itemized budget. Pure: no I/O, no
// clock, no globals.
package costmodel

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"tangram.dev/operator/pkg/kernels"
)

// Work of one step, of all ranks together, assumed to be spread evenly.
type Work struct {
	Decode  int // requests that get one token
	Context int // mean tokens of context of a decoding request
	Prefill int // prompt tokens
	Before  int // mean number of cached tokens before the prompts' chunks
}

// Estimate of seconds. Deviation is one standard deviation.
type Estimate struct{ Seconds, Deviation float64 }

// Options of a model; zero fields take the defaults.
type Options struct {
	PriorDeviation float64 // of the prior's relative error; default 0.4: the difference between engines (kernels/data)
	Memory         float64 // observations after which the weight of a measured factor is 1/e; default 2000
	BeyondTables   float64 // relative deviation added per doubling beyond the measured ranks; default 0.35
	KnownBelow     float64 // above this relative deviation a step is "not known yet"; default 0.25
	Noise          float64 // initial relative deviation of one measured step; default 0.1
	Scale          float64 // of all priors: this machine's seconds over theirs; default 1
}

func (o Options) filled() Options {
	fill := func(v *float64, by float64) {
		if *v == 0 {
			*v = by
		}
	}
	fill(&o.PriorDeviation, .4)
	fill(&o.Memory, 2000)
	fill(&o.BeyondTables, .35)
	fill(&o.KnownBelow, .25)
	fill(&o.Noise, .1)
	fill(&o.Scale, 1)
	return o
}

// Model of steps of a world in several shapes. Not for concurrent use.
type Model struct {
	options Options
	shapes  map[kernels.Shape]*known
}

// known is the knowledge of one shape.
type known struct {
	shape   kernels.Shape
	prior   *kernels.Step
	decode  *factors // of steps that only decode; other steps run other kernels
	prefill *factors // of steps with prompt tokens
	near    []*known // the other widths of the same mode, the nearest first
}

func (k *known) factors(w Work) *factors {
	if w.Prefill > 0 {
		return k.prefill
	}
	return k.decode
}

// New returns a model of the shapes of the priors.
func New(o Options, priors ...*kernels.Step) *Model {
	m := &Model{options: o.filled(), shapes: map[kernels.Shape]*known{}}
	m.Add(priors...)
	return m
}

// Add adds shapes. Measurements of a known shape stay.
func (m *Model) Add(priors ...*kernels.Step) {
	for _, p := range priors {
		if m.shapes[p.Shape()] == nil {
			o := m.options
			o.PriorDeviation = math.Hypot(o.PriorDeviation, o.BeyondTables*p.Beyond())
			m.shapes[p.Shape()] = &known{shape: p.Shape(), prior: p, decode: newFactors(o), prefill: newFactors(o)}
		}
	}
	for _, k := range m.shapes {
		k.near = nil
		for _, other := range m.shapes {
			if other != k && other.shape.Kind() == k.shape.Kind() {
				k.near = append(k.near, other)
			}
		}
		// Nearest by ratio; of equals, the wider.
		apart := func(o *known) float64 {
			return math.Abs(math.Log(float64(o.shape.Ranks)/float64(k.shape.Ranks))) - 1e-6*float64(o.shape.Ranks)
		}
		slices.SortFunc(k.near, func(a, b *known) int { return cmp.Compare(apart(a), apart(b)) })
	}
}

// Prior returns the seconds of a step in this shape, scaled and uncorrected.
func (m *Model) Prior(s kernels.Shape, w Work) (float64, error) {
	k := m.shapes[s]
	if k == nil {
		return 0, fmt.Errorf("costmodel: no prior for shape %v", s)
	}
	return m.priorOf(k, w)
}

func (m *Model) priorOf(k *known, w Work) (float64, error) {
	s, p := k.shape, k.prior
	if w.Decode < 0 || w.Context < 0 || w.Prefill < 0 || w.Before < 0 || w.Decode+w.Prefill == 0 {
		return 0, fmt.Errorf("costmodel: invalid step %+v", w)
	}
	groups := s.Groups()
	each := func(n int) int { return (n + groups - 1) / groups }
	l := kernels.Load{Decode: each(w.Decode), Prefill: each(w.Prefill)}
	l.Context = l.Decode * w.Context
	if l.Prefill > 0 {
		l.Chunks = p.Chunk(w.Before, w.Before+l.Prefill)
	}
	// The experts process the tokens of all groups; groups other than the busiest only add their tokens.
	return m.options.Scale * p.Even(l, w.Decode+w.Prefill), nil
}

// Observe a measured step. It rejects an invalid time or step without any change.
func (m *Model) Observe(s kernels.Shape, w Work, seconds float64) error {
	if !(seconds > 0) || math.IsInf(seconds, 0) {
		return fmt.Errorf("costmodel: invalid step time of %v s", seconds)
	}
	prior, err := m.Prior(s, w)
	if err != nil {
		return err
	}
	m.shapes[s].factors(w).observe(w.Decode+w.Prefill, seconds/prior)
	return nil
}

// Step estimates the seconds of a step. Known is false while the uncertainty exceeds the limit in Options: the estimate
// is then only the best guess.
func (m *Model) Step(s kernels.Shape, w Work) (e Estimate, known bool, err error) {
	prior, err := m.Prior(s, w)
	if err != nil {
		return Estimate{}, false, err
	}
	factor, deviation := m.shapes[s].factors(w).at(w.Decode + w.Prefill)
	return Estimate{prior * factor, prior * deviation}, deviation <= m.options.KnownBelow*factor, nil
}

// Beyond returns by how many doublings of the ranks a shape exceeds the measured widths; 0: within, or it has no prior.
func (m *Model) Beyond(s kernels.Shape) float64 {
	if k := m.shapes[s]; k != nil {
		return k.prior.Beyond()
	}
	return 0
}

// Borrowed is Step for a shape that may lack measurements. An unknown shape gets the correction of the nearest known
// width of the same mode, because the prior's error is mostly the engine's kernels. If no width is known, it is the
// best guess.
func (m *Model) Borrowed(s kernels.Shape, w Work) (e Estimate, known bool, err error) {
	k := m.shapes[s]
	if k == nil {
		return Estimate{}, false, fmt.Errorf("costmodel: no prior for shape %v", s)
	}
	prior, err := m.priorOf(k, w)
	if err != nil {
		return Estimate{}, false, err
	}
	i, upper := between(w.Decode + w.Prefill)
	own, uncertain := k.factors(w).place(i, upper)
	if uncertain > m.options.KnownBelow*own {
		for _, other := range k.near {
			factor, deviation := other.factors(w).place(i, upper)
			// For measured kernels the prior's error is the engine's; for an extrapolated width it may be the width's.
			deviation = math.Hypot(deviation, m.options.BeyondTables*math.Abs(k.prior.Beyond()-other.prior.Beyond())*factor)
			if deviation <= m.options.KnownBelow*factor {
				own, uncertain = factor, deviation
				break
			}
		}
	}
	return Estimate{prior * own, prior * uncertain}, uncertain <= m.options.KnownBelow*own, nil
}
