// Package balance tracks the expert load of one running world: windows from the agents' counts, the forecast, the
// decisions, and the result of each rebalance. No I/O and no clock; not for concurrent use.
package balance

import (
	"fmt"
	"math"
	"slices"
	"time"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
	"tangram.dev/operator/pkg/planner"
	"tangram.dev/operator/pkg/rebalance"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Settings of a world; comparable.
type Settings struct {
	Every     time.Duration // length of a window
	MaxMoves  int           // experts per rebalance; 0: no limit
	PayBack   time.Duration // time in which the gain must repay the copy; 0: moves cost nothing
	MinGain   float64       // of balancedness
	Redundant int           // slots per layer beyond one for each expert
	Automatic bool          // Redundant is the maximum
}

// Outcome of a window.
type Outcome int

// The outcomes.
const (
	// Observing: too few tokens to decide.
	Observing Outcome = iota
	// NotExpert: no layer of the active layout spreads whole experts over the ranks.
	NotExpert
	// Stay: no move pays.
	Stay
	// NotWorth: the moves that pay gain less than Settings.MinGain.
	NotWorth
	// Move: move to Decision.Placement.
	Move
	// Failed: the evaluation failed, e.g. because memory is short.
	Failed
)

// Report of a window.
type Report struct {
	At      time.Time
	Outcome Outcome
	Why     string
	Tokens  float64 // in the window, over all layers
	// Of the window, as executed by the ranks, in the layers with whole experts; no layers if there were none.
	Balance   load.Balance
	Layers    []int       // their MoE ordinals
	RankLoads [][]float64 // [index of Layers][rank] tokens executed
	Decision  *rebalance.Decision
	Layout    []byte // hash of the active layout
	Last      *Promise
}

// Promise is the predicted gain of a completed rebalance, and the result in the first whole window after it.
type Promise struct {
	At               time.Time
	Moves            int
	Bytes            uint64
	Before, Promised float64  // balancedness of the forecast
	Kept             bool     // Without and Measured are set
	Without          float64  // computed: the routing of each rank in the previous layout
	Measured         float64  // from what the ranks executed
	layers           []int    // MoE ordinals of old
	members          []string // ids, by rank of old
	old              load.Placement
}

// Moment is the state of a world at the end of a window.
type Moment struct {
	At       time.Time
	World    string
	Geometry *tangramv1.Geometry
	Layout   *tangramv1.Layout // active; nil: none
	Hash     []byte
	Ranks    []*tangramv1.RankStatus // of the layout's members
	Counts   map[string]Counts       // by member
}

// Counts of a member since its start: tokens by (layer, expert).
type Counts struct {
	Routed   []uint64 // by this rank, whichever rank executed them
	Executed []uint64 // by its own copies
}

// Book tracks one world.
type Book struct {
	view      *geometry.View
	predictor *load.Predictor
	hash      []byte            // layout of the open window
	counts    map[string]Counts // at the start of the window
	last      *Promise
	rate      float64 // bytes per second that transitions of this world moved; 0: unknown
	trust     float64 // share of the predicted gains that was achieved; 0: no prediction yet
}

const (
	// enough tokens per expert, on average: with fewer, most of the imbalance is chance.
	enough = 8
	// keepTrust is the weight of the earlier promises against the last one.
	keepTrust = .5
	// leastTrust: a forecast that has always failed is still accepted if it promises ten times MinGain.
	leastTrust = .1
	// regain is the factor of trust per window: no forecast is distrusted forever.
	regain = 1.02
)

// Look evaluates a window at its end. A window with too few tokens continues.
func (b *Book) Look(m *Moment, s Settings) *Report {
	r := &Report{At: m.At, Layout: m.Hash, Last: b.last}
	if m.Layout == nil || m.Geometry == nil {
		r.Why = "No layout is active."
		return r
	}
	if err := b.about(m.Geometry); err != nil {
		return r.failed(err)
	}
	if len(rebalance.Whole(m.Layout)) == 0 || len(m.Layout.Members) < 2 {
		r.Outcome, r.Why = NotExpert, "Experts are placed only in worlds with at least two ranks, and only in layers with whole experts (mode ExpertParallel, and some layers of mode Hybrid)."
		b.begin(m)
		return r
	}
	if b.counts == nil || !slices.Equal(b.hash, m.Hash) {
		b.begin(m)
		r.Why = "An observation window started. Its load is reported at its end."
		return r
	}
	window, err := b.window(m)
	if err != nil {
		b.begin(m)
		return r.failed(err)
	}
	r.Tokens = window.tokens
	if least := enough * b.view.MoELayers() * int(b.view.Proto.Experts); window.tokens < float64(least) {
		r.Why = fmt.Sprintf("The experts have received %.0f tokens in this window. The window continues until %d tokens, enough to distinguish skew from chance.", window.tokens, least)
		return r
	}
	b.begin(m)
	if err := b.read(r, m, window, s); err != nil {
		return r.failed(err)
	}
	return r
}

func (r *Report) failed(err error) *Report {
	r.Outcome, r.Why = Failed, fmt.Sprintf("The load could not be evaluated: %v.", err)
	return r
}

// about initializes the book for a model.
func (b *Book) about(g *tangramv1.Geometry) error {
	if b.view != nil {
		return nil
	}
	view, err := geometry.New(g)
	if err != nil {
		return fmt.Errorf("balance: %w", err)
	}
	predictor, err := load.NewPredictor(view.MoELayers(), int(view.Proto.Experts))
	if err != nil {
		return fmt.Errorf("balance: %w", err)
	}
	b.view, b.predictor = view, predictor
	return nil
}

// begin starts a window.
func (b *Book) begin(m *Moment) { b.hash, b.counts = m.Hash, m.Counts }

// window is the load of one window.
type window struct {
	routed   [][]float64   // [layer][expert] tokens
	sources  [][][]float64 // [layer][rank][expert] tokens routed by the rank
	executed [][]float64   // [layer][rank] tokens
	tokens   float64       // routed, over all layers
	parts    []float64     // of tokens, by routing rank; nil: some rank was not present for the whole window
}

// window computes the growth of the members' counts. A member that was not present at the start counts from the next
// window on.
func (b *Book) window(m *Moment) (*window, error) {
	layers, experts := b.view.MoELayers(), int(b.view.Proto.Experts)
	out := &window{routed: make([][]float64, layers), executed: make([][]float64, layers), sources: make([][][]float64, layers)}
	for l := range layers {
		out.sources[l] = make([][]float64, len(m.Layout.Members))
		for rank := range out.sources[l] {
			out.sources[l][rank] = make([]float64, experts)
		}
		out.routed[l], out.executed[l] = make([]float64, experts), make([]float64, len(m.Layout.Members))
	}
	executed, all := 0.0, true
	parts := make([]float64, len(m.Layout.Members))
	for rank, member := range m.Layout.Members {
		now, here := m.Counts[member.Id]
		was, there := b.counts[member.Id]
		if !here || !there {
			all = false
			continue
		}
		err := b.grown(member.Id, "routed", was.Routed, now.Routed, func(l, e int, n float64) {
			out.routed[l][e] += n
			out.sources[l][rank][e] += n
			parts[rank] += n
			out.tokens += n
		})
		if err != nil {
			return nil, err
		}
		err = b.grown(member.Id, "executed", was.Executed, now.Executed, func(l, _ int, n float64) {
			out.executed[l][rank] += n
			executed += n
		})
		if err != nil {
			return nil, err
		}
	}
	if out.tokens > 0 && executed == 0 {
		return nil, fmt.Errorf("balance: %.0f tokens were routed, but no rank reported an executed token; the engines must call tg_count_executed", out.tokens)
	}
	if all && out.tokens > 0 {
		for rank := range parts {
			parts[rank] /= out.tokens
		}
		out.parts = parts
	}
	return out, nil
}

// grown reports the growth of each count of a member.
func (b *Book) grown(id, what string, was, now []uint64, tell func(layer, expert int, n float64)) error {
	layers, experts := b.view.MoELayers(), int(b.view.Proto.Experts)
	if len(now) != layers*experts || len(was) != len(now) {
		return fmt.Errorf("balance: member %s reports tokens %s for %d (layer, expert) pairs, but the model has %d layers of %d experts", id, what, len(now), layers, experts)
	}
	for i, n := range now {
		if n < was[i] {
			return fmt.Errorf("balance: member %s, layer %d, expert %d: %d tokens %s, fewer than the %d before; counts must not shrink", id, i/experts, i%experts, n, what, was[i])
		}
		if n > was[i] {
			tell(i/experts, i%experts, float64(n-was[i]))
		}
	}
	return nil
}

// read evaluates a whole window: its balance, the result of the last promise, and the next placement.
func (b *Book) read(r *Report, m *Moment, w *window, s Settings) error {
	r.Layers = rebalance.Whole(m.Layout)
	held, err := rebalance.FromLayers(m.Layout, b.view, r.Layers, 0)
	if err != nil {
		return err
	}
	r.RankLoads = rebalance.Of(w.executed, r.Layers)
	if r.Balance, err = load.OfRanks(r.RankLoads, held.Lists()); err != nil {
		return err
	}
	if err := b.settle(r, m, w); err != nil {
		return err
	}
	if err := b.predictor.Observe(w.routed); err != nil {
		return err
	}
	wanted := rebalance.Settings{Redundant: s.Redundant, Automatic: s.Automatic, MaxMoves: s.MaxMoves, Price: b.price(s.PayBack),
		MinGain: s.MinGain, Sources: w.parts, Fits: func(p [][][]uint32) error { return b.fits(m, p) }}
	if b.trust > 0 {
		wanted.MinGain /= b.trust
	}
	d, err := rebalance.Decide(b.view, m.Layout, b.predictor.Forecast(), wanted)
	if err != nil {
		return err
	}
	r.Decision, r.Why = d, d.Why
	if b.trust > 0 && b.trust < .95 {
		r.Why += fmt.Sprintf(" Earlier rebalances achieved %.0f %% of their predicted gain.", 100*b.trust)
	}
	switch {
	case d.Placement != nil:
		r.Outcome = Move
	case d.Moves > 0:
		r.Outcome = NotWorth
	default:
		r.Outcome = Stay
	}
	return nil
}

// settle evaluates the last promise with the first whole window after it. It compares the executed tokens with the
// tokens that the window's routing would have put on each rank in the previous layout.
func (b *Book) settle(r *Report, m *Moment, w *window) error {
	if b.trust > 0 {
		b.trust = min(1, b.trust*regain)
	}
	if b.last == nil || b.last.Kept || !slices.Equal(b.last.layers, r.Layers) { // other layers have whole experts now
		return nil
	}
	var without load.Balance
	var err error
	if w.parts != nil && slices.Equal(b.last.members, idsOf(m.Layout)) {
		without, err = load.BalancednessFrom(rebalance.Of(w.sources, r.Layers), b.last.old)
	} else { // the ranks have changed: assume that each previous rank routed an equal part
		without, err = load.Balancedness(rebalance.Of(w.routed, r.Layers), b.last.old)
	}
	if err != nil {
		return err
	}
	p := *b.last
	p.Kept, p.Without, p.Measured, p.old, p.members = true, without.Aggregate, r.Balance.Aggregate, nil, nil
	if promised := p.Promised - p.Before; promised > 0 {
		kept := min(1, max(leastTrust, (p.Measured-p.Without)/promised))
		if b.trust > 0 {
			kept = keepTrust*b.trust + (1-keepTrust)*kept
		}
		b.trust = kept
	}
	b.last, r.Last = &p, &p
	return nil
}

// price of a move, as placement.Options.Price. It counts the whole copy, as if the engine were stopped, and takes a
// layer for an equal part of a step.
func (b *Book) price(payBack time.Duration) float64 {
	return placement.PriceOf(float64(b.view.PieceBytes(b.view.Granules)), b.rate, payBack.Seconds()/float64(b.view.MoELayers()), 1, 0)
}

// fits checks whether the world has the memory for a placement, with the plan that the transition would use.
func (b *Book) fits(m *Moment, placed [][][]uint32) error {
	in := planner.Input{World: m.World, Revision: m.Layout.Revision, Geometry: b.view, Current: m.Layout,
		Shape: layout.RangesOf(m.Layout).Shape(len(m.Layout.Layers), len(m.Layout.Members))}
	in.Shape.Placement = placed
	for _, r := range m.Ranks {
		in.Members = append(in.Members, planner.Member{Member: r.Member, Inventory: r.Inventory, MemoryBytes: r.MemoryBytes})
	}
	for _, member := range m.Layout.Members {
		in.Target = append(in.Target, member.Id)
	}
	_, err := planner.Plan(in)
	return err
}

// Moved records the byte rate of a transition, so the cost of a move is measured in the same world.
func (b *Book) Moved(bytes uint64, seconds float64) {
	if bytes == 0 || !(seconds > 0) || math.IsInf(seconds, 0) {
		return
	}
	rate := float64(bytes) / seconds
	if b.rate > 0 {
		rate = (b.rate + rate) / 2
	}
	b.rate = rate
}

// Done records that the proposal of a report was carried out.
func (b *Book) Done(at time.Time, r *Report, before *tangramv1.Layout) error {
	layers := rebalance.Whole(before)
	held, err := rebalance.FromLayers(before, b.view, layers, 0)
	if err != nil {
		return err
	}
	d := r.Decision
	b.last = &Promise{At: at, Moves: d.Moves, Bytes: d.Bytes, Before: d.Before, Promised: d.After, layers: layers, members: idsOf(before),
		old: held.Lists()}
	return nil
}

// idsOf returns the ids of a layout's members, by rank.
func idsOf(l *tangramv1.Layout) (ids []string) {
	for _, m := range l.Members {
		ids = append(ids, m.Id)
	}
	return ids
}
