package kernels

// Parts of a step, in seconds.
type Parts struct {
	Dense     float64 `json:"dense"` // projections, and the all-reduce after attention where its heads are split
	Attention float64 `json:"attention"`
	Experts   float64 `json:"experts"`
	Around    float64 `json:"around"` // the collectives around the experts
}

// Sum returns the whole step.
func (p Parts) Sum() float64 { return p.Dense + p.Attention + p.Experts + p.Around }

// Decode returns the parts of a step that decodes `requests` requests, spread evenly, with `context` tokens of context
// each.
func (s *Step) Decode(requests, context int) Parts {
	if requests <= 0 {
		return Parts{}
	}
	busiest := (requests + s.shape.Groups() - 1) / s.shape.Groups()
	return Parts{s.layers * s.dense.at(busiest), s.layers * s.decode(busiest, context), s.layers * s.moe.at(requests), s.layers * s.all.at(requests)}
}

// Crossing of two shapes by the number of decoding requests.
type Crossing struct {
	Below int `json:"below"` // up to this number the first shape's step is never longer; 0: it is with one request
	Above int `json:"above"` // from this number to the maximum the second's step is shorter; 0: not at the maximum
}

// Cross finds where the steps of two shapes cross, for 1 to `most` requests of `context` tokens of context. Because of
// tiles and the busiest group, the shorter one may alternate in between.
func Cross(few, many *Step, context, most int) Crossing {
	var c Crossing
	shorter := func(n int) bool { return few.Decode(n, context).Sum() <= many.Decode(n, context).Sum() }
	for c.Below < most && shorter(c.Below+1) {
		c.Below++
	}
	for n := most; n > c.Below && !shorter(n); n-- {
		c.Above = n
	}
	return c
}
