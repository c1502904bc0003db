package policy

import (
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// Joint decides on width and mode with one model: the width, over all modes that could serve it, and the mode among
// those that meet the SLO at the active width.
type Joint struct {
	width *Width
	mode  *Calibrated
}

// NewJoint returns a policy over a model of the steps in all possible shapes.
func NewJoint(o WidthOptions, of Options, m *costmodel.Model) *Joint {
	return &Joint{NewWidth(o, m), NewCalibrated(of, m)}
}

// Decide on the width; if it stays, on the mode.
func (j *Joint) Decide(t Telemetry, s State) Decision {
	width := j.width.Decide(t, s)
	limited := j.width.Limit(s)
	limited.Busy = limited.Busy || width.Switch // the mode's policy is still called, so that it counts all arrivals
	mode := j.mode.Decide(t, limited)
	if width.Switch || !mode.Switch {
		return width
	}
	mode.Rejected = append(mode.Rejected, width.Rejected...)
	return mode
}

// Observe a step.
func (j *Joint) Observe(s kernels.Shape, w costmodel.Work, seconds float64) {
	j.mode.Observe(s, w, seconds) // the width uses the same model
}
