package load

import (
	"fmt"
	"math"
)

// Parameters of the Predictor. They were compared over five drifts (the three of the bench `predict`, Zipf with churn,
// task mix) and two seeds, cold start included. Losses: absolute, Kullback-Leibler, Hellinger; memory .8, .9, .97;
// sharpness 5, 20, 80 and the leader alone. Worst points of next-window balance against the best of the bench's five
// fixed ones, Hellinger with memory .97: sharpness 80 -.06, 20 -.12, leader -.16, 5 -.72. All sharp choices are within
// .35, and differences of .1 are noise: only a blunt mixture is clearly worse.
const (
	memory    = .97 // upper limit, see weights
	sharpness = 80  // at most, see weights
	totals    = .5  // decay of the tokens per window
)

// Predictor forecasts the next window of each layer. Each layer weights the candidates by their past one-step errors
// there (Hedge: Freund and Schapire 1997), because no fixed window is best under every drift.
//
// The error is the squared Hellinger distance of forecast and realised shares, sum (sqrt(f) - sqrt(w))^2. It
// approximates the balance of a placement made from the forecast, which would need a placement per candidate. The
// square root equalizes the sampling noise of counts for hot and cold experts. An expert without earlier tokens costs
// its share, not infinity. Over the candidates, the error falls as next-window balance rises. Linear in experts. Not
// for concurrent use.
type Predictor struct {
	candidates []Candidate
	experts    int
	longest    int
	layers     []layerState
	forecast   [][]float64 // scratch, [candidate][expert]
	realised   []float64   // scratch, sqrt of shares
}

type layerState struct {
	history history
	experts int
	seen    int       // windows with tokens
	tokens  float64   // decayed mean of tokens per window, including idle ones
	windows float64   // weight of that mean
	busy    float64   // decayed mean of tokens per window with tokens
	errors  []float64 // decayed sum by candidate
	weight  float64   // decayed count behind errors
}

// NewPredictor for a number of MoE layers and experts. One candidate: a fixed predictor. No candidates: Candidates().
func NewPredictor(layers, experts int, candidates ...Candidate) (*Predictor, error) {
	if layers < 1 || experts < 1 {
		return nil, fmt.Errorf("load: forecast of %d layers of %d experts; at least 1 of each is needed", layers, experts)
	}
	if len(candidates) == 0 {
		candidates = Candidates()
	}
	p := &Predictor{candidates: append([]Candidate(nil), candidates...), experts: experts, layers: make([]layerState, layers),
		realised: make([]float64, experts)}
	for _, c := range p.candidates {
		if err := c.check(); err != nil {
			return nil, err
		}
		p.longest = max(p.longest, c.Window)
		p.forecast = append(p.forecast, make([]float64, experts))
	}
	for l := range p.layers {
		s := &p.layers[l]
		s.experts = experts
		s.history.decay, s.errors = map[float64]*ewma{}, make([]float64, len(p.candidates))
		for _, c := range p.candidates {
			if c.Window == 0 {
				s.history.decay[c.Decay] = &ewma{shares: make([]float64, experts)}
			}
		}
	}
	return p, nil
}

// Observe the window after the last one, tokens by [layer][expert]. It first evaluates the candidates' forecasts of it.
// An error leaves the predictor unchanged.
func (p *Predictor) Observe(window [][]float64) error {
	if err := Check(window); err != nil {
		return err
	}
	if len(window) != len(p.layers) || len(window[0]) != p.experts {
		return fmt.Errorf("load: a window of %d layers of %d experts; the forecast is for %d of %d", len(window), len(window[0]), len(p.layers), p.experts)
	}
	for l, tokens := range window {
		s := &p.layers[l]
		sum := 0.0
		for _, v := range tokens {
			sum += v
		}
		s.tokens, s.windows = totals*s.tokens+sum, totals*s.windows+1
		if sum == 0 {
			continue
		}
		if s.seen > 0 {
			// The noise in an error is proportional to 1/tokens: a thin window must not outvote full ones.
			p.judge(s, tokens, sum, min(1, sum/s.busy))
			s.busy = totals*s.busy + (1-totals)*sum
		} else {
			s.busy = sum
		}
		s.history.add(tokens, sum, p.longest)
		s.seen++
	}
	return nil
}

// judge adds the errors of the candidates' forecasts of a new window.
func (p *Predictor) judge(s *layerState, tokens []float64, sum, weight float64) {
	for e, v := range tokens {
		p.realised[e] = math.Sqrt(v / sum)
	}
	for i, c := range p.candidates {
		s.history.shares(c, p.forecast[i])
		miss := 0.0
		for e, f := range p.forecast[i] {
			d := math.Sqrt(f) - p.realised[e]
			miss += d * d
		}
		s.errors[i] = memory*s.errors[i] + weight*miss
	}
	s.weight = memory*s.weight + weight
}

// weights of the candidates, sum 1: exp(-rate * (error - least) / least). Relative to the least error, the rate is
// independent of the number of tokens. It is that of a likelihood, half the number of squares summed in an error, so
// that few windows of few experts do not decide. Its limit is `sharpness`: there, relative to the leader's weight, a
// candidate 1 % worse has .45, one 5 % worse .02.
func (s *layerState) weights() []float64 {
	least := math.Inf(1)
	for _, v := range s.errors {
		least = min(least, v)
	}
	rate := min(sharpness, s.weight*float64(s.experts)/2)
	out := make([]float64, len(s.errors))
	for i, v := range s.errors {
		switch {
		case v == least:
			out[i] = 1
		case least > 0:
			out[i] = math.Exp(-rate * (v - least) / least)
		}
	}
	return normalised(out)
}

// Forecast returns the forecast of the next window: tokens by [layer][expert]. A layer without any token so far is all
// zero. The rows belong to the caller.
func (p *Predictor) Forecast() [][]float64 {
	out := make([][]float64, len(p.layers))
	one := make([]float64, p.experts)
	for l := range p.layers {
		s := &p.layers[l]
		out[l] = make([]float64, p.experts)
		if s.seen == 0 {
			continue
		}
		tokens := s.tokens / s.windows
		for i, w := range s.weights() {
			if w < negligible {
				continue
			}
			s.history.shares(p.candidates[i], one)
			for e, v := range one {
				out[l][e] += w * tokens * v
			}
		}
	}
	return out
}

// negligible weight of a candidate: its contribution to the forecast is below the noise of a count.
const negligible = 1e-6

// Choice explains a layer's forecast.
type Choice struct {
	Best    Candidate // with the largest weight
	Windows int       // with tokens, observed
	// For each candidate, in the order of NewPredictor: its weight in the forecast, and its mean error in past windows
	// (recent ones count more); 0 before the first.
	Weights, Errors []float64
}

// Choices returns the choice of each layer.
func (p *Predictor) Choices() []Choice {
	out := make([]Choice, len(p.layers))
	for l := range p.layers {
		s := &p.layers[l]
		c := Choice{Windows: s.seen, Weights: s.weights(), Errors: make([]float64, len(s.errors))}
		best := 0
		for i, w := range c.Weights {
			if w > c.Weights[best] {
				best = i
			}
			if s.weight > 0 {
				c.Errors[i] = s.errors[i] / s.weight
			}
		}
		c.Best = p.candidates[best]
		out[l] = c
	}
	return out
}
