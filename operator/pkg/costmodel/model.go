// Package costmodel says what a step, a transition and a token's KV cost a world: seconds of a step from a prior that what is
// measured corrects, seconds of a transition from planned bytes, tokens that fit from an itemised budget. Pure: no I/O, no clock, no globals.
package costmodel

import (
	"fmt"
	"math"

	"tangram.dev/operator/pkg/kernels"
)

// Work of one step, of all ranks together, taken as spread evenly.
type Work struct {
	Decode  int // requests that get one token
	Context int // tokens of context of a decoding request, in the mean
	Prefill int // prompt tokens
	Before  int // tokens that the prompts have cached before their chunks, in the mean
}

// Estimate of seconds. Deviation is one standard deviation.
type Estimate struct{ Seconds, Deviation float64 }

// Options of a model; zero fields take the defaults.
type Options struct {
	PriorDeviation float64 // of the prior's relative error; default 0.4: engines differ by that much (kernels/data)
	Memory         float64 // observations after which a measured factor counts 1/e; default 2000
	KnownBelow     float64 // relative deviation above which the answer is "not known yet"; default 0.25
	Noise          float64 // relative deviation of one measured step to start with; default 0.1
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
	fill(&o.KnownBelow, .25)
	fill(&o.Noise, .1)
	fill(&o.Scale, 1)
	return o
}

// Model of steps of a world in several shapes. Not for concurrent use.
type Model struct {
	options Options
	priors  map[kernels.Shape]*kernels.Step
	factors map[cell]*factors
}

// cell: what is corrected together. A step that only decodes and one with prompt tokens run other kernels.
type cell struct {
	shape   kernels.Shape
	prefill bool
}

// New model of the shapes of the priors.
func New(o Options, priors ...*kernels.Step) *Model {
	m := &Model{options: o.filled(), priors: map[kernels.Shape]*kernels.Step{}, factors: map[cell]*factors{}}
	for _, p := range priors {
		m.priors[p.Shape()] = p
		for _, prefill := range []bool{false, true} {
			m.factors[cell{p.Shape(), prefill}] = newFactors(m.options)
		}
	}
	return m
}

// Prior seconds of a step in this shape, scaled and uncorrected.
func (m *Model) Prior(s kernels.Shape, w Work) (float64, error) {
	p := m.priors[s]
	if p == nil {
		return 0, fmt.Errorf("costmodel: no prior for shape %v", s)
	}
	if w.Decode < 0 || w.Context < 0 || w.Prefill < 0 || w.Before < 0 || w.Decode+w.Prefill == 0 {
		return 0, fmt.Errorf("costmodel: a step of %+v is none", w)
	}
	groups := s.Groups()
	each := func(n int) int { return (n + groups - 1) / groups }
	l := kernels.Load{Decode: each(w.Decode), Prefill: each(w.Prefill)}
	l.Context = l.Decode * w.Context
	if l.Prefill > 0 {
		l.Chunks = p.Chunk(w.Before, w.Before+l.Prefill)
	}
	// The experts see the tokens of all; groups beyond the busiest only add theirs.
	return m.options.Scale * p.Even(l, w.Decode+w.Prefill), nil
}

// Observe a measured step. What is no time, or no step, is refused and changes nothing.
func (m *Model) Observe(s kernels.Shape, w Work, seconds float64) error {
	if !(seconds > 0) || math.IsInf(seconds, 0) {
		return fmt.Errorf("costmodel: a step of %v seconds was none", seconds)
	}
	prior, err := m.Prior(s, w)
	if err != nil {
		return err
	}
	m.factors[cell{s, w.Prefill > 0}].observe(w.Decode+w.Prefill, seconds/prior)
	return nil
}

// Step is what a step lasts. Known is false while the uncertainty is above what Options allow: the estimate is then the
// best guess there is, and nobody should stake much on it.
func (m *Model) Step(s kernels.Shape, w Work) (e Estimate, known bool, err error) {
	prior, err := m.Prior(s, w)
	if err != nil {
		return Estimate{}, false, err
	}
	factor, deviation := m.factors[cell{s, w.Prefill > 0}].at(w.Decode + w.Prefill)
	return Estimate{prior * factor, prior * deviation}, deviation <= m.options.KnownBelow*factor, nil
}
