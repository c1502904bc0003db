package adviser

import (
	"fmt"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

const (
	// exploreAfter: seconds in the current mode before another one is tried.
	exploreAfter = 30
	// exploreAgain: seconds after which a mode may be tried again if its step times are unknown or outdated.
	exploreAgain = 3600
	// exploreSteps: the maximum stall of a try, there and back, in steps; above it there is no try.
	exploreSteps = 100
)

// explore tries a mode whose step times are unknown, because the table of another engine is more wrong than modes
// differ. A try is bounded: once an hour per mode, only if the switch there and back stalls for few steps, only if the
// live requests fit there and no request waits. The policy returns by its own rules, because it knows the mode that it
// left.
type explore struct {
	since float64 // start of the current mode
	shape kernels.Shape
	tried map[kernels.Shape]float64
}

// consider a try if the policy decides to stay.
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
		return d // no baseline
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
