package costmodel

import "math"

// The correction is a factor on the prior, piecewise linear over the logarithm of a step's tokens, with a knot every two
// octaves: kernels change where sizes cross tiles, and each engine's do so elsewhere.
const (
	knots        = 9 // 1, 4, 16, ... 65,536 tokens
	octavesApart = 2
	reach        = 2.0 // knots over which what is measured at one tells of another, before either is measured
)

// factors by recursive least squares: theta are the knots' values, p their covariance.
type factors struct {
	theta    [knots]float64
	p        [knots][knots]float64
	noise    float64 // variance of one relative measurement
	forget   float64 // how much a measured knot's deviation grows with each observation
	deviance float64 // of the prior: no knot becomes less known than that
	// surprises in a row, above 0 those of longer steps than thought possible, below 0 of shorter ones
	surprises int
}

// A row of so many surprises is no outlier but a change of the world: what was known of these sizes is not any more.
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

// between which knots a step lies, and how far it is to the upper.
func between(tokens int) (int, float64) {
	x := min(max(math.Log2(float64(max(tokens, 1)))/octavesApart, 0), knots-1)
	i := min(int(x), knots-2)
	return i, x - float64(i)
}

func (f *factors) at(tokens int) (factor, deviation float64) { return f.place(between(tokens)) }

// place between two knots.
func (f *factors) place(i int, upper float64) (factor, deviation float64) {
	lower := 1 - upper
	factor = lower*f.theta[i] + upper*f.theta[i+1]
	variance := lower*lower*f.p[i][i] + 2*lower*upper*f.p[i][i+1] + upper*upper*f.p[i+1][i+1]
	return max(factor, .05), math.Sqrt(max(variance, 0)) // a step that takes no time is none
}

// observe a measured ratio to the prior. Least squares with forgetting (Haykin, Adaptive Filter Theory, ch. 10), of the
// knots beside the step alone: what is not measured does not grow less known by waiting.
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
