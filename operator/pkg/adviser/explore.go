package adviser

import (
	"fmt"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

const (
	// exploreAfter: seconds of this mode before another one is tried.
	exploreAfter = 30
	// exploreAgain: seconds after which a mode may be tried again that is not known yet, or not any more.
	exploreAgain = 3600
	// exploreSteps: how many steps a try may hold up the world for, there and back; else nobody tries.
	exploreSteps = 100
)

// explore tries a mode of which it is not known how long its steps last: a table of another engine is wrong by more than modes differ. A try is bounded: once
// an hour for each mode, only where going there and back stalls for some steps at most, only if what lives fits there, and nobody waits. The policy comes
// back from it by its own rules, since it knows the mode that it left.
type explore struct {
	since float64 // that this mode serves
	shape kernels.Shape
	tried map[kernels.Shape]float64
}

// consider a try where the policy stays.
func (e *explore) consider(d policy.Decision, t policy.Telemetry, s policy.State, m *costmodel.Model) policy.Decision {
	if e.tried == nil {
		e.tried = map[kernels.Shape]float64{}
	}
	if e.shape != s.Shape {
		e.shape, e.since = s.Shape, t.At
	}
	if t.Decoding == 0 || t.Waiting > 0 || t.At-e.since < exploreAfter {
		return d
	}
	work := costmodel.Work{Decode: t.Decoding, Context: t.ContextTokens / t.Decoding}
	step, known, err := m.Borrowed(s.Shape, work)
	if err != nil || !known {
		return d // nothing to compare it with
	}
	for _, o := range s.Options {
		at, tried := e.tried[o.Shape]
		if o.Shape == s.Shape || o.Refused != "" || o.Against != nil || t.Reserved > o.WorldTokens || tried && t.At-at < exploreAgain {
			continue
		}
		if _, known, err := m.Borrowed(o.Shape, work); err != nil || known {
			continue
		}
		stall, _ := s.Rates.Stall(o.Switch, t.ContextTokens, 0)
		if 2*stall > exploreSteps*step.Seconds {
			continue
		}
		if !s.DryRun {
			e.tried[o.Shape] = t.At
		}
		return policy.Decision{Switch: true, To: o.Shape, Rejected: d.Rejected, Why: policy.Reason{
			Text:    fmt.Sprintf("The step time of this shape is not known yet, so the policy tries the shape once (stall %.2f s).", stall),
			Figures: map[string]float64{"stall": stall, "step": step.Seconds, "decoding": float64(t.Decoding)}}}
	}
	return d
}
