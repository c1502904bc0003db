package adviser

import (
	"math"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/telemetry"
)

// scaleSteps is the number of measured steps before the first decision.
const scaleSteps = 64

// scale of this machine: its seconds of a step over the table's, which was measured on another machine or at another
// clock. The table gives the ratios of modes and the growth of steps; only this machine gives the duration. It is the
// geometric mean over the first steps, of any kind.
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
