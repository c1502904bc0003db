package plancli

import (
	"fmt"

	"tangram.dev/operator/pkg/budget"
	"tangram.dev/operator/pkg/placement"
)

// CurvePoint is the balance with this number of redundant experts per layer.
type CurvePoint struct {
	Redundant int     `json:"redundant"`
	Reachable float64 `json:"reachable"`
	Floor     float64 `json:"floor"`
}

// BudgetReport is the curve, and the choice if the costs were measured.
type BudgetReport struct {
	Curve  []CurvePoint   `json:"curve"`
	Choice *budget.Choice `json:"choice,omitempty"`
}

// Curve computes the balance by redundant experts: 0, one more per rank, ... up to `most`. costs nil: no choice. It
// fills the curve, ranks and layers of costs.
func Curve(loads [][]float64, ranks, nodes, most int, costs *budget.Input) (*BudgetReport, error) {
	if most < 1 {
		return nil, fmt.Errorf("--budget-curve is %d; want at least 1 redundant expert", most)
	}
	experts := len(loads[0])
	out := &BudgetReport{}
	var planner placement.Planner
	for redundant := max(0, ranks-experts); redundant <= most; redundant += ranks {
		problem := &placement.Problem{}
		for _, row := range loads {
			problem.Layers = append(problem.Layers, placement.Layer{Load: row})
		}
		slots := experts + redundant
		for g := range ranks { // the first ranks have one more if the slots do not divide evenly
			problem.Ranks = append(problem.Ranks, placement.Rank{Slots: (slots + ranks - 1 - g) / ranks, Node: g * nodes / ranks})
		}
		best, err := planner.Full(problem, placement.Options{})
		if err != nil {
			return nil, err
		}
		p := CurvePoint{Redundant: redundant}
		p.Reachable, _ = best.Balance()
		means, floors := 0.0, 0.0
		for l, f := range best.Layers {
			means, floors = means+f.Mean, floors+placement.EvenFloor(loads[l], problem.Ranks)
		}
		p.Floor = over(means, floors)
		out.Curve = append(out.Curve, p)
	}
	if costs == nil {
		return out, nil
	}
	in := *costs
	in.Ranks, in.Layers, in.Curve = ranks, len(loads), nil
	for _, p := range out.Curve {
		in.Curve = append(in.Curve, budget.Point{Redundant: p.Redundant, Balance: p.Reachable})
	}
	var err error
	out.Choice, err = budget.Choose(in)
	return out, err
}
