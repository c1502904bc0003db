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
	// Redundant is the number of slots per layer beyond one for each expert, rounded up to equal numbers on all ranks.
	Redundant int
	// Automatic chooses the fewest redundant experts, at most Redundant, that fit and reach as much as any number
	// within MinGain.
	Automatic bool
	// MaxMoves of experts in one cycle, over all layers; 0: as many as pay.
	MaxMoves int
	// Price of a moved expert, as placement.Options.Price.
	Price float64
	// MinGain is the gain of balancedness below which no expert moves, e.g. .01.
	MinGain float64
	// Sources is each rank's part of all tokens, as Way.Sources.
	Sources []float64
	// Fits returns an error if the world lacks the memory for a placement; nil: not checked.
	Fits func(placement [][][]uint32) error
}

// ErrTooBig is in the error of a placement that does not fit.
var ErrTooBig = errors.New("the placement does not fit")

// Decision and its figures. Balancedness is that of the forecast: sum of means over sum of peaks, 1 is best.
type Decision struct {
	// Placement for layout.Shape, [layer ordinal][rank] experts; nil: no move. A layer whose experts are shared by
	// ranks has none.
	Placement [][][]uint32
	// Before is the balancedness of the active layout, After that of Placement, Reachable that of the best placement
	// with this number of slots. Floor is an upper bound for any placement with this number of slots.
	Before, After, Reachable, Floor float64
	// WorstBefore and WorstAfter are those of the worst layer.
	WorstBefore, WorstAfter float64
	Redundant               int    // slots per layer beyond one for each expert
	Moves                   int    // experts that arrive on a rank
	Wanted                  int    // the same without MaxMoves
	Bytes                   uint64 // of Moves
	Rounds                  int    // in which no rank sends or receives more than one expert
	// Why is the reason, with the numbers.
	Why string
}

// Decide from a layout and a forecast, tokens by [layer ordinal][expert]. Only layers with whole experts count (Whole):
// all layers in mode ExpertParallel, some in mode Hybrid.
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

// within is the scope of a decision: a layout, its layers of whole experts by MoE ordinal, and their forecast.
type within struct {
	v        *geometry.View
	l        *tangramv1.Layout
	layers   []int
	forecast [][]float64 // [index of layers][expert]
}

// forShape returns a placement of these layers in layout.Shape's format for all layers.
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
	if over > 0 { // first only the required removals; the next window looks for gains
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

// never is a price that no change pays.
const never = 1e12

// floor returns the bound of the peaks as the highest possible balancedness.
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

// explain the figures, and set the placement if it pays.
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

// crowded returns the number of experts on the fullest rank of any layer if it exceeds its slots; else 0.
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
