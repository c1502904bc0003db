package bench

import (
	"fmt"
	"io"
	"math"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/simulator"
)

// Rollout simulates steps of reinforcement learning: batches whose number of sequences only falls. It prints the
// makespans of the better mode for all steps, and of the better mode for each step, over ours.
func Rollout(out, progress io.Writer, quick bool) error {
	steps, sequences := 9, 2048
	if quick {
		steps = 2
	}
	metrics := map[string]any{}
	gapHolds, boundHolds, least, leastPerStep := 0.0, 0.0, math.Inf(1), math.Inf(1)
	for _, engine := range engines {
		o := simcli.Defaults()
		o.Truth = engine
		sums := map[string]float64{}
		perStep, switches, foreseen := 0.0, 0, 0.0
		var gap [2]float64
		for i := range steps {
			w, err := simcli.Make(o, simulator.Rollout(sequences, simulator.Tail(), uint64(i)))
			if err != nil {
				return fmt.Errorf("rollout: %w", err)
			}
			gap = kernelGap(w.Config)
			one := map[string]float64{}
			for _, name := range []string{"ExpertParallel", "TensorParallel", "rollout", "calibrated"} {
				r, err := w.Play(name, nil)
				if err != nil {
					return fmt.Errorf("rollout: %s: %w", name, err)
				}
				one[name] = r.Makespan
				sums[name] += r.Makespan
				if name == "calibrated" {
					switches += len(r.Switches)
				}
			}
			perStep += min(one["ExpertParallel"], one["TensorParallel"])
			foreseen += foreseenMakespan(w.Config, w.Requests)
		}
		over := min(sums["ExpertParallel"], sums["TensorParallel"]) / sums["calibrated"]
		overPerStep := perStep / sums["calibrated"]
		bound := min(sums["ExpertParallel"], sums["TensorParallel"]) / foreseen
		holds := gap[0] >= 1.3 && gap[1] <= .8
		if holds {
			gapHolds, boundHolds = max(gapHolds, over), max(boundHolds, bound)
		}
		least, leastPerStep = min(least, over), min(leastPerStep, overPerStep)
		if err := printLine(out, map[string]any{"bench": "rollout", "truth": engine, "makespan_s": sums, "better_static_over_ours": over, "best_per_step_over_ours": overPerStep, "better_static_over_bound": bound, "bound_s": foreseen,
			"expert_over_tensor_8": gap[0], "expert_over_tensor_1024": gap[1], "published_gap_holds": holds, "switches": switches, "steps": steps}); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(progress, "rollout: %s: ExpertParallel %.0f s, TensorParallel %.0f s, rollout %.0f s, calibrated %.0f s, no schedule below %.0f s; step ExpertParallel/TensorParallel %.2f at 8, %.2f at 1,024\n", engine,
			sums["ExpertParallel"], sums["TensorParallel"], sums["rollout"], sums["calibrated"], foreseen, gap[0], gap[1]); err != nil {
			return err
		}
	}
	if err := rolloutCases(out, progress, sequences, quick); err != nil {
		return fmt.Errorf("rollout: %w", err)
	}
	metrics["bound_over_static"] = boundHolds
	metrics["worst_over_static"], metrics["worst_over_best_per_step"], metrics["sequences"] = least, leastPerStep, steps*sequences
	return printLine(out, Summary{Bench: "rollout", Value: gapHolds, Unit: "better static's makespan over ours, where the published kernel gap holds", Ceiling: 1.16, Ratio: gapHolds,
		Metrics: metrics, Env: environment(quick)})
}

// foreseenMakespan is a lower bound of a batch's makespan. It knows each answer's length, uses the better mode in each
// step, switches at no cost, and has the larger KV of the two modes. Sequences are admitted in order as KV becomes
// free, as in the simulator, but KV is one pool; prompts cost nothing. No schedule of the two modes in that order is
// shorter.
func foreseenMakespan(c simulator.Config, requests []simulator.Request) float64 {
	room := 0
	for _, m := range c.Modes {
		room = max(room, m.GroupTokens*m.Truth.Shape().Groups())
	}
	type left struct{ tokens, need, context int }
	var live []left
	seconds, used, next := 0.0, 0, 0
	for next < len(requests) || len(live) > 0 {
		for ; next < len(requests); next++ {
			q := &requests[next]
			if need := q.Prompt + q.Output; used+need > room {
				break
			}
			used += q.Prompt + q.Output
			live = append(live, left{q.Output, q.Prompt + q.Output, q.Prompt})
		}
		// Until the first of them ends, only the contexts change: they grow.
		steps, context := live[0].tokens, 0
		for _, l := range live {
			steps, context = min(steps, l.tokens), context+l.context
		}
		steps = min(steps, 64) // during which contexts keep their initial length
		best := math.Inf(1)
		for _, m := range c.Modes {
			groups := m.Truth.Shape().Groups()
			each := len(live) / groups // rounded down: a bound
			if each == 0 {
				each = 1
			}
			best = min(best, m.Truth.Even(kernels.Load{Decode: each, Context: each * context / len(live)}, len(live)))
		}
		seconds += float64(steps) * best
		keep := live[:0]
		for _, l := range live {
			if l.tokens -= steps; l.tokens > 0 {
				l.context += steps
				keep = append(keep, l)
			} else {
				used -= l.need
			}
		}
		live = keep
	}
	return seconds
}

