package costmodel

import "math"

// The correction is a factor on the prior, piecewise linear over the logarithm of a step's tokens, with a knot every
// two octaves: kernels change where sizes cross tiles, at sizes that differ by engine.
const (
	knots        = 9 // 1, 4, 16, ... 65,536 tokens
	octavesApart = 2
	reach        = 2.0 // prior correlation length of the knots, in knots
)

// factors by recursive least squares: theta are the knots' values, p their covariance.
type factors struct {
	theta    [knots]float64
	p        [knots][knots]float64
	noise    float64 // variance of one relative measurement
	forget   float64 // growth of a measured knot's deviation with each observation
	deviance float64 // of the prior; upper limit of a knot's deviation
	// consecutive surprises: above 0 steps longer than expected, below 0 shorter
	surprises int
}

// This many surprises in a row are a change of the world, not outliers: earlier measurements of these sizes no longer
// hold.
const changed = 5

func newFactors(o Options) *factors {
	f := &factors{noise: o.Noise * o.Noise, forget: math.Exp(.5 / o.Memory), deviance: o.PriorDeviation * o.PriorDeviation}
	for i := range knots {
		f.theta[i] = 1
		for j := range knots {
			f.p[i][j] = f.deviance * math.Exp(-math.Abs(float64(i-j))/reach)
		}
	}
	return f
}

// between returns the lower of the two knots around a step, and the fraction of the distance to the upper.
func between(tokens int) (int, float64) {
	x := min(max(math.Log2(float64(max(tokens, 1)))/octavesApart, 0), knots-1)
	i := min(int(x), knots-2)
	return i, x - float64(i)
}

func (f *factors) at(tokens int) (factor, deviation float64) { return f.place(between(tokens)) }

// place interpolates between two knots.
func (f *factors) place(i int, upper float64) (factor, deviation float64) {
	lower := 1 - upper
	factor = lower*f.theta[i] + upper*f.theta[i+1]
	variance := lower*lower*f.p[i][i] + 2*lower*upper*f.p[i][i+1] + upper*upper*f.p[i+1][i+1]
	return max(factor, .05), math.Sqrt(max(variance, 0)) // a step cannot take no time
}

// observe a measured ratio to the prior. Least squares with forgetting (Haykin, Adaptive Filter Theory, ch. 10), only
// for the knots around the step: other knots do not become less certain with time.
func (f *factors) observe(tokens int, ratio float64) {
	i, upper := between(tokens)
	lower := 1 - upper
	for _, k := range [2]int{i, i + 1} {
		grow := f.forget
		if f.p[k][k]*grow*grow > f.deviance {
			continue
		}
		for j := range knots {
			f.p[k][j] *= grow
			f.p[j][k] *= grow
		}
	}
	var gain [knots]float64
	for k := range knots {
		gain[k] = f.p[k][i]*lower + f.p[k][i+1]*upper
	}
	explained := lower*gain[i] + upper*gain[i+1]
	wrong := ratio - lower*f.theta[i] - upper*f.theta[i+1]
	// One step that took far too long (a page fault, a collector) must not bend the curve.
	limit := 4 * math.Sqrt(explained+f.noise)
	if math.Abs(wrong) > limit {
		f.surprise(i, wrong > 0)
		wrong = math.Copysign(limit, wrong)
	} else {
		f.surprises = 0
	}
	total := explained + f.noise
	f.noise += .002 * (max(wrong*wrong-explained, 1e-6) - f.noise)
	for a := range knots {
		f.theta[a] += gain[a] / total * wrong
	}
	for a := range knots {
		for b := range knots {
			f.p[a][b] -= gain[a] * gain[b] / total
		}
	}
}

func (f *factors) surprise(i int, longer bool) {
	step := -1
	if longer {
		step = 1
	}
	if f.surprises*step < 0 {
		f.surprises = 0
	}
	if f.surprises += step; f.surprises*step < changed {
		return
	}
	f.surprises = 0
	for _, k := range [2]int{i, i + 1} {
		if f.p[k][k] <= 0 {
			continue
		}
		grow := max(1, math.Sqrt(f.deviance/f.p[k][k]))
		for j := range knots {
			f.p[k][j] *= grow
			f.p[j][k] *= grow
		}
	}
}
