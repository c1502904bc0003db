package rebalance

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/migration"
	"tangram.dev/operator/pkg/placement"
)

// Way is how a placement is chosen.
type Way struct {
	// Full searches for the best balance from scratch, and keeps the parts worth their moves (placement.Planner.Least);
	// otherwise only changes that pay their price are made.
	Full     bool
	Price    float64 // of a moved expert, as placement.Options.Price
	MaxMoves int     // over all layers; 0: no limit
	// Sources is each rank's part of all tokens; nil: equal parts. The reported balance uses it (load.RankLoadsFrom),
	// but the placement is chosen as if the parts were equal.
	Sources []float64
}

// Choice is a placement, and its alternatives.
type Choice struct {
	Now   *placement.Placement
	Best  *placement.Result // of the same slots, with any number of moves
	Moves []migration.Move  // to Now, by round
	// Wanted is the number of moves without Way.MaxMoves.
	Wanted, Rounds           int
	Before, After, Reachable load.Balance // of the load that it was chosen for
}

// Choose a placement for a load by [layer][expert], starting from problem.Old.
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

// Figures formats one line; floor is the highest balancedness possible with these slots.
func (c *Choice) Figures(floor float64) string {
	return fmt.Sprintf("balancedness %.3f now, %.3f after (worst layer %.3f, %.3f), %.3f reachable, %.3f at most", c.Before.Aggregate, c.After.Aggregate,
		c.Before.Worst, c.After.Worst, c.Reachable.Aggregate, floor)
}
