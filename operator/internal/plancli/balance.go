// Package plancli computes the reports of `tangram plan`, `tangram balance` and `tangram size`. It reads only the files that
// the command line names.
package plancli

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
	"tangram.dev/operator/pkg/rebalance"
)

// Modes of Balance.
const (
	Full        = "full"
	Incremental = "incremental"
)

// BalanceInput is the input of Balance.
type BalanceInput struct {
	Loads        [][]float64    // [layer][expert]
	Ranks, Nodes int            // ranks in order, spread as evenly as possible over the nodes
	Slots        int            // per rank and layer; 0: by Redundant
	Redundant    int            // slots per layer beyond one for each expert; rounded up to the same number on each rank
	Groups       int            // of experts that are routed together; 0: none
	Old          load.Placement // nil: one copy of each expert, in order
	Mode         string
	MaxMoves     int // 0: all that pay
	Price        float64
}

// Balanced has values of balancedness, mean over max; 1 is best.
type Balanced struct {
	Now       float64 `json:"now"`
	After     float64 `json:"after"`
	Reachable float64 `json:"reachable"` // by the best placement with this number of slots that the search finds
	Floor     float64 `json:"floor"`     // upper bound of any placement with this number of slots, with an even split
	Weighted  float64 `json:"weighted"`  // After, with the best split between replicas; exact
}

// LayerBalance is the balance of one layer.
type LayerBalance struct {
	Layer int `json:"layer"`
	Balanced
	Moves int `json:"moves"`
}

// Move of an expert. From is -1 if only the checkpoint has it.
type Move struct {
	Layer  int32 `json:"layer"`
	Expert int32 `json:"expert"`
	From   int32 `json:"from"`
	To     int32 `json:"to"`
	Round  int32 `json:"round"`
}

// BalanceReport is the result of Balance.
type BalanceReport struct {
	Experts   int     `json:"experts"`
	Ranks     int     `json:"ranks"`
	Nodes     int     `json:"nodes"`
	Slots     int     `json:"slotsPerRank"`
	Redundant int     `json:"redundantExperts"`
	Mode      string  `json:"mode"`
	Price     float64 `json:"price"`
	MaxMoves  int     `json:"maxMoves"`
	Demand    string  `json:"demand"`
	Old       string  `json:"old"`
	// All layers together (sum of means over sum of peaks), and the worst layer of each column.
	All    Balanced       `json:"all"`
	Worst  Balanced       `json:"worst"`
	Layers []LayerBalance `json:"layers"` // worst now first
	Moves  int            `json:"moves"`
	Wanted int            `json:"wanted"` // moves without MaxMoves
	Rounds int            `json:"rounds"`
	Why    string         `json:"why"`
	List   []Move         `json:"moveList"` // by round
	// Placement [layer][rank] experts, ascending. Weights of the best split: the share of its expert's tokens that each
	// replica serves.
	Placement [][][]int32   `json:"placement"`
	Weights   [][][]float64 `json:"weights"`
	Budget    *BudgetReport `json:"budget,omitempty"`
}

// Balance plans the placement of experts.
func Balance(in BalanceInput) (*BalanceReport, error) {
	r, problem, err := in.problem()
	if err != nil {
		return nil, err
	}
	asIs, err := placement.FromLists(in.Old, r.Experts, 0)
	if err != nil {
		return nil, fmt.Errorf("active placement: %w", err)
	}
	before, err := load.Balancedness(in.Loads, asIs.Lists()) // including duplicates on a rank
	if err != nil {
		return nil, fmt.Errorf("active placement: %w", err)
	}
	if in.Mode != Full && in.Mode != Incremental {
		return nil, fmt.Errorf("--mode is %q; want %s or %s", in.Mode, Full, Incremental)
	}
	c, err := rebalance.Choose(problem, in.Loads, rebalance.Way{Full: in.Mode == Full, Price: in.Price, MaxMoves: in.MaxMoves})
	if err != nil {
		return nil, err
	}
	c.Before = before
	if in.Mode == Full && c.After.Aggregate > c.Reachable.Aggregate { // both end near the bound; either may be closer
		c.Reachable = c.After
	}
	r.Wanted, r.Moves, r.Rounds = c.Wanted, len(c.Moves), c.Rounds
	r.List = make([]Move, 0, len(c.Moves))
	for _, m := range c.Moves {
		r.List = append(r.List, Move{Layer: m.Layer, Expert: m.Expert, From: m.Source, To: m.To, Round: m.Round})
	}
	if err := r.layers(in.Loads, problem, c); err != nil {
		return nil, err
	}
	r.All.Now, r.All.After, r.All.Reachable = c.Before.Aggregate, c.After.Aggregate, c.Reachable.Aggregate
	r.explain(c)
	return r, nil
}