// kernelGap is the step duration in mode ExpertParallel over that in TensorParallel, with few requests and with many.
// Published (arXiv 2606.26607): 52 over 37 ms at low load, and the reverse order at high load.
func kernelGap(c simulator.Config) [2]float64 {
	at := func(n int) float64 {
		var seconds []float64
		for _, m := range c.Modes {
			each := max(1, n/m.Truth.Shape().Groups())
			seconds = append(seconds, m.Truth.Even(kernels.Load{Decode: each, Context: each * 2048}, n))
		}
		return seconds[0] / seconds[1]
	}
	return [2]float64{at(8), at(1024)}
}

// rolloutCase has parameters on which the gain of a switch within a step may depend.
type rolloutCase struct {
	tail   simulator.LongTail
	rankGB float64
}

// enoughGB of a rank: all sequences are admitted immediately.
const enoughGB = 1000

// rolloutCases searches for cases with the published gain: other answer lengths, KV for all sequences, and the
// threshold of requests that is best in hindsight.
func rolloutCases(out, progress io.Writer, sequences int, quick bool) error {
	on, steps, medians, sigmas := engines, 2, []float64{500, 1500, 4000}, []float64{.8, 1.2}
	if quick {
		on, steps, medians, sigmas = []string{"vllm"}, 1, medians[1:2], sigmas[1:]
	}
	for _, engine := range on {
		for _, gb := range []float64{simcli.Defaults().RankGB, enoughGB} {
			for _, median := range medians {
				for _, sigma := range sigmas {
					tail := simulator.Tail()
					tail.Median, tail.Sigma = median, sigma
					line, err := rolloutCase{tail, gb}.play(engine, sequences, steps)
					if err != nil {
						return err
					}
					if err := printLine(out, line); err != nil {
						return err
					}
					if _, err := fmt.Fprintf(progress, "rollout: %s, %.0f GB, median %.0f, sigma %.1f: ours %.3f, the best threshold (%v) %.3f\n", engine, gb, median, sigma,
						line["better_static_over_ours"], line["best_threshold"], line["better_static_over_best_threshold"]); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (c rolloutCase) play(engine string, sequences, steps int) (map[string]any, error) {
	o := simcli.Defaults()
	o.Truth, o.RankGB = engine, c.rankGB
	sums, thresholds := map[string]float64{}, map[int]float64{}
	for i := range steps {
		w, err := simcli.Make(o, simulator.Rollout(sequences, c.tail, uint64(i)))
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"ExpertParallel", "TensorParallel", "calibrated"} {
			r, err := w.Play(name, nil)
			if err != nil {
				return nil, err
			}
			sums[name] += r.Makespan
		}
		for at := 8; at <= 1024; at *= 2 {
			r, err := simulator.Run(w.Config, w.Requests, policy.NewThreshold(policy.Thresholds{High: at, Low: at, Window: 1}), nil)
			if err != nil {
				return nil, err
			}
			thresholds[at] += r.Makespan
		}
	}
	best := 8
	for at, makespan := range thresholds {
		if makespan < thresholds[best] || makespan == thresholds[best] && at < best {
			best = at
		}
	}
	static := min(sums["ExpertParallel"], sums["TensorParallel"])
	return map[string]any{"bench": "rollout", "case": "lengths", "truth": engine, "rank_gb": c.rankGB, "median": c.tail.Median, "sigma": c.tail.Sigma, "makespan_s": sums,
		"better_static_over_ours": static / sums["calibrated"], "better_static_over_best_threshold": static / thresholds[best], "best_threshold": best, "steps": steps}, nil
}
