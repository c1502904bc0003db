// Package rebalance decides whether experts should move, and which. Pure.
package rebalance

import (
	"errors"
	"fmt"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/placement"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Settings of a rebalance.
type Settings struct {
	// Redundant is the number of slots per layer beyond one for each expert; rounded up to the same number on each rank.
	Redundant int
	// Automatic takes the fewest redundant experts, Redundant at most, that reach as much as any number does but for
	// MinGain, and that fit.
	Automatic bool
	// MaxMoves of experts in one cycle, over all layers; 0: as many as pay.
	MaxMoves int
	// Price of a moved expert, as placement.Options.Price.
	Price float64
	// MinGain of balancedness below which nothing is moved, e.g. .01.
	MinGain float64
	// Sources is the part of all tokens that each rank brings, as Way.Sources.
	Sources []float64
	// Fits says whether the world has the memory for a placement; nil: it is not asked.
	Fits func(placement [][][]uint32) error
}

// ErrTooBig is in the error of a placement that does not fit.
var ErrTooBig = errors.New("the placement does not fit")

// Decision and what it was made by. Balancedness is that of the forecast: sum of means over sum of peaks, 1 is best.
type Decision struct {
	// Placement for layout.Shape, [layer ordinal][rank] experts; nil: nothing is to be moved. A layer whose experts are shared by ranks has none.
	Placement [][][]uint32
	// Before is the balancedness of the layout in force, After that of Placement, Reachable that of the best placement
	// of so many slots, and Floor what no placement of so many slots can exceed.
	Before, After, Reachable, Floor float64
	// WorstBefore and WorstAfter are those of the worst layer.
	WorstBefore, WorstAfter float64
	Redundant               int    // slots per layer beyond one for each expert
	Moves                   int    // experts that arrive on a rank
	Wanted                  int    // the same without MaxMoves
	Bytes                   uint64 // of Moves
	Rounds                  int    // in which no rank sends or receives more than one expert
	// Why it was decided so, with the numbers.
	Why string
}

// Decide from a layout and a forecast, tokens by [layer ordinal][expert]. Only layers whose experts are whole count (Whole): of a layout in mode ExpertParallel all, in
// mode Hybrid some.
func Decide(v *geometry.View, l *tangramv1.Layout, forecast [][]float64, s Settings) (*Decision, error) {
	if s.Redundant < 0 || s.MaxMoves < 0 || !(s.MinGain >= 0) {
		return nil, fmt.Errorf("rebalance: %d redundant experts, at most %d moves, a gain of at least %v: all three must be at least 0", s.Redundant, s.MaxMoves, s.MinGain)
	}
	if len(l.GetMembers()) == 0 {
		return nil, fmt.Errorf("rebalance: no layout is active")
	}
	if len(forecast) != v.MoELayers() {
		return nil, fmt.Errorf("rebalance: the forecast has %d layers, but the model has %d layers of %d experts", len(forecast), v.MoELayers(), v.Proto.Experts)
	}
	w := within{v, l, Whole(l), nil}
	if len(w.layers) == 0 {
		return nil, fmt.Errorf("rebalance: ranks share experts in every layer; only whole experts are placed (modes ExpertParallel and Hybrid)")
	}
	w.forecast = Of(forecast, w.layers)
	if !s.Automatic {
		return w.decide(s)
	}
	return w.automatic(s)
}

// within what a decision is made: a layout, its layers of whole experts by MoE ordinal, and what is forecast for them.
type within struct {
	v        *geometry.View
	l        *tangramv1.Layout
	layers   []int
	forecast [][]float64 // [index of layers][expert]
}

// forShape is a placement of these layers, as layout.Shape wants it for all.
func (w *within) forShape(p *placement.Placement) [][][]uint32 {
	out := make([][][]uint32, w.v.MoELayers())
	for i, ranks := range ForShape(p) {
		out[w.layers[i]] = ranks
	}
	return out
}

func (w *within) decide(s Settings) (*Decision, error) {
	v := w.v
	problem, err := w.problem(s.Redundant)
	if err != nil {
		return nil, err
	}
	over := crowded(problem)
	if over > 0 { // first only what must go; the next window looks for what pays
		s.Price, s.MaxMoves = never, 0
	}
	c, err := Choose(problem, w.forecast, Way{Price: s.Price, MaxMoves: s.MaxMoves, Sources: s.Sources})
	if err != nil {
		return nil, fmt.Errorf("rebalance: %w", err)
	}
	d := &Decision{Before: c.Before.Aggregate, After: c.After.Aggregate, Reachable: c.Reachable.Aggregate, Floor: floor(c.Best),
		WorstBefore: c.Before.Worst, WorstAfter: c.After.Worst, Redundant: problem.Ranks[0].Slots*len(problem.Ranks) - int(v.Proto.Experts),
		Moves: len(c.Moves), Wanted: c.Wanted, Rounds: c.Rounds, Bytes: uint64(len(c.Moves)) * v.PieceBytes(v.Granules)}
	d.explain(c, over, s, w)
	if s.Fits != nil && d.Placement != nil {
		if err := s.Fits(d.Placement); err != nil {
			return nil, fmt.Errorf("rebalance: %w: %d redundant experts per layer: %w", ErrTooBig, d.Redundant, err)
		}
	}
	return d, nil
}

// problem of a layout: each rank has as many slots as the redundant experts need, or as its fullest layer has.
func (w *within) problem(redundant int) (*placement.Problem, error) {
	slots := (int(w.v.Proto.Experts) + redundant + len(w.l.Members) - 1) / len(w.l.Members)
	old, err := FromLayers(w.l, w.v, w.layers, slots)
	if err != nil {
		return nil, err
	}
	problem := &placement.Problem{Old: old}
	for _, load := range w.forecast {
		problem.Layers = append(problem.Layers, placement.Layer{Load: load})
	}
	for range w.l.Members {
		problem.Ranks = append(problem.Ranks, placement.Rank{Slots: slots})
	}
	return problem, nil
}

// never is a price that nothing pays.
const never = 1e12

// floor of the peaks, as the highest balancedness that any placement can have.
func floor(best *placement.Result) float64 {
	means, bounds := 0.0, 0.0
	for _, f := range best.Layers {
		means, bounds = means+f.Mean, bounds+f.Bound
	}
	if bounds == 0 {
		return 1
	}
	return means / bounds
}

// explain the figures, and take the placement if it is worth it.
func (d *Decision) explain(c *Choice, over int, s Settings, w *within) {
	figures := c.Figures(d.Floor)
	switch {
	case over > 0:
		d.Placement = w.forShape(c.Now)
		d.Why = fmt.Sprintf("A rank has up to %d experts, more than %d redundant experts per layer allow, so replicas are removed. %d experts move (%d bytes, %d rounds): %s.",
			over, d.Redundant, d.Moves, d.Bytes, d.Rounds, figures)
	case d.Moves == 0:
		d.Why = "No move pays off: " + figures + "."
	case d.After-d.Before < s.MinGain:
		d.Why = fmt.Sprintf("The gain is too small: %d moves (%d bytes) would gain %.3f, less than %.3f: %s.", d.Moves, d.Bytes, d.After-d.Before, s.MinGain, figures)
	default:
		d.Placement = w.forShape(c.Now)
		d.Why = fmt.Sprintf("%d experts move (%d bytes, %d rounds)", d.Moves, d.Bytes, d.Rounds)
		if d.Moves < d.Wanted {
			d.Why += fmt.Sprintf(", the best of %d within the cap of %d", d.Wanted, s.MaxMoves)
		}
		d.Why += ": " + figures + "."
	}
}

// crowded gives the number of experts on the fullest rank of any layer, if that is more than it has slots; else 0.
func crowded(problem *placement.Problem) int {
	most := 0
	for l := range problem.Layers {
		for r := range problem.Ranks {
			held := 0
			for _, e := range problem.Old.Rank(l, r) {
				if e != placement.Empty {
					held++
				}
			}
			if held > problem.Ranks[r].Slots {
				most = max(most, held)
			}
		}
	}
	return most
}
