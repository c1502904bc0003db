// Package placement decides which rank holds each expert. A layer has a load per expert (tokens in a window), a rank
// has slots, a slot holds one replica of one expert, and the replicas of an expert share its load. The goal is a low
// peak: the time of the slowest rank.
//
// Terms: the time of a rank is its load over its speed; the mean is the whole load over the sum of speeds; balancedness
// is mean over peak, at most 1. Pure: no I/O, no clock, no globals; equal input gives equal output.
package placement

import (
	"errors"
	"fmt"
	"math"
)

// Empty marks an empty slot.
const Empty int32 = -1

// ErrInput is wrapped by every error about invalid input.
var ErrInput = errors.New("placement: bad input")

// Rank is one accelerator.
type Rank struct {
	Slots int     // physical experts it can hold per layer; 0: it is dead or leaving
	Speed float64 // tokens per unit of time relative to a normal rank; 0 means 1
	Node  int     // ranks of one node share a number, any number
}

// Layer is the demand of one MoE layer.
type Layer struct {
	// Load [expert]: tokens in a window. May be nil if BySource is given.
	Load []float64
	// BySource [rank][expert], optional: the same tokens by source rank.
	BySource [][]float64
}

// Problem is the input of a plan. All layers have the same number of experts.
type Problem struct {
	Layers []Layer
	Ranks  []Rank
	// Groups [expert], optional: experts of a group are routed together (DeepSeek-V3 has 8 groups), so a group is best
	// kept in one node. Group numbers are arbitrary.
	Groups []int
	// Old is the old placement, optional. It numbers ranks as Ranks does; it may have fewer or more of them and other
	// slot counts.
	Old *Placement
}

// Placement assigns experts to slots. Slots of a rank are consecutive.
type Placement struct {
	Experts int
	Start   []int32 // [rank+1]: first slot of the rank; the last is the number of slots
	Slot    []int32 // [layer*slots+slot]: expert or Empty
}

// Ranks returns the number of ranks.
func (p *Placement) Ranks() int { return len(p.Start) - 1 }

// Slots returns the number of slots of a layer, over all ranks.
func (p *Placement) Slots() int { return int(p.Start[len(p.Start)-1]) }

// Layers returns the number of layers.
func (p *Placement) Layers() int {
	if p.Slots() == 0 {
		return 0
	}
	return len(p.Slot) / p.Slots()
}

// Layer returns the slots of a layer, rank by rank: a view.
func (p *Placement) Layer(l int) []int32 { n := p.Slots(); return p.Slot[l*n : (l+1)*n : (l+1)*n] }

// Rank returns the slots of a rank in a layer: a view.
func (p *Placement) Rank(l, rank int) []int32 {
	return p.Layer(l)[p.Start[rank]:p.Start[rank+1]:p.Start[rank+1]]
}

// Valid checks shape and range of experts.
func (p *Placement) Valid() error {
	if len(p.Start) < 2 || p.Start[0] != 0 {
		return fmt.Errorf("%w: a placement needs Start of ranks+1 numbers from 0, has %d", ErrInput, len(p.Start))
	}
	for g := range p.Ranks() {
		if p.Start[g+1] < p.Start[g] {
			return fmt.Errorf("%w: rank %d of the placement ends at slot %d, before its first slot %d", ErrInput, g, p.Start[g+1], p.Start[g])
		}
	}
	if n := p.Slots(); n == 0 && len(p.Slot) > 0 || n > 0 && len(p.Slot)%n != 0 {
		return fmt.Errorf("%w: the placement has %d entries, not a multiple of its %d slots", ErrInput, len(p.Slot), n)
	}
	for i, e := range p.Slot {
		if e != Empty && (e < 0 || int(e) >= p.Experts) {
			return fmt.Errorf("%w: layer %d, slot %d holds expert %d; experts are 0 to %d, and %d is empty",
				ErrInput, i/p.Slots(), i%p.Slots(), e, p.Experts-1, Empty)
		}
	}
	return nil
}

// checked is a valid problem in the form that the search uses.
type checked struct {
	experts int
	start   []int32     // [rank+1], usable slots: no rank needs more than one per expert
	speed   []float64   // [rank]
	load    [][]float64 // [layer][expert]
	speeds  float64     // of ranks with slots
}

