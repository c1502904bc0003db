// Package adviser asks a policy about one world: telemetry in, a decision with its reasons out.
package adviser

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/telemetry"
)

// Kind of the policy that is asked.
type Kind string

// The kinds.
const (
	Calibrated Kind = "Calibrated"
	Threshold  Kind = "Threshold" // as published
)

// Prior names the kernels that the cost model begins with. They need not be this engine's, nor this model's: what is measured corrects them.
type Prior struct{ Model, Engine, Routing string }

// Options of an adviser.
type Options struct {
	Prior  Prior
	Policy Kind
}

// World as it is at a reading.
type World struct {
	View    *geometry.View // of the model that is served
	Shape   kernels.Shape  // of the layout in force
	Epoch   uint64         // of that layout: steps of another one say nothing about it
	Busy    bool           // a transition or a repair is under way
	KVBytes uint64         // of a rank
	Rates   costmodel.Rates
	// Price of a change of shape; its error is a refusal by planner or memory.
	Price func(from, to kernels.Shape) (costmodel.Transition, error)
}

// Adviser of one world. Not for concurrent use.
type Adviser struct {
	o      Options
	table  *kernels.Table
	view   *geometry.View // of the table's model
	widths map[int]*width
	scale  scale
}

// width is what is known of worlds of so many ranks.
type width struct {
	priors  []*kernels.Step
	model   *costmodel.Model // nil until the scale is known
	policy  policy.Policy
	explore explore
	prices  map[[2]kernels.Shape]price
}

type price struct {
	transition costmodel.Transition
	refused    string
}

// New adviser. The error names the part of the prior that there is no table of.
func New(o Options) (*Adviser, error) {
	if o.Policy != Calibrated && o.Policy != Threshold {
		return nil, fmt.Errorf("adviser: policy %q is none: use %s or %s", o.Policy, Calibrated, Threshold)
	}
	table, err := kernels.Open(o.Prior.Model)
	if err != nil {
		return nil, fmt.Errorf("adviser: %w", err)
	}
	all, err := geometry.Public()
	if err != nil {
		return nil, fmt.Errorf("adviser: %w", err)
	}
	a := &Adviser{o: o, table: table, widths: map[int]*width{}}
	for _, g := range all {
		if g.Model == o.Prior.Model {
			if a.view, err = geometry.New(g); err != nil {
				return nil, fmt.Errorf("adviser: %w", err)
			}
		}
	}
	if a.view == nil {
		return nil, fmt.Errorf("adviser: no geometry of model %q", o.Prior.Model)
	}
	if _, err := kernels.NewStep(table, a.view, o.Prior.Engine, o.Prior.Routing, kernels.Expert(1)); err != nil {
		return nil, fmt.Errorf("adviser: %w", err)
	}
	return a, nil
}

// Advise after a reading. A decision that is held says why none is possible; the layout stays then.
func (a *Adviser) Advise(s *telemetry.Sample, w World) policy.Decision {
	held := func(format string, args ...any) policy.Decision {
		return policy.Decision{Held: true, To: w.Shape, Why: policy.Reason{Text: "no decision: " + fmt.Sprintf(format, args...)}}
	}
	if w.View == nil || w.Shape.Check() != nil {
		return held("no layout is in force")
	}
	if w.Shape.Ranks == 1 {
		return held("one rank has one mode")
	}
	if w.Shape != kernels.Expert(w.Shape.Ranks) && w.Shape != kernels.Tensor(w.Shape.Ranks) {
		return held("shape %v is neither mode Expert nor Tensor", w.Shape)
	}
	if !s.Whole {
		if len(s.Problems) > 0 {
			return held("what gateways tell is not whole: %s", s.Problems[0])
		}
		return held("%d of %d ranks tell nothing", s.Gauges.Silent, s.Gauges.Ranks)
	}
	at, err := a.width(w.Shape.Ranks)
	if err != nil {
		return held("%v", err)
	}
	if a.o.Policy == Calibrated {
		if why := a.learn(at, s, w); why != "" {
			return held("%s", why)
		}
	}
	t, state := seen(s), policy.State{Shape: w.Shape, Options: at.options(w), Rates: w.Rates, Busy: w.Busy}
	d := at.policy.Decide(t, state)
	if at.model != nil && !d.Switch && !d.Held {
		return at.explore.consider(d, t, state, at.model)
	}
	return d
}

