package adviser

import (
	"fmt"
	"math"
	"slices"

	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/telemetry"
)

// Range of the number of ranks for decisions on the width. The zero Range: no decisions on the width.
type Range struct {
	SLO      policy.SLO
	Min, Max int
	Step     int  // ranks of a pod
	Modes    bool // the mode is decided together with the width
}

const (
	// feltSeconds is the window of responses for a decision.
	feltSeconds = 60
	// feltStale: seconds after which a reading is outdated.
	feltStale = 10
)

// breadth is the state of decisions on the width.
type breadth struct {
	policy  *policy.Width // nil until the model's scale is known
	history *telemetry.History
}

// Widen decides, after a reading, the number of ranks of the world, and the mode if Range.Modes. The caller calls it
// before Advise, with the same readings. If both decide on a switch, the caller follows this one first.
func (a *Adviser) Widen(s *telemetry.Sample, w World) policy.Decision {
	held := func(format string, args ...any) policy.Decision {
		return policy.Decision{Held: true, To: w.Shape, Why: policy.Reason{Text: "No decision was made: " + fmt.Sprintf(format, args...) + "."}}
	}
	if a.breadth == nil {
		b, err := a.newBreadth()
		if err != nil {
			return held("%v", err)
		}
		a.breadth = b
	}
	b := a.breadth
	if err := b.history.Add(s); err != nil {
		return held("%v", err)
	}
	switch {
	case w.View == nil || w.Shape.Check() != nil:
		return held("no layout is active")
	case !a.knows(w.Shape):
		return held("shape %v is neither mode ExpertParallel nor TensorParallel, nor an allowed hybrid", w.Shape)
	case !s.Whole && len(s.Problems) > 0:
		return held("the gateway reports are incomplete: %s", s.Problems[0])
	case !s.Whole:
		return held("%d of %d ranks sent no load report", s.Gauges.Silent, s.Gauges.Ranks)
	}
	if why := a.learn(s, w); why != "" {
		return held("%s", why)
	}
	if b.policy == nil {
		o := policy.WidthDefaults()
		o.SLO, o.Min, o.Max = a.o.Width.SLO, a.o.Width.Min, a.o.Width.Max
		b.policy = policy.NewWidth(o, a.model)
	}
	t := seen(s)
	t.Felt = b.felt(s.At, a.o.Width.SLO)
	return b.policy.Decide(t, policy.State{Shape: w.Shape, Options: a.widthOptions(w), Rates: w.Rates, Busy: w.Busy, DryRun: w.DryRun, Pods: w.Pods})
}

func (a *Adviser) newBreadth() (*breadth, error) {
	if err := a.o.Width.check(); err != nil {
		return nil, err
	}
	history, err := telemetry.NewHistory(2 * feltSeconds)
	if err != nil {
		return nil, err
	}
	return &breadth{history: history}, nil
}

func (r Range) check() error {
	o := policy.WidthDefaults()
	o.SLO, o.Min, o.Max = r.SLO, r.Min, r.Max
	if err := o.Check(); err != nil {
		return err
	}
	if r.Step < 1 || r.Min%r.Step != 0 || r.Max%r.Step != 0 {
		return fmt.Errorf("adviser: from %d to %d ranks with %d per pod: both numbers must be multiples of the ranks per pod", r.Min, r.Max, r.Step)
	}
	return nil
}

// felt returns the recent client latencies against the SLO.
func (b *breadth) felt(now float64, slo policy.SLO) policy.Felt {
	w, err := b.history.Window(now, feltSeconds, feltStale)
	if err != nil {
		return policy.Felt{}
	}
	attained := w.Answers.Attainment(telemetry.SLO{TTFT: slo.TTFT, TPOT: slo.TPOT, Share: slo.Share})
	out := policy.Felt{Answers: int(attained.Answers)}
	if share, known := attained.Share(); known {
		out.Within = math.Min(share, 1)
	}
	if v, known := w.Answers.FirstToken(slo.Share); known {
		out.FirstToken = v
	}
	if v, known := w.Answers.BetweenTokens(slo.Share); known {
		out.PerToken = v
	}
	return out
}

// widthOptions returns all widths, in all modes if the mode is decided too, otherwise in the active one. Impossible
// ones are included with the reason.
func (a *Adviser) widthOptions(now World) []policy.Option {
	r := a.o.Width
	widths := []int{}
	for ranks := r.Min; ranks <= r.Max; ranks += r.Step {
		widths = append(widths, ranks)
	}
	if now.Shape.Ranks < r.Min || now.Shape.Ranks > r.Max || (now.Shape.Ranks-r.Min)%r.Step != 0 {
		widths = append(widths, now.Shape.Ranks) // initial spec.replicas outside the range
	}
	all := a.options(now, widths...)
	if r.Modes {
		return all
	}
	kind := now.Shape.Kind()
	if now.Shape.Ranks == 1 {
		kind = kernels.Expert(2).Kind() // one rank has no mode
	}
	return slices.DeleteFunc(all, func(o policy.Option) bool { return o.Shape.Ranks > 1 && o.Shape.Kind() != kind })
}
