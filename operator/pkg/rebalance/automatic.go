package rebalance

import (
	"errors"
	"fmt"

	"tangram.dev/operator/pkg/placement"
)

// choices is the maximum number of candidates for the number of redundant experts.
const choices = 9

// tried are the candidates: none, one on each rank (or more, if most is large), and so on to most.
func tried(most, ranks int) (numbers []int) {
	each := (most + ranks - 1) / ranks
	step := max(1, (each+choices-2)/(choices-1))
	for n := 0; n < each+step; n += step {
		numbers = append(numbers, min(n*ranks, most))
	}
	return numbers
}

// automatic chooses the fewest redundant experts that do as well as more would. Weights have their own memory, so the
// cost is the copying, not KV blocks (for shared memory, pkg/budget weighs both).
func (w *within) automatic(s Settings) (*Decision, error) {
	numbers := tried(s.Redundant, len(w.l.Members))
	var reach []float64
	best := 0.0
	for _, redundant := range numbers {
		problem, err := w.problem(redundant)
		if err != nil {
			return nil, err
		}
		var planner placement.Planner
		full, err := planner.Full(problem, placement.Options{})
		if err != nil {
			return nil, fmt.Errorf("rebalance: %w", err)
		}
		balance, _ := full.Balance()
		reach = append(reach, balance)
		best = max(best, balance)
	}
	chosen := 0
	for reach[chosen] < best-s.MinGain {
		chosen++
	}
	var tooBig error
	for i := chosen; i >= 0; i-- {
		with := s
		with.Redundant = numbers[i]
		d, err := w.decide(with)
		if errors.Is(err, ErrTooBig) {
			tooBig = err
			continue
		}
		if err != nil {
			return nil, err
		}
		d.Why += fmt.Sprintf(" With %d redundant experts per layer (limit %d, rounded up to whole slots per rank), balancedness %.3f is reachable, %.3f without, %.3f at best.", d.Redundant, s.Redundant,
			reach[i], reach[0], best)
		if tooBig != nil {
			d.Why += " More redundant experts do not fit in memory."
		}
		return d, nil
	}
	return nil, tooBig
}
