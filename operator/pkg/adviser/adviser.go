// Package adviser applies a policy to one world: it converts telemetry into a decision with its reasons.
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

// Kind of the policy.
type Kind string

// The kinds of policies.
const (
	Calibrated Kind = "Calibrated"
	Threshold  Kind = "Threshold" // as published
)

// Prior names the kernel table that the cost model starts with. It need not match the engine or the model, because
// measurements correct it.
type Prior struct{ Model, Engine, Routing string }

// Options of an adviser.
type Options struct {
	Prior   Prior
	Policy  Kind
	Width   Range
	Hybrids Hybrids
	// AttentionByData: mode TensorParallel is kernels.TensorByData, as the engines keep all heads of a request on one rank.
	AttentionByData bool
}

// Hybrids are the shapes that the policy may choose besides modes ExpertParallel and TensorParallel, all layers alike;
// a zero Kind ends the list. Mixed layers need no search: a step lasts as long as the sum of its layers, so no mix of
// shardings is shorter than the best one in all layers.
type Hybrids [mostHybrids]kernels.Kind

const mostHybrids = 4

// World is the state of a world at a reading.
type World struct {
	View    *geometry.View // of the served model
	Shape   kernels.Shape  // of the active layout
	Epoch   uint64         // of that layout; steps of other epochs are not comparable
	Busy    bool           // a transition or a repair is in progress
	DryRun  bool           // decisions are not carried out
	KVBytes uint64         // of a rank
	Rates   costmodel.Rates
	// Price of a change of shape; an error means that the planner or the memory check rejects it. It is called once per
	// epoch.
	Price func(from, to kernels.Shape) (costmodel.Transition, error)
	// Refused returns why a shape must not be chosen for now, at each decision; empty: allowed. nil: all are allowed.
	Refused func(kernels.Shape) string
	// Repairable returns an error if, in a shape, the loss of some rank could not be repaired. nil: not required.
	Repairable func(kernels.Shape) error
	Pods       policy.Pods
}

// Adviser of one world. Not for concurrent use.
type Adviser struct {
	o       Options
	table   *kernels.Table
	view    *geometry.View // of the table's model
	widths  map[int]width
	scale   scale
	model   *costmodel.Model // of all widths requested so far; nil until the scale is known
	learned *telemetry.Sample
	mode    policy.Policy
	explore explore
	breadth *breadth // nil: the width was not requested yet
	prices  map[[2]kernels.Shape]price
	priced  uint64 // epoch of the prices
}

// width is the starting point for worlds with this number of ranks.
type width struct {
	priors []*kernels.Step
	err    error // why modes ExpertParallel and TensorParallel have none
}

type price struct {
	transition costmodel.Transition
	refused    string
}