func (p *Problem) check() (*checked, error) {
	c := &checked{start: make([]int32, len(p.Ranks)+1), speed: make([]float64, len(p.Ranks)), load: make([][]float64, len(p.Layers))}
	if len(p.Layers) == 0 || len(p.Ranks) == 0 {
		return nil, fmt.Errorf("%w: %d layers on %d ranks; give at least one of each", ErrInput, len(p.Layers), len(p.Ranks))
	}
	c.experts = p.Layers[0].experts()
	if c.experts == 0 {
		return nil, fmt.Errorf("%w: layer 0 has no loads", ErrInput)
	}
	if err := p.checkRanks(c); err != nil {
		return nil, err
	}
	for l := range p.Layers {
		var err error
		if c.load[l], err = p.loads(l, c.experts); err != nil {
			return nil, err
		}
	}
	if p.Groups != nil && len(p.Groups) != c.experts {
		return nil, fmt.Errorf("%w: groups are given for %d experts of %d", ErrInput, len(p.Groups), c.experts)
	}
	if p.Old != nil {
		if err := p.Old.Valid(); err != nil {
			return nil, fmt.Errorf("the old placement: %w", err)
		}
		if p.Old.Layers() != len(p.Layers) || p.Old.Experts != c.experts {
			return nil, fmt.Errorf("%w: the old placement has %d layers of %d experts, the loads have %d of %d",
				ErrInput, p.Old.Layers(), p.Old.Experts, len(p.Layers), c.experts)
		}
	}
	return c, nil
}

func (p *Problem) checkRanks(c *checked) error {
	slots := 0
	for g, r := range p.Ranks {
		if r.Slots < 0 || r.Slots > math.MaxInt32 {
			return fmt.Errorf("%w: rank %d has %d slots", ErrInput, g, r.Slots)
		}
		if r.Speed < 0 || math.IsNaN(r.Speed) || math.IsInf(r.Speed, 0) {
			return fmt.Errorf("%w: rank %d has speed %v; 1 is normal and 0 means 1", ErrInput, g, r.Speed)
		}
		c.speed[g] = r.Speed
		if r.Speed == 0 {
			c.speed[g] = 1
		}
		if r.Slots > 0 {
			c.speeds += c.speed[g]
		}
		slots += min(r.Slots, c.experts)
		if slots > math.MaxInt32 {
			return fmt.Errorf("%w: more than %d slots up to rank %d", ErrInput, math.MaxInt32, g)
		}
		c.start[g+1] = int32(slots)
	}
	if slots < c.experts {
		return fmt.Errorf("%w: %d experts need as many slots, the %d ranks have %d: give slots or ranks", ErrInput, c.experts, len(p.Ranks), slots)
	}
	return nil
}

func (l *Layer) experts() int {
	if l.Load == nil && len(l.BySource) > 0 {
		return len(l.BySource[0])
	}
	return len(l.Load)
}

// loads returns the validated loads of a layer.
func (p *Problem) loads(l, experts int) ([]float64, error) {
	layer := &p.Layers[l]
	if n := layer.experts(); n != experts {
		return nil, fmt.Errorf("%w: layer %d has loads of %d experts, layer 0 of %d", ErrInput, l, n, experts)
	}
	if layer.BySource != nil && len(layer.BySource) != len(p.Ranks) {
		return nil, fmt.Errorf("%w: layer %d has loads from %d source ranks of %d", ErrInput, l, len(layer.BySource), len(p.Ranks))
	}
	asked := make([]float64, 0, experts)
	for s, row := range layer.BySource {
		if len(row) != experts {
			return nil, fmt.Errorf("%w: layer %d, source rank %d has loads of %d experts of %d", ErrInput, l, s, len(row), experts)
		}
		asked = asked[:experts]
		for e, w := range row {
			if !sound(w) {
				return nil, fmt.Errorf("%w: layer %d, source rank %d, expert %d: load %v; a load is a finite number of tokens, at least 0", ErrInput, l, s, e, w)
			}
			asked[e] += w
		}
	}
	load := layer.Load
	if load == nil {
		load = asked
	}
	total := 0.0
	for e, w := range load {
		if !sound(w) {
			return nil, fmt.Errorf("%w: layer %d, expert %d: load %v; a load is a finite number of tokens, at least 0", ErrInput, l, e, w)
		}
		if layer.BySource != nil && math.Abs(asked[e]-w) > 1e-6*max(w, 1) {
			return nil, fmt.Errorf("%w: layer %d, expert %d: load %v, but the source ranks ask for %v", ErrInput, l, e, w, asked[e])
		}
		total += w
	}
	// The squares of loads must stay finite too.
	if total > math.Sqrt(math.MaxFloat64) {
		return nil, fmt.Errorf("%w: layer %d: its loads sum to %v, too much for arithmetic", ErrInput, l, total)
	}
	return load, nil
}

func sound(w float64) bool { return w >= 0 && !math.IsInf(w, 1) }

func badOption(what string, v float64) error {
	return fmt.Errorf("%w: %s is %v; it must be finite and at least 0", ErrInput, what, v)
}
