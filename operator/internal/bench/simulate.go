package bench

import (
	"fmt"
	"io"

	"tangram.dev/operator/internal/simcli"
)

// Simulate runs the conversation trace on one thread, without the time to read it and to compile the tables. It
// compares the time with an hour of its traffic.
func Simulate(out, progress io.Writer, quick bool) error {
	o := simcli.Defaults()
	o.Trace, o.Model = "conversation", "Qwen3-30B-A3B"
	w, err := simcli.Load(o, nil)
	if err != nil {
		return err
	}
	rounds := 9
	if quick {
		rounds = 3
	}
	end := alone()
	defer end()
	slowest, slowestSpeed := 0.0, 0.0
	metrics := map[string]any{"requests": len(w.Requests)}
	for _, name := range []string{"ExpertParallel", "TensorParallel", "calibrated"} {
		var simulated float64
		var steps uint64
		times, err := alternating(rounds, func() error {
			r, err := w.Play(name, nil)
			simulated, steps = r.Makespan, r.Steps
			return err
		})
		if err != nil {
			return fmt.Errorf("simulate: %s: %w", name, err)
		}
		seconds := middle(times[0]) / 1000
		if err := printLine(out, map[string]any{"bench": "simulate", "policy": name, "seconds": seconds, "simulated_seconds": simulated, "steps": steps,
			"ns_per_step": seconds * 1e9 / float64(steps)}); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(progress, "simulate: %s: %.3f s for %.0f s, %d steps\n", name, seconds, simulated, steps); err != nil {
			return err
		}
		metrics[name+"_seconds"] = seconds
		if seconds > slowest {
			slowest, slowestSpeed = seconds, simulated/seconds
		}
	}
	metrics["simulated_per_second"] = slowestSpeed
	return printLine(out, Summary{Bench: "simulate", Value: slowest, Unit: "seconds of one thread for the conversation trace, the slowest of two modes and calibrated", Ceiling: 1,
		Ratio: slowest, Metrics: metrics, Env: environment(quick)})
}
