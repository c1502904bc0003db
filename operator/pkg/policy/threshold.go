package policy

import (
	"fmt"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// Thresholds of requests in the world: mode TensorParallel below, mode ExpertParallel above.
type Thresholds struct {
	High     int     // Tensor -> Expert immediately above this number of requests
	Low      int     // Expert -> Tensor if the mean over the window is below
	Window   int     // reports
	Cooldown float64 // seconds after a switch
}

// Published are the thresholds of Moebius (arXiv 2606.26607): 256, 0.8 of it, 5 s. Its window is in steps, of an
// unpublished number; here it is ten reports, five seconds of the simulator.
func Published() Thresholds { return Thresholds{High: 256, Low: 205, Window: 10, Cooldown: 5} }

// Rollout are its thresholds for a batch that only shrinks: no hysteresis, no window, no cooldown.
func Rollout() Thresholds { return Thresholds{High: 256, Low: 256, Window: 1} }

// Threshold is the published policy.
type Threshold struct {
	t       Thresholds
	guard   guard
	counts  []float64
	changed float64
	ever    bool
}

// NewThreshold returns a policy with these thresholds.
func NewThreshold(t Thresholds) *Threshold { return &Threshold{t: t} }

// Observe ignores steps.
func (*Threshold) Observe(kernels.Shape, costmodel.Work, float64) {}

// Decide by the number of requests alone.
func (p *Threshold) Decide(t Telemetry, s State) Decision {
	if wrong := p.guard.check(t, s); wrong != "" {
		p.counts = nil
		return hold(s, "No decision was made: %s.", wrong)
	}
	ranks := s.Shape.Ranks
	high, low := kernels.Expert(ranks), kernels.Tensor(ranks)
	if byData := kernels.TensorByData(ranks); s.option(low) == nil && s.option(byData) != nil {
		low = byData
	}
	if s.Shape != high && s.Shape != low {
		return hold(s, "No decision was made: shape %v is neither mode ExpertParallel nor TensorParallel.", s.Shape)
	}
	if s.Busy {
		return hold(s, "No decision was made: a transition is in progress.")
	}
	if s.Pods.Wanted.Ranks > 0 {
		return hold(s, "No decision was made: pods are starting.")
	}
	now := float64(t.Running + t.Waiting)
	p.counts = append(p.counts, now)
	if len(p.counts) > p.t.Window {
		p.counts = p.counts[1:]
	}
	mean := 0.0
	for _, c := range p.counts {
		mean += c / float64(len(p.counts))
	}
	figures := map[string]float64{"requests": now, "mean": mean, "high": float64(p.t.High), "low": float64(p.t.Low)}
	var to kernels.Shape
	var why string
	switch {
	case s.Shape == low && now > float64(p.t.High):
		to, why = high, fmt.Sprintf("%.0f requests exceed the upper threshold of %d", now, p.t.High)
	case s.Shape == high && len(p.counts) == p.t.Window && mean < float64(p.t.Low):
		to, why = low, fmt.Sprintf("%.1f requests on average are below the lower threshold of %d", mean, p.t.Low)
	default:
		return stay(s, "The number of requests requires no other mode.", figures)
	}
	if wait := p.changed + p.t.Cooldown - t.At; p.ever && wait > 0 {
		figures["wait"] = wait
		d := refused(s, to, Reason{fmt.Sprintf("%s, but the last switch was less than %v s ago.", why, p.t.Cooldown), figures})
		d.Withheld = true
		return d
	}
	o := s.option(to)
	if o == nil {
		return refused(s, to, Reason{fmt.Sprintf("%s, but this world has no such mode.", why), figures})
	}
	if no := o.refusal(t); no != nil {
		return refused(s, to, *no)
	}
	if !s.DryRun {
		p.changed, p.ever = t.At, true
		p.counts = nil
	}
	return Decision{Switch: true, To: to, Why: Reason{why + ".", figures}}
}

func refused(s State, to kernels.Shape, why Reason) Decision {
	return Decision{To: s.Shape, Why: why, Rejected: []Rejected{{to, why}}}
}
