package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/load"
)

func throughputDuringCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "throughput-during", Short: "Benchmark throughput-during: tokens/s during transitions and their duration, with strategies Smooth and Fast", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return throughputDuring(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/throughput-during", "folder for logs")
	c.Flags().StringVar(&o.checkpoint, "checkpoint", "build/models/deep", "folder of the checkpoint")
	o.rootFlag(c)
	return c
}

// throughputDuring bench: two ranks decode continuously while the world switches Expert -> Tensor -> Expert and resizes
// 2 -> 3 -> 2, alternately with strategy Smooth and Fast. Measured from the command to its end, by clients' clocks.
func throughputDuring(ctx context.Context, o options) error {
	rounds := 10
	if os.Getenv("QUICK") != "" {
		rounds = 4
	}
	lines, metrics := json.NewEncoder(os.Stdout), map[string]any{}
	lost, tokens := 0, 0
	for _, step := range []time.Duration{smoothPaced, smoothTight, 0} {
		kind := kindOf(step)
		c := smoothCase{Ranks: 2, Step: step, Fast: true}
		pairs, results, err := smoothPairs(ctx, o, c, rounds*len(c.steps()))
		if err != nil {
			return err
		}
		for _, r := range results {
			tokens += len(r.Tokens)
			if r.Err != nil {
				lost++
			}
			for _, p := range pairs {
				p.without.see(r)
				p.during.see(r)
			}
		}
		lasts := map[bool][]float64{}
		for _, resize := range []bool{false, true} {
			what := "switch"
			if resize {
				what = "resize"
			}
			seconds := map[bool]float64{}
			for _, fast := range []bool{false, true} {
				var rates, lengths, gaps []float64
				for _, p := range pairs {
					if p.fast == fast && p.resize == resize {
						rates = append(rates, p.during.rate()/p.without.rate())
						lengths = append(lengths, p.during.end.Sub(p.during.begin).Seconds())
						gaps = append(gaps, p.during.gap)
					}
				}
				name := "smooth"
				if fast {
					name = "fast"
				}
				seconds[fast] = median(lengths)
				lasts[fast] = append(lasts[fast], median(lengths))
				metrics[kind+"_"+what+"_"+name+"_rate_over_before"] = median(rates)
				if err := lines.Encode(map[string]any{"bench": "throughput-during", "steps": kind, "what": what, "strategy": name, "transitions": len(rates), "rate_over_before": median(rates), "seconds": median(lengths), "longest_gap_seconds": median(gaps)}); err != nil {
					return err
				}
				if what == "switch" {
					p := usual(pairs, fast)
					flips, err := flipsOf(filepath.Join(o.out, c.name(), "engine-p0-0.log"), p)
					if err != nil {
						return err
					}
					if err := lines.Encode(gapsOf(p, results, flips, step, name)); err != nil {
						return err
					}
				}
				say("%s, steps %s, %s: tokens/s over those before %.2f, %.2f s, the longest between two tokens %.0f ms", what, kind, name, median(rates), median(lengths), 1e3*median(gaps))
			}
			metrics[kind+"_"+what+"_over_fast"] = seconds[false] / seconds[true]
		}
		rate := math.Inf(1)
		for _, what := range []string{"switch", "resize"} {
			rate = min(rate, metrics[kind+"_"+what+"_smooth_rate_over_before"].(float64))
		}
		metrics[kind+"_rate_over_before"] = rate
		metrics[kind+"_over_fast"] = max(lasts[false][0]/lasts[true][0], lasts[false][1]/lasts[true][1])
	}
	metrics["lost"], metrics["tokens"] = lost, tokens
	return lines.Encode(map[string]any{"bench": "throughput-during", "value": metrics["paced_rate_over_before"], "ceiling": 1, "ratio": metrics["paced_rate_over_before"],
		"unit": "tokens/s from the command to its end over those before, medians, the worse of switch and resize, steps of 100 ms", "metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "rounds": rounds}})
}

// usual is a strategy's switch to mode TensorParallel with the median gap.
func usual(pairs []*pair, fast bool) *pair {
	var of []*pair
	for _, p := range pairs {
		if p.fast == fast && p.name == "ExpertParallel -> TensorParallel" {
			of = append(of, p)
		}
	}
	slices.SortFunc(of, func(a, b *pair) int { return cmp.Compare(a.during.gap, b.during.gap) })
	return of[len(of)/2]
}

// flipsOf returns the times of a transition's flips in the log of rank 0's engine.
func flipsOf(log string, p *pair) ([]time.Time, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	var out []time.Time
	for line := range strings.Lines(string(text)) {
		stamp, _, flipped := strings.Cut(line, "] [engine] [info] flip committed ")
		if !flipped {
			continue
		}
		at, err := time.ParseInLocation("[2006-01-02 15:04:05.000", stamp, time.Local)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", log, err)
		}
		if at.After(p.during.begin) && at.Before(p.with.end) {
			out = append(out, at)
		}
	}
	return out, nil
}

// gapsOf returns, for a plot, the tokens in the windows of a transition: arrival in seconds after the command, and
// milliseconds since the previous token; and the times of the flips.
func gapsOf(p *pair, results []*load.Result, flips []time.Time, step time.Duration, strategy string) map[string]any {
	at, gaps, flipped := []float64{}, []float64{}, []float64{}
	round := func(v float64) float64 { return math.Round(v*1e4) / 1e4 }
	for _, t := range flips {
		flipped = append(flipped, round(t.Sub(p.during.begin).Seconds()))
	}
	for _, r := range results {
		for i := 1; i < len(r.Tokens); i++ {
			if to := r.Tokens[i].At; to.After(p.without.begin) && to.Before(p.with.end) {
				at = append(at, round(to.Sub(p.during.begin).Seconds()))
				gaps = append(gaps, round(1e3*to.Sub(r.Tokens[i-1].At).Seconds()))
			}
		}
	}
	return map[string]any{"bench": "throughput-during", "plot": "gaps", "steps": kindOf(step), "step_ms": step.Milliseconds(), "strategy": strategy, "transition": p.name,
		"seconds": round(p.during.end.Sub(p.during.begin).Seconds()), "at": at, "gap_ms": gaps, "flips": flipped}
}