// width that is asked about. The error says which kernel was not measured.
func (a *Adviser) width(ranks int) (*width, error) {
	if w := a.widths[ranks]; w != nil {
		return w, nil
	}
	w := &width{prices: map[[2]kernels.Shape]price{}}
	for _, shape := range []kernels.Shape{kernels.Expert(ranks), kernels.Tensor(ranks)} {
		prior, err := kernels.NewStep(a.table, a.view, a.o.Prior.Engine, a.o.Prior.Routing, shape)
		if err != nil {
			return nil, err
		}
		w.priors = append(w.priors, prior)
	}
	if a.o.Policy == Threshold {
		w.policy = policy.NewThreshold(policy.Published())
	}
	a.widths[ranks] = w
	return w, nil
}

// learn from the steps that were measured since the reading before; it says what is missing for a decision.
func (a *Adviser) learn(at *width, s *telemetry.Sample, w World) string {
	if at.model == nil {
		a.scale.add(s, w, costmodel.New(costmodel.Options{}, at.priors...))
		factor, known := a.scale.factor()
		if !known {
			return fmt.Sprintf("%d of the first %d steps were measured", a.scale.steps, scaleSteps)
		}
		at.model = costmodel.New(costmodel.Options{Scale: factor}, at.priors...)
		at.policy = policy.NewCalibrated(policy.Defaults(), at.model)
	}
	each(s, w.Epoch, func(work costmodel.Work, seconds float64, steps int) {
		// The mean of many steps says more than one: it counts as often, within reason.
		for range min(steps, mostCounted) {
			at.policy.Observe(w.Shape, work, seconds)
		}
	})
	return ""
}

const mostCounted = 16

// each kind of step of a layout: the mean work of all ranks together, the mean seconds, and how many there were.
func each(s *telemetry.Sample, epoch uint64, call func(work costmodel.Work, seconds float64, steps int)) {
	kinds := slices.SortedFunc(maps.Keys(s.Steps), func(a, b telemetry.StepKey) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Octave, b.Octave), compareBool(a.Prefill, b.Prefill))
	})
	for _, k := range kinds {
		if k.Epoch != epoch {
			continue
		}
		seconds, decode, context, prefill, before := s.Steps[k].Mean()
		if seconds > 0 && decode+prefill > 0 {
			call(costmodel.Work{Decode: decode, Context: context, Prefill: prefill, Before: before}, seconds, int(s.Steps[k].Steps))
		}
	}
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// options of a world: both modes, what fits there, and what it takes to go there.
func (w *width) options(now World) []policy.Option {
	out := make([]policy.Option, 0, len(w.priors))
	for _, p := range w.priors {
		shape := p.Shape()
		pair := [2]kernels.Shape{now.Shape, shape}
		priced, there := w.prices[pair]
		if !there {
			var err error
			if priced.transition, err = now.Price(now.Shape, shape); err != nil {
				priced.refused = err.Error()
			}
			w.prices[pair] = priced
		}
		tokens := now.KVBytes / max(costmodel.TokenBytes(now.View, shape), 1) * uint64(shape.Groups())
		out = append(out, policy.Option{Shape: shape, WorldTokens: int(tokens), Switch: priced.transition, Refused: priced.refused})
	}
	return out
}

// seen by policies.
func seen(s *telemetry.Sample) policy.Telemetry {
	g, c := &s.Gauges, &s.Total
	return policy.Telemetry{At: s.At, Running: g.Running, Decoding: g.Decoding, Waiting: g.Waiting + g.Homeless, QueuedTokens: g.QueuedTokens,
		ContextTokens: g.ContextTokens, Generated: g.GeneratedTokens, Reserved: g.ReservedTokens, WaitingNeed: g.WaitingTokens,
		Arrived: c.Arrived, PromptTokens: c.PromptTokens, ReusedTokens: c.ReusedTokens, Finished: c.Finished, OutputTokens: c.OutputTokens,
		Steps: c.Steps, StepSeconds: c.StepSeconds}
}
