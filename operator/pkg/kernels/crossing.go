package kernels

// Parts of a step, in seconds.
type Parts struct {
	Dense     float64 `json:"dense"` // projections, and the all-reduce after attention where its heads are split
	Attention float64 `json:"attention"`
	Experts   float64 `json:"experts"`
	Around    float64 `json:"around"` // the collectives around the experts
}

// Sum is the whole step.
func (p Parts) Sum() float64 { return p.Dense + p.Attention + p.Experts + p.Around }

// Decode are the parts of a step in which so many requests, spread evenly, with so many tokens of context each get a token.
func (s *Step) Decode(requests, context int) Parts {
	if requests <= 0 {
		return Parts{}
	}
	busiest := (requests + s.shape.Groups() - 1) / s.shape.Groups()
	return Parts{s.layers * s.dense.at(busiest), s.layers * s.decode(busiest, context), s.layers * s.moe.at(requests), s.layers * s.all.at(requests)}
}

// Crossing of two shapes by the number of requests that decode.
type Crossing struct {
	Below int `json:"below"` // with so many requests and with any fewer the first's step is the shorter; 0: with one it is not
	Above int `json:"above"` // with so many and with any more, up to where was looked, the second's is; 0: with the most it is not
}

// Cross looks where the steps of two shapes cross, with 1 to `most` requests of so many tokens of context. As kernels have tiles and the busiest group
// counts, there may be numbers between at which now the one, now the other is shorter.
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
