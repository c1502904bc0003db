package placement

// Options of a plan. The zero value is a plan for balance alone.
type Options struct {
	// Price of one moved slot: the decrease of a layer's peak over mean that pays for it (PriceOf computes it). Only
	// the incremental mode and Least use it.
	Price float64
	// Locality is the value of a token served on its source rank, in tokens of the peak (0: none). A token served in
	// the node of its source rank is worth half of it. It needs Layer.BySource.
	Locality float64
	// Groups selects whether Full keeps groups of experts in a node; it needs Problem.Groups.
	Groups GroupPolicy
}

// PriceOf returns the price of a moved slot: its bytes take bytes/bandwidth seconds, and a layer whose peak over mean
// falls by one saves layerSeconds in each step until the load has drifted away. overlap is the share of the copy's time
// that does not delay the engine (0: it is stopped, 1: free).
func PriceOf(bytes, bytesPerSecond, layerSeconds, steps, overlap float64) float64 {
	if bytesPerSecond <= 0 || layerSeconds <= 0 || steps <= 0 {
		return 0
	}
	return bytes / bytesPerSecond * (1 - overlap) / (layerSeconds * steps)
}

// Figures of a layer.
type Figures struct {
	Peak  float64 // time of the slowest rank, even split between replicas
	Mean  float64 // time of each rank if all were equal
	Bound float64 // lower bound for even splits: the larger of the mean and the hottest replica's share
	Moved int     // (rank, expert) pairs that are not in the old placement
	Local float64 // share of tokens served on their source rank; 0 without BySource
	Near  float64 // share of tokens served in the node of their source rank, own rank included
	Home  float64 // share of tokens served in the node of their group, if groups are kept; else 0
}

// Balance is mean over peak: 1 is best. A layer without load is balanced.
func (f Figures) Balance() float64 {
	if f.Peak <= 0 {
		return 1
	}
	return f.Mean / f.Peak
}

// Result is a placement and its figures.
type Result struct {
	Placement    *Placement
	Layers       []Figures
	Hierarchical bool // groups were kept in nodes
}

// Balance returns the sum of means over the sum of peaks (as the open evaluators aggregate it), and the worst layer's
// balance.
func (r *Result) Balance() (all, worst float64) {
	sum := Figures{}
	worst = 1
	for _, f := range r.Layers {
		sum.Mean += f.Mean
		sum.Peak += f.Peak
		worst = min(worst, f.Balance())
	}
	return sum.Balance(), worst
}

// Moved returns the number of moved slots over all layers.
func (r *Result) Moved() int {
	n := 0
	for _, f := range r.Layers {
		n += f.Moved
	}
	return n
}

// Planner holds the work arrays, so that repeated planning allocates only the result. The zero value is ready. Not for
// concurrent use.
type Planner struct {
	state         state
	heap          []uint64
	fit           fit
	order         []uint64 // experts, heaviest share first
	free          []int32  // [rank] next free slot while packing
	roomy         []int32
	queues        queues
	aside         []int32
	relief        []float64 // [expert]
	hot           []wish    // of the experts of the rank to relieve
	most, mostHot float64   // relief of any expert, of one in hot
	excess        []float64 // [rank]
	keep          []bool    // [expert] its replicas stay, in the current layer
	others        []other
	cold          []int32
	best          []int32 // [slot] the best so far, while the search tries others
	from          []int32 // [slot] the starting point of the next try
	delta         []float64
	touch         []int32
	log           []step
	align         aligner
	ask           demand
	groups        grouping
}

// Full finds the best balance, and keeps as much of the old placement as equal balance allows.
func (p *Planner) Full(problem *Problem, o Options) (*Result, error) {
	c, err := problem.check()
	if err != nil {
		return nil, err
	}
	r := p.begin(problem, c)
	if o.Groups != IgnoreGroups && p.groups.ready(problem, &p.state) {
		pays, err := p.hierarchical(problem, c, r, o)
		if err != nil {
			return nil, err
		}
		if r.Hierarchical = pays || o.Groups == KeepGroups; r.Hierarchical {
			return r, nil
		}
	}
	for l := range c.load {
		s := &p.state
		s.begin(c.load[l], r.Placement.Layer(l))
		bound := max(s.mean, p.replicate()*p.fastest())
		p.pack()
		p.improve(bound)
		p.settle(problem, r, l, bound, o)
	}
	return r, nil
}

func (p *Planner) begin(problem *Problem, c *checked) *Result {
	p.state.shape(c)
	p.align.shape(&p.state, problem)
	n := int(c.start[len(c.speed)])
	return &Result{Placement: &Placement{Experts: c.experts, Start: c.start, Slot: make([]int32, n*len(c.load))}, Layers: make([]Figures, len(c.load))}
}

// fastest is the shortest time that a token takes on any rank.
func (p *Planner) fastest() float64 {
	s := &p.state
	least := s.slow[s.live[0]]
	for _, g := range s.live {
		least = min(least, s.slow[g])
	}
	return least
}

// settle completes a layer of a free plan: near the tokens, seated like the old placement, with figures.
func (p *Planner) settle(problem *Problem, r *Result, l int, bound float64, o Options) {
	s := &p.state
	p.ask.ready(s, problem, l, o)
	p.approach(o)
	p.align.seat(s, problem, &p.ask, l)
	p.figures(problem, r, l, bound)
}

// figures computes the figures from the slots, not from the search's running values.
func (p *Planner) figures(problem *Problem, r *Result, l int, bound float64) {
	s := &p.state
	s.settle()
	_, peak := s.hottest()
	f := Figures{Peak: peak, Mean: s.mean, Bound: min(bound, peak)}
	f.Moved = moved(problem.Old, r.Placement, l, &p.align)
	f.Local, f.Near = p.ask.shares(s)
	if p.groups.on {
		f.Home = p.groups.share(s)
	}
	r.Layers[l] = f
}

// moved counts the (rank, expert) pairs of a layer that the old placement lacks.
func moved(old, now *Placement, l int, a *aligner) int {
	n := 0
	for g := range now.Ranks() {
		if old != nil && g < old.Ranks() {
			for _, e := range old.Rank(l, g) {
				if e != Empty {
					a.mark[e] = int32(g) + 1
				}
			}
		}
		for _, e := range now.Rank(l, g) {
			if e != Empty && a.mark[e] != int32(g)+1 {
				n++
			}
		}
	}
	clear(a.mark)
	return n
}
