package adviser

import (
	"math"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/telemetry"
)

// scaleSteps that are measured before anything is decided.
const scaleSteps = 64

// scale of this machine: its seconds of a step over the table's, which was measured on another one (or has another clock). A table tells how the
// modes compare and how steps grow; how long they last, only this machine does. The geometric mean of the first steps, whatever they were.
type scale struct {
	steps int
	sum   float64 // of logarithms
}

func (c *scale) add(s *telemetry.Sample, w World, priors *costmodel.Model) {
	each(s, w.Epoch, func(work costmodel.Work, seconds float64, steps int) {
		if prior, err := priors.Prior(w.Shape, work); err == nil && prior > 0 && c.steps < scaleSteps {
			c.steps += steps
			c.sum += float64(steps) * math.Log(seconds/prior)
		}
	})
}

func (c *scale) factor() (float64, bool) {
	if c.steps < scaleSteps {
		return 1, false
	}
	return math.Exp(c.sum / float64(c.steps)), true
}
