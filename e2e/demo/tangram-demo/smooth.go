package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

func smoothCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "smooth", Short: "Benchmark smooth: gaps in streams in windows with transitions, compared with windows without", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return smooth(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/smooth", "folder for logs")
	c.Flags().StringVar(&o.checkpoint, "checkpoint", "build/models/deep", "folder of the checkpoint")
	o.rootFlag(c)
	return c
}

const (
	smoothTail  = 200 * time.Millisecond // after a transition: old banks are freed, sources closed
	smoothFirst = 700 * time.Millisecond // of a window while the duration of a transition is unknown
	smoothPaced = 100 * time.Millisecond // minimum step where cores are not the limit: two ranks need some 22 ms
	smoothTight = 50 * time.Millisecond  // minimum step that leaves half of the cores' time for a transition
)

// smoothCase is one world and its repeated transitions. Every case has the same number of transitions.
type smoothCase struct {
	Ranks int           // at rest
	Trace bool          // requests of a public trace; else streams that decode continuously
	Step  time.Duration // minimum; 0: as fast as the cores allow
	Fast  bool          // every other round uses strategy Fast
}

// kindOf names the minimum duration of a step.
func kindOf(step time.Duration) string {
	switch step {
	case 0:
		return "free"
	case smoothPaced:
		return "paced"
	}
	return fmt.Sprintf("paced_%d_ms", step.Milliseconds())
}

func (c smoothCase) name() string {
	load, pace := "decode", "free"
	if c.Trace {
		load = "trace"
	}
	if c.Step > 0 {
		pace = fmt.Sprintf("steps_%d_ms", c.Step.Milliseconds())
	}
	return fmt.Sprintf("%d_ranks_%s_%s", c.Ranks, load, pace)
}

func (c smoothCase) steps() []step {
	modes := []step{{"ExpertParallel -> TensorParallel", "TensorParallel", c.Ranks, false}, {"TensorParallel -> ExpertParallel", "ExpertParallel", c.Ranks, false}}
	if c.Ranks > 2 { // four ranks are enough for two cores
		return modes
	}
	return append(modes, step{fmt.Sprintf("%d -> %d ranks", c.Ranks, c.Ranks+1), "ExpertParallel", c.Ranks + 1, true},
		step{fmt.Sprintf("%d -> %d ranks", c.Ranks+1, c.Ranks), "ExpertParallel", c.Ranks, true})
}

func smoothCases() []smoothCase {
	var out []smoothCase
	for _, step := range []time.Duration{0, smoothPaced} {
		for _, trace := range []bool{false, true} {
			for _, ranks := range []int{2, 4} {
				out = append(out, smoothCase{Ranks: ranks, Trace: trace, Step: step})
			}
		}
	}
	return out
}

