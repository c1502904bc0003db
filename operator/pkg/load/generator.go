package load

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Generator generates windows of load, one after another. The same configuration and seed give the same windows.
type Generator interface {
	// Next window: tokens by [layer][expert]. The rows belong to the caller.
	Next() [][]float64
}

// Shape of the generated load.
type Shape struct {
	Layers  int // MoE layers
	Experts int // logical experts of each layer
	// Assignments of a token to an expert, sampled from the popularity, per layer and
	// window. 0: no sampling; Next gives the popularity itself, which sums to 1.
	Assignments int
	Seed        uint64
}

func (s Shape) check() error {
	if s.Layers < 1 || s.Experts < 1 {
		return fmt.Errorf("load: %d layers of %d experts; at least 1 of each is needed", s.Layers, s.Experts)
	}
	if s.Assignments < 0 {
		return fmt.Errorf("load: %d assignments per layer and window; want 0 (no sampling) or more", s.Assignments)
	}
	return nil
}

// random returns one stream per layer, so that added layers do not change existing ones.
func (s Shape) random() []*rand.Rand {
	out := make([]*rand.Rand, s.Layers)
	for l := range out {
		out[l] = rand.New(rand.NewPCG(s.Seed, uint64(l)))
	}
	return out
}

// window converts the layers' popularity (any positive scale) to tokens.
func (s Shape) window(popularity [][]float64, random []*rand.Rand) [][]float64 {
	out := make([][]float64, s.Layers)
	for l := range out {
		if s.Assignments == 0 {
			out[l] = normalised(popularity[l])
		} else {
			out[l] = multinomial(random[l], popularity[l], s.Assignments)
		}
	}
	return out
}

// NewLogNormal has popularity exp(x) with x normal of standard deviation sigma, and x' = rho x + sqrt(1 - rho^2) sigma
// N(0, 1) from window to window: stationary, each window as skewed as the first. rho = 1: no drift. Reference: the
// workloads `lnS`.
func NewLogNormal(s Shape, sigma, rho float64) (Generator, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if !(sigma >= 0) || math.IsInf(sigma, 0) || !(rho >= 0 && rho <= 1) {
		return nil, fmt.Errorf("load: log-normal with sigma %v and rho %v; want a finite sigma of 0 or more and rho in 0..1", sigma, rho)
	}
	g := &logNormal{shape: s, sigma: sigma, rho: rho, random: s.random()}
	for l := range s.Layers {
		x := make([]float64, s.Experts)
		for e := range x {
			x[e] = sigma * g.random[l].NormFloat64()
		}
		g.x = append(g.x, x)
	}
	return g, nil
}

type logNormal struct {
	shape      Shape
	sigma, rho float64
	x          [][]float64
	random     []*rand.Rand
}

func (g *logNormal) Next() [][]float64 {
	popularity := make([][]float64, len(g.x))
	step := g.sigma * math.Sqrt(1-g.rho*g.rho)
	for l, x := range g.x {
		p := make([]float64, len(x))
		for e := range x {
			p[e] = math.Exp(x[e])
		}
		popularity[l] = p
	}
	out := g.shape.window(popularity, g.random)
	for l, x := range g.x {
		for e := range x {
			x[e] = g.rho*x[e] + step*g.random[l].NormFloat64()
		}
	}
	return out
}

// NewZipf has popularity 1/rank^s, and after each window exchanges the popularity ranks of
// a share `churn` of the experts among themselves. Reference: the workload `zipf1.0`.
func NewZipf(s Shape, exponent, churn float64) (Generator, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if !(exponent >= 0) || math.IsInf(exponent, 0) || !(churn >= 0 && churn <= 1) {
		return nil, fmt.Errorf("load: Zipf with exponent %v and churn %v; want a finite exponent of 0 or more and a churn in 0..1", exponent, churn)
	}
	p := make([]float64, s.Experts)
	for e := range p {
		p[e] = math.Pow(float64(e+1), -exponent)
	}
	return newShuffled(s, p, churn), nil
}

