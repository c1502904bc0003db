package rebalance

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/migration"
	"tangram.dev/operator/pkg/placement"
)

// Way of choosing a placement.
type Way struct {
	// Full looks for the best balance anew, and takes of it what is worth its moves (placement.Planner.Least); else what pays its price is changed.
	Full     bool
	Price    float64 // of a moved expert, as placement.Options.Price
	MaxMoves int     // over all layers; 0: no limit
	// Sources is the part of all tokens that each rank brings; nil: they bring as much. What is told of balance is by
	// them (load.RankLoadsFrom); the placement is chosen as if they brought as much.
	Sources []float64
}

// Choice of a placement, and what it was chosen among.
type Choice struct {
	Now   *placement.Placement
	Best  *placement.Result // of the same slots, whatever it moves
	Moves []migration.Move  // to Now, by round
	// Wanted is the number of moves without Way.MaxMoves.
	Wanted, Rounds           int
	Before, After, Reachable load.Balance // of the load that it was chosen for
}

// Choose a placement for a load by [layer][expert], from problem.Old on.
func Choose(problem *placement.Problem, loads [][]float64, way Way) (*Choice, error) {
	var planner placement.Planner
	best, err := planner.Full(problem, placement.Options{})
	if err != nil {
		return nil, err
	}
	o := placement.Options{Price: way.Price}
	var next *placement.Result
	if way.Full {
		next, err = planner.Least(problem, best, o)
	} else {
		next, err = planner.Incremental(problem, o)
	}
	if err != nil {
		return nil, err
	}
	c := &Choice{Now: next.Placement, Best: best, Wanted: next.Moved()}
	if way.MaxMoves > 0 && c.Wanted > way.MaxMoves {
		if c.Now, err = migration.Cycle(problem.Old, c.Now, loads, problem.Ranks, way.MaxMoves); err != nil {
			return nil, err
		}
	}
	if c.Moves, err = migration.Moves(problem.Old, c.Now, nil); err != nil {
		return nil, err
	}
	migration.Sources(c.Moves)
	c.Rounds = migration.Rounds(c.Moves)
	slices.SortStableFunc(c.Moves, func(a, b migration.Move) int { return int(a.Round - b.Round) })
	for _, x := range []struct {
		p  *placement.Placement
		to *load.Balance
	}{{problem.Old, &c.Before}, {c.Now, &c.After}, {best.Placement, &c.Reachable}} {
		if *x.to, err = balanceFrom(loads, way.Sources, x.p.Lists()); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func balanceFrom(loads [][]float64, sources []float64, p load.Placement) (load.Balance, error) {
	if sources == nil {
		return load.Balancedness(loads, p)
	}
	return load.BalancednessFrom(load.Sourced(loads, sources), p)
}

// Figures in one line; floor is the highest balancedness that so many slots can have.
func (c *Choice) Figures(floor float64) string {
	return fmt.Sprintf("balancedness %.3f now, %.3f after (worst layer %.3f, %.3f), %.3f reachable, %.3f at most", c.Before.Aggregate, c.After.Aggregate,
		c.Before.Worst, c.After.Worst, c.Reachable.Aggregate, floor)
}