// problem checks the input and converts it.
func (in *BalanceInput) problem() (*BalanceReport, *placement.Problem, error) {
	if err := load.Check(in.Loads); err != nil {
		return nil, nil, err
	}
	experts := len(in.Loads[0])
	switch {
	case in.Ranks < 1:
		return nil, nil, fmt.Errorf("number of ranks is %d; want at least 1", in.Ranks)
	case in.Nodes < 1 || in.Nodes > in.Ranks:
		return nil, nil, fmt.Errorf("number of nodes is %d; want 1 to %d, the number of ranks", in.Nodes, in.Ranks)
	case in.Redundant < 0 || in.Slots < 0 || in.MaxMoves < 0:
		return nil, nil, fmt.Errorf("found %d redundant experts, %d slots and a maximum of %d moves; want at least 0 each", in.Redundant, in.Slots, in.MaxMoves)
	case in.Slots > 0 && in.Redundant > 0:
		return nil, nil, fmt.Errorf("found both slots (%d) and redundant experts (%d); set one of them", in.Slots, in.Redundant)
	case in.Groups < 0 || in.Groups > 0 && experts%in.Groups != 0:
		return nil, nil, fmt.Errorf("number of groups is %d; want a divisor of the number of experts, %d", in.Groups, experts)
	}
	slots := in.Slots
	if slots == 0 {
		if experts+in.Redundant < in.Ranks {
			return nil, nil, fmt.Errorf("%d experts and %d redundant experts do not fill %d ranks; use at least %d redundant experts or fewer ranks",
				experts, in.Redundant, in.Ranks, in.Ranks-experts)
		}
		slots = (experts + in.Redundant + in.Ranks - 1) / in.Ranks
	}
	if slots*in.Ranks < experts {
		return nil, nil, fmt.Errorf("%d slots on each of %d ranks cannot hold one replica of each of %d experts; use at least %d slots", slots, in.Ranks, experts,
			(experts+in.Ranks-1)/in.Ranks)
	}
	r := &BalanceReport{Experts: experts, Ranks: in.Ranks, Nodes: in.Nodes, Slots: slots, Redundant: slots*in.Ranks - experts, Mode: in.Mode,
		Price: in.Price, MaxMoves: in.MaxMoves, Old: "from the input"}
	problem := &placement.Problem{}
	for _, row := range in.Loads {
		problem.Layers = append(problem.Layers, placement.Layer{Load: row})
	}
	for g := range in.Ranks {
		problem.Ranks = append(problem.Ranks, placement.Rank{Slots: slots, Node: g * in.Nodes / in.Ranks})
	}
	if in.Groups > 0 {
		for e := range experts {
			problem.Groups = append(problem.Groups, e*in.Groups/experts)
		}
	}
	if in.Old == nil {
		in.Old, r.Old = inOrder(len(in.Loads), experts, in.Ranks), "one replica of each expert, in order"
	}
	if len(in.Old) != len(in.Loads) {
		return nil, nil, fmt.Errorf("active placement has %d layers; want %d, the number of layers of the load", len(in.Old), len(in.Loads))
	}
	var err error
	problem.Old, err = placement.FromLists(once(in.Old), experts, slots)
	return r, problem, err
}

// inOrder places one copy of each expert on the ranks in order.
func inOrder(layers, experts, ranks int) load.Placement {
	p := make(load.Placement, layers)
	for l := range p {
		p[l] = make([][]int32, ranks)
		for e := range experts {
			r := e * ranks / experts
			p[l][r] = append(p[l][r], int32(e))
		}
	}
	return p
}