// NewHot is k-hot: k experts share `share` of the tokens evenly, the others the rest. A share `churn` of the experts
// exchange popularities per window. Mooncake's bench: 32 of 256 experts take 90 %.
func NewHot(s Shape, k int, share, churn float64) (Generator, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if k < 1 || k > s.Experts || !(share >= 0 && share <= 1) || !(churn >= 0 && churn <= 1) {
		return nil, fmt.Errorf("load: %d hot of %d experts with a share of %v and churn %v; want 1..%d hot, share and churn in 0..1",
			k, s.Experts, share, churn, s.Experts)
	}
	p := make([]float64, s.Experts)
	for e := range p {
		switch {
		case k == s.Experts:
			p[e] = 1
		case e < k:
			p[e] = share / float64(k)
		default:
			p[e] = (1 - share) / float64(s.Experts-k)
		}
	}
	return newShuffled(s, p, churn), nil
}

// shuffled distributes a fixed multiset of popularities over the experts.
type shuffled struct {
	shape      Shape
	churn      float64
	popularity [][]float64
	random     []*rand.Rand
}

func newShuffled(s Shape, p []float64, churn float64) *shuffled {
	g := &shuffled{shape: s, churn: churn, random: s.random()}
	for l := range s.Layers {
		dealt := make([]float64, len(p))
		for e, from := range g.random[l].Perm(len(p)) {
			dealt[e] = p[from]
		}
		g.popularity = append(g.popularity, dealt)
	}
	return g
}

func (g *shuffled) Next() [][]float64 {
	out := g.shape.window(g.popularity, g.random)
	for l, p := range g.popularity {
		// Less than one expert per window still churns, at its rate: the fraction is a probability.
		wanted := g.churn * float64(len(p))
		n := int(wanted)
		if g.random[l].Float64() < wanted-float64(n) {
			n++
		}
		chosen := g.random[l].Perm(len(p))[:n]
		for i := 1; i < len(chosen); i++ { // one cycle: each of them changes
			a, b := chosen[i-1], chosen[i]
			p[a], p[b] = p[b], p[a]
		}
	}
	return out
}

// Tasks is a mix of kinds of requests.
type Tasks struct {
	Count int     // kinds
	Sigma float64 // log-normal popularity of the experts within a kind, constant in time
	// Spread and Rho: the shares of the kinds are exp(y) normalised, y normal of standard
	// deviation Spread with AR(1) of factor Rho per window.
	Spread, Rho float64
}

// NewTaskMix has k kinds of requests, each with its own constant popularity. Their shares drift alike in all layers, so
// experts heat and cool together, as traffic shifts between task families (arXiv 2604.23150).
func NewTaskMix(s Shape, t Tasks) (Generator, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	for _, v := range []float64{t.Sigma, t.Spread} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("load: task mix with sigma %v and spread %v; want finite values of 0 or more", t.Sigma, t.Spread)
		}
	}
	if t.Count < 1 || !(t.Rho >= 0 && t.Rho <= 1) {
		return nil, fmt.Errorf("load: task mix of %d kinds with rho %v; want at least 1 kind and rho in 0..1", t.Count, t.Rho)
	}
	g := &taskMix{shape: s, tasks: t, random: s.random(), shares: rand.New(rand.NewPCG(s.Seed, math.MaxUint64)), y: make([]float64, t.Count)}
	for k := range g.y {
		g.y[k] = t.Spread * g.shares.NormFloat64()
	}
	for l := range s.Layers {
		kinds := make([][]float64, t.Count)
		for k := range kinds {
			p := make([]float64, s.Experts)
			for e := range p {
				p[e] = math.Exp(t.Sigma * g.random[l].NormFloat64())
			}
			kinds[k] = normalised(p)
		}
		g.kinds = append(g.kinds, kinds)
	}
	return g, nil
}

type taskMix struct {
	shape  Shape
	tasks  Tasks
	kinds  [][][]float64 // [layer][kind][expert]
	y      []float64     // [kind]
	random []*rand.Rand
	shares *rand.Rand
}

func (g *taskMix) Next() [][]float64 {
	share := make([]float64, len(g.y))
	for k, y := range g.y {
		share[k] = math.Exp(y)
	}
	share = normalised(share)
	popularity := make([][]float64, g.shape.Layers)
	for l := range popularity {
		p := make([]float64, g.shape.Experts)
		for k, kind := range g.kinds[l] {
			for e, v := range kind {
				p[e] += share[k] * v
			}
		}
		popularity[l] = p
	}
	step := g.tasks.Spread * math.Sqrt(1-g.tasks.Rho*g.tasks.Rho)
	for k := range g.y {
		g.y[k] = g.tasks.Rho*g.y[k] + step*g.shares.NormFloat64()
	}
	return g.shape.window(popularity, g.random)
}
