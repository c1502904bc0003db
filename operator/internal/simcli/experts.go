package simcli

import (
	"fmt"
	"io"

	"tangram.dev/operator/internal/plancli"
	"tangram.dev/operator/pkg/load"
)

// Experts is the load of a model's experts, and the limit of redundant ones.
type Experts struct {
	File, Format string  // a recorded load; or
	Skew         float64 // skew of the drawn popularities: sigma of their logarithms
	Redundant    int     // limit of slots per layer beyond one for each expert
}

func (e Experts) said() bool { return e.File != "" || e.Skew != 0 }

const (
	drawnWindows     = 8
	drawnAssignments = 32768 // tokens of a window times experts per token
)

// windows returns the windows of the load, for a model of this size.
func (e Experts) windows(layers, experts int, seed uint64, stdin io.Reader) ([][][]float64, error) {
	switch {
	case !e.said():
		if e.Redundant != 0 {
			return nil, fmt.Errorf("found --redundant-experts %d without an expert load: set --expert-load or --expert-skew", e.Redundant)
		}
		return nil, nil
	case e.File != "" && e.Skew != 0:
		return nil, fmt.Errorf("found both --expert-load and --expert-skew; set one of them")
	case e.Redundant < 0 || e.Redundant > 8*experts:
		return nil, fmt.Errorf("--redundant-experts is %d; want 0 to %d, eight times the number of experts", e.Redundant, 8*experts)
	}
	if e.File == "" {
		g, err := load.NewLogNormal(load.Shape{Layers: layers, Experts: experts, Assignments: drawnAssignments, Seed: seed}, e.Skew, 1)
		if err != nil {
			return nil, fmt.Errorf("--expert-skew: %w", err)
		}
		var out [][][]float64
		for range drawnWindows {
			out = append(out, g.Next())
		}
		return out, nil
	}
	t, _, err := plancli.ReadLoads(e.File, e.Format, load.Options{}, stdin)
	if err != nil {
		return nil, fmt.Errorf("--expert-load: %w", err)
	}
	if n := len(t.Windows[0][0]); n != experts {
		return nil, fmt.Errorf("--expert-load: %s has %d experts per layer; want %d, as in the model", e.File, n, experts)
	}
	return t.Windows, nil
}

// slots returns the numbers of slots per rank and layer to try: one for each expert, and 1, 2, 4, ... more, up to the
// limit. On one rank, replicas are of no use.
func (e Experts) slots(experts, ranks int) []int {
	least := (experts + ranks - 1) / ranks
	out := []int{least}
	for more := 1; ranks > 1 && (least+more)*ranks-experts <= e.Redundant; more *= 2 {
		out = append(out, least+more)
	}
	return out
}

// imbalance of the best placement that the planner finds: the load of the busiest rank over the mean, averaged over
// windows and layers. The first half of the windows is for planning and the second for judging, because a plan looks
// too good on its own windows. A single window is used for both.
func imbalance(windows [][][]float64, ranks, slots int) (float64, error) {
	half := len(windows) / 2
	before, after := windows[:max(half, 1)], windows[half:]
	sum := make([][]float64, len(windows[0]))
	for l := range sum {
		sum[l] = make([]float64, len(windows[0][l]))
		for _, w := range before {
			for i, n := range w[l] {
				sum[l][i] += n
			}
		}
	}
	placed, err := plancli.Balance(plancli.BalanceInput{Loads: sum, Ranks: ranks, Nodes: 1, Slots: slots, Mode: plancli.Full})
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, w := range after {
		b, err := load.Balancedness(w, placed.Placement)
		if err != nil {
			return 0, err
		}
		total += 1 / b.Aggregate
	}
	return total / float64(len(after)), nil
}
