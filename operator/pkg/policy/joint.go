package policy

import (
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// Joint decides on width and mode with each other, by one model: the width in whichever modes could serve it, and the mode among those that hold the SLO at the
// width that serves.
type Joint struct {
	width *Width
	mode  *Calibrated
}

// NewJoint policy over a model of the steps in all shapes that it may be asked about.
func NewJoint(o WidthOptions, of Options, m *costmodel.Model) *Joint {
	return &Joint{NewWidth(o, m), NewCalibrated(of, m)}
}

// Decide on the width; where that stays, on the mode.
func (j *Joint) Decide(t Telemetry, s State) Decision {
	width := j.width.Decide(t, s)
	limited := j.width.Limit(s)
	limited.Busy = limited.Busy || width.Switch // the mode's policy is asked all the same, lest it miss what arrived
	mode := j.mode.Decide(t, limited)
	if width.Switch || !mode.Switch {
		return width
	}
	mode.Rejected = append(mode.Rejected, width.Rejected...)
	return mode
}

// Observe a step.
func (j *Joint) Observe(s kernels.Shape, w costmodel.Work, seconds float64) {
	j.mode.Observe(s, w, seconds) // the model is the width's, too
}
