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
	Prior   Prior
	Policy  Kind
	Width   Range
	Hybrids Hybrids
	// AttentionByData: mode TensorParallel is kernels.TensorByData, as the engines keep all heads of a request on one rank.
	AttentionByData bool
}

// Hybrids that the policy may choose beside modes ExpertParallel and TensorParallel, all layers alike; a zero Kind after the last. That is all there is to look for: a step lasts as long as
// its layers do together, so that with some layers in one sharding and some in another none is shorter than with all in the better one.
type Hybrids [mostHybrids]kernels.Kind

const mostHybrids = 4

// World as it is at a reading.
type World struct {
	View    *geometry.View // of the model that is served
	Shape   kernels.Shape  // of the layout in force
	Epoch   uint64         // of that layout: steps of another one say nothing about it
	Busy    bool           // a transition or a repair is under way
	DryRun  bool           // nobody follows what is decided
	KVBytes uint64         // of a rank
	Rates   costmodel.Rates
	// Price of a change of shape; its error is a refusal by planner or memory. It is asked for once in an epoch.
	Price func(from, to kernels.Shape) (costmodel.Transition, error)
	// Refused says why a shape must not be chosen for now, at each decision; empty: it may. nil: all may.
	Refused func(kernels.Shape) string
	// Repairable says whether in a shape the loss of any rank could be repaired; its error is why not. nil: nobody asks for that.
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
	model   *costmodel.Model // of all widths that were asked about; nil until the scale is known
	learned *telemetry.Sample
	mode    policy.Policy
	explore explore
	breadth *breadth // nil: nobody asked for the width yet
	prices  map[[2]kernels.Shape]price
	priced  uint64 // the epoch that prices are of
}

// width is what worlds of so many ranks begin with.
type width struct {
	priors []*kernels.Step
	err    error // why there are none of modes ExpertParallel and Tensor
}

type price struct {
	transition costmodel.Transition
	refused    string
}

// New adviser. The error names the part of the prior that there is no table of.
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

// Advise after a reading. A decision that is held says why none is possible; the layout stays then.
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

// knows a shape: that of a mode, or of a hybrid that is allowed.
func (a *Adviser) knows(s kernels.Shape) bool {
	return slices.Contains(a.shapes(s.Ranks), s)
}

// shapes that a world of so many ranks may have, those of the modes first.
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

// tensor is the shape of mode TensorParallel in this world.
func (a *Adviser) tensor(ranks int) kernels.Shape {
	if a.o.AttentionByData {
		return kernels.TensorByData(ranks)
	}
	return kernels.Tensor(ranks)
}

// width that is asked about. Its error says which kernel was not measured.
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

// learn from the steps that were measured since the reading before; it says what is missing for a decision. Of one reading it learns once.
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
		// The mean of many steps says more than one: it counts as often, within reason.
		for range min(steps, mostCounted) {
			_ = a.model.Observe(w.Shape, work, seconds) // a step that is refused changes nothing
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

// options of a world at some widths: what fits there, and what it takes to go there. Those that cannot be had are there with the reason.
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

// price of a change to a shape.
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

// seen by policies.
func seen(s *telemetry.Sample) policy.Telemetry {
	g, c := &s.Gauges, &s.Total
	return policy.Telemetry{At: s.At, Running: g.Running, Decoding: g.Decoding, Waiting: g.Waiting + g.Homeless, QueuedTokens: g.QueuedTokens,
		ContextTokens: g.ContextTokens, Generated: g.GeneratedTokens, Reserved: g.ReservedTokens, WaitingNeed: g.WaitingTokens,
		Arrived: c.Arrived, PromptTokens: c.PromptTokens, ReusedTokens: c.ReusedTokens, Finished: c.Finished, OutputTokens: c.OutputTokens,
		Steps: c.Steps, StepSeconds: c.StepSeconds}
}