// New returns an adviser. The error names the part of the prior that has no table.
func New(o Options) (*Adviser, error) {
	if o.Policy != Calibrated && o.Policy != Threshold {
		return nil, fmt.Errorf("adviser: unknown policy %q; use %s or %s", o.Policy, Calibrated, Threshold)
	}
	table, err := kernels.Open(o.Prior.Model)
	if err != nil {
		return nil, fmt.Errorf("adviser: %w", err)
	}
	all, err := geometry.Public()
	if err != nil {
		return nil, fmt.Errorf("adviser: %w", err)
	}
	a := &Adviser{o: o, table: table, widths: map[int]width{}, prices: map[[2]kernels.Shape]price{}}
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

// Advise decides after a reading. A held decision explains why none is possible; the layout then stays.
func (a *Adviser) Advise(s *telemetry.Sample, w World) policy.Decision {
	held := func(format string, args ...any) policy.Decision {
		return policy.Decision{Held: true, To: w.Shape, Why: policy.Reason{Text: "No decision was made: " + fmt.Sprintf(format, args...) + "."}}
	}
	if w.View == nil || w.Shape.Check() != nil {
		return held("no layout is active")
	}
	if w.Shape.Ranks == 1 {
		return held("a world with one rank has only one mode")
	}
	if !a.knows(w.Shape) {
		return held("shape %v is neither mode ExpertParallel nor TensorParallel, nor an allowed hybrid", w.Shape)
	}
	if !s.Whole {
		if len(s.Problems) > 0 {
			return held("the gateway reports are incomplete: %s", s.Problems[0])
		}
		return held("%d of %d ranks sent no load report", s.Gauges.Silent, s.Gauges.Ranks)
	}
	if at := a.width(w.Shape.Ranks); at.err != nil {
		return held("%v", at.err)
	}
	if a.o.Policy == Calibrated {
		if why := a.learn(s, w); why != "" {
			return held("%s", why)
		}
	}
	t, state := seen(s), policy.State{Shape: w.Shape, Options: a.options(w, w.Shape.Ranks), Rates: w.Rates, Busy: w.Busy, DryRun: w.DryRun, Pods: w.Pods}
	if a.breadth != nil && a.breadth.policy != nil {
		state = a.breadth.policy.Limit(state)
	}
	if a.mode == nil {
		a.mode = policy.NewThreshold(policy.Published())
	}
	d := a.mode.Decide(t, state)
	if a.o.Policy == Calibrated && !d.Switch && !d.Held {
		return a.explore.consider(d, t, state, a.model)
	}
	return d
}

// knows reports whether a shape is that of a mode, or of an allowed hybrid.
func (a *Adviser) knows(s kernels.Shape) bool {
	return slices.Contains(a.shapes(s.Ranks), s)
}

// shapes returns the shapes that a world with this number of ranks may have, those of the modes first.
func (a *Adviser) shapes(ranks int) []kernels.Shape {
	out := []kernels.Shape{kernels.Expert(ranks)}
	if s := a.tensor(ranks); s != out[0] {
		out = append(out, s)
	}
	for _, k := range a.o.Hybrids {
		if s := k.On(ranks); k != (kernels.Kind{}) && s.Check() == nil && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// tensor returns the shape of mode TensorParallel in this world.
func (a *Adviser) tensor(ranks int) kernels.Shape {
	if a.o.AttentionByData {
		return kernels.TensorByData(ranks)
	}
	return kernels.Tensor(ranks)
}

// width returns the priors for a number of ranks. Its error names the kernel that was not measured.
func (a *Adviser) width(ranks int) width {
	if w, there := a.widths[ranks]; there {
		return w
	}
	var w width
	for _, shape := range a.shapes(ranks) {
		prior, err := kernels.Guess(a.table, a.view, a.o.Prior.Engine, a.o.Prior.Routing, shape)
		switch {
		case err == nil:
			w.priors = append(w.priors, prior)
		case shape == kernels.Expert(ranks) || shape == a.tensor(ranks):
			w.err = err
		}
	}
	a.widths[ranks] = w
	if a.model != nil {
		a.model.Add(w.priors...)
	}
	return w
}

// learn updates the model with the steps measured since the previous reading. It returns what a decision still lacks.
// It learns only once from a reading.
func (a *Adviser) learn(s *telemetry.Sample, w World) string {
	if a.model == nil {
		a.scale.add(s, w, costmodel.New(costmodel.Options{}, a.width(w.Shape.Ranks).priors...))
		factor, known := a.scale.factor()
		if !known {
			return fmt.Sprintf("only %d of the first %d steps have been measured", a.scale.steps, scaleSteps)
		}
		a.model = costmodel.New(costmodel.Options{Scale: factor})
		for _, ranks := range slices.Sorted(maps.Keys(a.widths)) {
			a.model.Add(a.widths[ranks].priors...)
		}
	}
	if a.mode == nil && a.o.Policy == Calibrated {
		a.mode = policy.NewCalibrated(policy.Defaults(), a.model)
	}
	if a.learned == s {
		return ""
	}
	a.learned = s
	each(s, w.Epoch, func(work costmodel.Work, seconds float64, steps int) {
		// The mean of many steps is more reliable than one: it is observed several times, up to a limit.
		for range min(steps, mostCounted) {
			_ = a.model.Observe(w.Shape, work, seconds) // a rejected step changes nothing
		}
	})
	return ""
}

const mostCounted = 16

// each calls `call` for each kind of step of a layout: the mean work of all ranks together, the mean seconds, the
// number of steps.
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

// options returns the options of a world at some widths: capacity and cost of the switch. Impossible ones are included
// with the reason.
func (a *Adviser) options(now World, widths ...int) []policy.Option {
	var out []policy.Option
	if a.priced != now.Epoch {
		a.priced = now.Epoch
		clear(a.prices)
	}
	for _, ranks := range widths {
		at := a.width(ranks)
		for _, shape := range a.shapes(ranks) {
			pair := [2]kernels.Shape{now.Shape, shape}
			priced, there := a.prices[pair]
			if !there {
				priced = now.price(shape)
				if !slices.ContainsFunc(at.priors, func(p *kernels.Step) bool { return p.Shape() == shape }) {
					priced = price{refused: fmt.Sprintf("no measured kernels exist for shape %v", shape)}
					if at.err != nil {
						priced.refused = at.err.Error()
					}
				}
				a.prices[pair] = priced
			}
			refused := priced.refused
			if refused == "" && now.Refused != nil {
				refused = now.Refused(shape)
			}
			tokens := now.KVBytes / max(costmodel.TokenBytes(now.View, shape), 1) * uint64(shape.Groups())
			out = append(out, policy.Option{Shape: shape, WorldTokens: int(tokens), Switch: priced.transition, Refused: refused})
		}
	}
	return out
}

// price returns the price of a change to a shape.
func (w *World) price(shape kernels.Shape) price {
	if shape.Ranks != w.Shape.Ranks && w.Repairable != nil {
		if err := w.Repairable(shape); err != nil {
			return price{refused: err.Error()}
		}
	}
	t, err := w.Price(w.Shape, shape)
	if err != nil {
		return price{refused: err.Error()}
	}
	return price{transition: t}
}

// seen converts a sample to the telemetry that policies read.
func seen(s *telemetry.Sample) policy.Telemetry {
	g, c := &s.Gauges, &s.Total
	return policy.Telemetry{At: s.At, Running: g.Running, Decoding: g.Decoding, Waiting: g.Waiting + g.Homeless, QueuedTokens: g.QueuedTokens,
		ContextTokens: g.ContextTokens, Generated: g.GeneratedTokens, Reserved: g.ReservedTokens, WaitingNeed: g.WaitingTokens,
		Arrived: c.Arrived, PromptTokens: c.PromptTokens, ReusedTokens: c.ReusedTokens, Finished: c.Finished, OutputTokens: c.OutputTokens,
		Steps: c.Steps, StepSeconds: c.StepSeconds}
}
