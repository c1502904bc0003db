package bench

import (
	"fmt"
	"io"
	"slices"
	"time"

	"tangram.dev/operator/internal/simcli"
)

// hybridsTried in addition to the two modes: experts sliced over all ranks with each request's heads on one rank, alone
// and with others.
var hybridsTried = [][]string{{"all/1"}, {"all/1", "all/2", "1/2"}}

// PolicyHybrids simulates the four traces of Policy on three engines' kernels under the calibrated policy, with only
// the two modes and with hybrids in addition. The result is the sum of latencies with hybrids over that without.
func PolicyHybrids(out, progress io.Writer, quick bool) error {
	traces, on := policyTraces(), engines
	if quick {
		traces, on = traces[2:], []string{"sglang"}
	}
	begin := time.Now()
	over := make([][]float64, len(hybridsTried))
	for _, t := range traces {
		for _, engine := range on {
			t.options.Truth = engine
			alone, err := hybridLatency(t.options, nil)
			if err != nil {
				return fmt.Errorf("policy-hybrids: %s, %s: %w", t.name, engine, err)
			}
			line := map[string]any{"bench": "policy-hybrids", "trace": t.name, "truth": engine, "prior": simcli.Other(engine), "mean_latency_s": alone}
			for i, names := range hybridsTried {
				with, err := hybridLatency(t.options, names)
				if err != nil {
					return fmt.Errorf("policy-hybrids: %s, %s, %v: %w", t.name, engine, names, err)
				}
				over[i] = append(over[i], with/alone)
				line[fmt.Sprintf("with %v", names)] = with / alone
			}
			if err := printLine(out, line); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(progress, "policy-hybrids: %s on %s: %.3f of the two modes' latencies with %v, %.3f with %v; %.0f s\n", t.name, engine, over[0][len(over[0])-1], hybridsTried[0],
				over[1][len(over[1])-1], hybridsTried[1], time.Since(begin).Seconds()); err != nil {
				return err
			}
		}
	}
	best := slices.Min(over[0])
	return printLine(out, Summary{Bench: "policy-hybrids", Value: best, Unit: "sum of latencies with experts sliced and attention by data to choose, over that with the two modes alone, where it is worth most", Ceiling: 1, Ratio: best,
		Env: environment(quick), Metrics: map[string]any{"worst": slices.Max(over[0]), "median": middle(over[0]), "worst_of_three": slices.Max(over[1]), "median_of_three": middle(over[1]), "cases": len(over[0]),
			"seconds": time.Since(begin).Seconds()}})
}

func hybridLatency(o simcli.Options, hybrids []string) (float64, error) {
	o.Hybrids = hybrids
	w, err := simcli.Load(o, nil)
	if err != nil {
		return 0, err
	}
	r, err := w.Play("calibrated", nil)
	return r.LatencySum / float64(max(r.Requests, 1)), err
}