// once removes duplicates of an expert on one rank, which are of no use (engines' own maps may have some).
func once(p load.Placement) [][][]int32 {
	out := make([][][]int32, len(p))
	for l, ranks := range p {
		for _, held := range ranks {
			seen, kept := map[int32]bool{}, make([]int32, len(held))
			for s, e := range held {
				if kept[s] = e; seen[e] {
					kept[s] = placement.Empty
				}
				seen[e] = true
			}
			out[l] = append(out[l], kept)
		}
	}
	return out
}

// layers fills the results by layer, the upper bounds, and the worst of each column.
func (r *BalanceReport) layers(loads [][]float64, problem *placement.Problem, c *rebalance.Choice) error {
	moved := make([]int, len(loads))
	for _, m := range r.List {
		moved[m.Layer]++
	}
	r.Worst = Balanced{c.Before.Worst, c.After.Worst, c.Reachable.Worst, 1, 1}
	means, floors, splits := 0.0, 0.0, 0.0
	for l, row := range loads {
		total := 0.0
		for _, w := range row {
			total += w
		}
		mean, even := total/float64(r.Ranks), placement.EvenFloor(row, problem.Ranks)
		split, weight, err := placement.WeightedFloor(row, c.Now, l, problem.Ranks)
		if err != nil {
			return err
		}
		means, floors, splits = means+mean, floors+even, splits+split
		b := LayerBalance{Layer: l, Moves: moved[l], Balanced: Balanced{c.Before.Layers[l], c.After.Layers[l], c.Reachable.Layers[l], over(mean, even), over(mean, split)}}
		r.Worst.Floor, r.Worst.Weighted = min(r.Worst.Floor, b.Floor), min(r.Worst.Weighted, b.Weighted)
		r.Layers = append(r.Layers, b)
		experts, weights := ascending(c.Now, l, weight)
		r.Placement, r.Weights = append(r.Placement, experts), append(r.Weights, weights)
	}
	r.All.Floor, r.All.Weighted = over(means, floors), over(means, splits)
	slices.SortStableFunc(r.Layers, func(a, b LayerBalance) int {
		switch {
		case a.Now < b.Now:
			return -1
		case a.Now > b.Now:
			return 1
		}
		return 0
	})
	return nil
}

func over(mean, peak float64) float64 {
	if peak <= 0 {
		return 1
	}
	return min(1, mean/peak)
}

// ascending returns a layer's experts by rank, sorted, with the weight of each.
func ascending(p *placement.Placement, l int, weight []float64) (experts [][]int32, weights [][]float64) {
	for r := range p.Ranks() {
		held := p.Rank(l, r)
		order := []int{}
		for s, e := range held {
			if e != placement.Empty {
				order = append(order, s)
			}
		}
		slices.SortFunc(order, func(a, b int) int { return int(held[a] - held[b]) })
		row, part := make([]int32, len(order)), make([]float64, len(order))
		for i, s := range order {
			row[i], part[i] = held[s], weight[int(p.Start[r])+s]
		}
		experts, weights = append(experts, row), append(weights, part)
	}
	return experts, weights
}

func (r *BalanceReport) explain(c *rebalance.Choice) {
	figures := c.Figures(r.All.Floor)
	if r.Moves == 0 {
		r.Why = "no expert moves: " + figures
		switch {
		case r.Wanted > 0:
			r.Why = fmt.Sprintf("no expert moves: no subset of the %d useful moves within the limit of %d improves the balance: %s", r.Wanted, r.MaxMoves, figures)
		case r.Mode == Incremental && r.Price > 0:
			r.Why = fmt.Sprintf("no expert moves: no move is worth its price of %g: %s", r.Price, figures)
		}
		return
	}
	r.Why = fmt.Sprintf("%s in %s", plural(r.Moves, "move"), plural(r.Rounds, "round"))
	if r.Moves < r.Wanted {
		r.Why += fmt.Sprintf(", the best of %d useful moves within the limit of %d", r.Wanted, r.MaxMoves)
	}
	r.Why += ": " + figures
}
