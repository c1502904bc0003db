package bench

import (
	"fmt"
	"io"
	"math/rand/v2"

	"tangram.dev/operator/internal/bench/peers"
	"tangram.dev/operator/pkg/placement"
)

const smallCases = 2000

// EplbSmall compares full plans with the exact optimum by brute force.
func EplbSmall(out, progress io.Writer, quick bool) error {
	var p placement.Planner
	plan := func(c peers.Small) (float64, error) {
		r, err := p.Full(&placement.Problem{Layers: []placement.Layer{{Load: c.Load}}, Ranks: c.Ranks()}, placement.Options{})
		if err != nil {
			return 0, err
		}
		return r.Layers[0].Peak, nil
	}
	exact, least := 0, 1.0
	for i := range uint64(smallCases) {
		c := peers.NewSmall(rand.New(rand.NewPCG(i, 6)))
		got, err := plan(c)
		if err != nil {
			return fmt.Errorf("eplb-small: case %d: %w", i, err)
		}
		best := peers.Exact(c.Load, c.NumRanks, c.Slots)
		if got < best*(1-1e-9) {
			return fmt.Errorf("eplb-small: case %d: a peak of %v is below the optimum %v: brute force is wrong", i, got, best)
		}
		if got <= best*(1+1e-9) {
			exact++
		}
		if got > 0 && best/got < least {
			least = best / got
			if err := printLine(out, map[string]any{"bench": "eplb-small", "case": i, "load": c.Load, "ranks": c.NumRanks, "slots": c.Slots,
				"peak": got, "optimum": best}); err != nil {
				return err
			}
		}
	}
	show, err := plan(peers.Small{Load: peers.Showcase(), NumRanks: 8, Slots: 2})
	if err != nil {
		return fmt.Errorf("eplb-small: the showcase: %w", err)
	}
	best := peers.Exact(peers.Showcase(), 8, 2)
	share := float64(exact) / smallCases
	if _, err := fmt.Fprintf(progress, "eplb-small: %.2f %% exact, least %.4f, showcase %.2f (optimum %.2f)\n", 100*share, least, show, best); err != nil {
		return err
	}
	return printLine(out, Summary{Bench: "eplb-small", Value: least, Unit: "optimum over peak, least", Ceiling: 1, Ratio: least,
		Metrics: map[string]any{"cases": smallCases, "exact_share": share, "showcase": show, "showcase_optimum": best,
			"showcase_over_optimum": show / best}, Env: environment(quick)})
}