// smooth bench: transitions alternate with windows of the same length without; each window's figure is the longest time
// between two tokens of any stream, by clients' clocks. First tokens are separate: a new request waits for its prompt,
// with a transition or without.
func smooth(ctx context.Context, o options) error {
	transitions := 28 // of each case: 112 with cores as they are, and as many with steps of a real model's length
	cases := smoothCases()
	if os.Getenv("QUICK") != "" {
		transitions, cases = 8, slices.DeleteFunc(cases, func(c smoothCase) bool { return c.Trace || c.Ranks > 2 })
	}
	lines, metrics := json.NewEncoder(os.Stdout), map[string]any{}
	total, lost, requests, tokens := 0, 0, 0, 0
	worst, slowest := map[string]float64{}, map[string]float64{"free": math.Inf(1), "paced": math.Inf(1)}
	for _, c := range cases {
		pairs, results, err := smoothPairs(ctx, o, c, transitions)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		found := smoothFigures(pairs, results)
		for _, r := range results {
			tokens += len(r.Tokens)
			if r.Err != nil {
				lost++
			}
		}
		total, requests = total+len(pairs), requests+len(results)
		kind := kindOf(c.Step)
		for _, figure := range []string{"median", "p95"} {
			worst[kind+"_"+figure] = max(worst[kind+"_"+figure], found[figure+"_ratio"])
		}
		slowest[kind] = min(slowest[kind], found["rate_over_without"])
		line := map[string]any{"case": c.name(), "transitions": len(pairs)}
		for name, v := range found {
			line[name] = v
		}
		if err := lines.Encode(line); err != nil {
			return err
		}
		say("%s: longest waits %.0f ms, without %.0f (%.2f); 95th percentiles %.0f, %.0f (%.2f); the longest %.0f, %.0f; tokens/s over those without %.2f", c.name(), 1e3*found["median_seconds"], 1e3*found["median_without_seconds"],
			found["median_ratio"], 1e3*found["p95_seconds"], 1e3*found["p95_without_seconds"], found["p95_ratio"], 1e3*found["longest_seconds"], 1e3*found["longest_without_seconds"], found["rate_over_without"])
	}
	for name, v := range worst {
		metrics[name] = v
	}
	for kind, v := range slowest {
		metrics[kind+"_rate_over_without"] = v
	}
	metrics["transitions"], metrics["lost"], metrics["requests"], metrics["tokens"] = total, lost, requests, tokens
	return lines.Encode(map[string]any{"bench": "smooth", "value": worst["free_median"], "ratio": worst["free_median"], "ceiling": 1,
		"unit": "the longest time between two tokens of a stream in a transition over that in as long a time without, medians, the worst case", "metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU()}})
}

// smoothPairs runs one case in a separate world.
func smoothPairs(ctx context.Context, o options, c smoothCase, transitions int) ([]*pair, []*load.Result, error) {
	most := 0
	for _, s := range c.steps() {
		most = max(most, s.ranks)
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, c.name()), Checkpoint: o.checkpoint, Pods: slices.Repeat([]int{1}, most), MaxTokens: 640, LeastStep: c.Step})
	if err != nil {
		return nil, nil, err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, c.Ranks, "ExpertParallel", nil, nil); err != nil {
		return nil, nil, err
	}
	var end func() []*load.Result
	if c.Trace {
		trace, err := load.NewTrace(1, 6*time.Second)
		if err != nil {
			return nil, nil, err
		}
		stop, played := make(chan struct{}), make(chan []*load.Result, 1)
		go func() { played <- client(w).Play(ctx, trace, 2*c.Ranks, stop) }()
		end = func() []*load.Result { close(stop); return <-played }
	} else {
		end = keepAsking(ctx, w, 2*c.Ranks, 64, 512)
	}
	if err := sleep(ctx, 2*time.Second); err != nil {
		return nil, nil, err
	}
	var pairs []*pair
	lasts := map[string]time.Duration{}
	for len(pairs) < transitions {
		for _, s := range c.steps() {
			p := &pair{without: window{begin: time.Now()}}
			if lasts[s.name] == 0 {
				lasts[s.name] = smoothFirst
			}
			if err := sleep(ctx, lasts[s.name]); err != nil {
				return nil, nil, err
			}
			p.without.end, p.with.begin, p.during.begin = time.Now(), time.Now(), time.Now()
			p.fast = c.Fast && len(pairs)/len(c.steps())%2 == 1
			if p.fast {
				_, err = w.ApplyFast(ctx, s.ranks, s.mode, nil)
			} else {
				_, err = w.Apply(ctx, s.ranks, s.mode, nil, nil)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", s.name, err)
			}
			p.during.end = time.Now()
			if err := sleep(ctx, smoothTail); err != nil {
				return nil, nil, err
			}
			p.with.end = time.Now()
			lasts[s.name] = p.with.end.Sub(p.with.begin)
			p.name, p.resize = s.name, s.resize
			pairs = append(pairs, p)
		}
	}
	return pairs, end(), nil
}

// smoothFigures computes the figures of the windows from clients' tokens; seconds. Nothing is left out.
func smoothFigures(pairs []*pair, results []*load.Result) map[string]float64 {
	var with, without, firstWith, firstWithout, rates, lengths []float64
	for _, p := range pairs {
		for _, r := range results {
			p.with.see(r)
			p.without.see(r)
		}
		with, without = append(with, p.with.gap), append(without, p.without.gap)
		firstWith, firstWithout = append(firstWith, p.with.first), append(firstWithout, p.without.first)
		rates = append(rates, p.with.rate()/p.without.rate())
		lengths = append(lengths, p.with.end.Sub(p.with.begin).Seconds())
	}
	var all []float64 // all waits in windows with transitions
	for _, r := range results {
		for i := 1; i < len(r.Tokens); i++ {
			from, to := r.Tokens[i-1].At, r.Tokens[i].At
			if slices.ContainsFunc(pairs, func(p *pair) bool { return to.After(p.with.begin) && from.Before(p.with.end) }) {
				all = append(all, to.Sub(from).Seconds())
			}
		}
	}
	return map[string]float64{
		"median_seconds": median(with), "median_without_seconds": median(without), "median_ratio": median(with) / median(without),
		"p95_seconds": percentile(with, .95), "p95_without_seconds": percentile(without, .95), "p95_ratio": percentile(with, .95) / percentile(without, .95),
		"longest_seconds": slices.Max(with), "longest_without_seconds": slices.Max(without),
		"wait_p999_seconds": percentile(all, .999), "longest_over_p999": slices.Max(with) / percentile(all, .999),
		"first_token_p95_seconds": percentile(firstWith, .95), "first_token_p95_without_seconds": percentile(firstWithout, .95),
		"rate_over_without": median(rates), "window_seconds": median(lengths),
	}
}
