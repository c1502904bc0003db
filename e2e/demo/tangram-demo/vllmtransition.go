package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
)

func vllmTransitionCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "vllm-transition", Short: "Benchmark vllm-transition: gaps and tokens/s of vLLM streams during resizes and mode switches", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return vllmTransition(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/vllm-transition", "folder for logs")
	o.rootFlag(c)
	return c
}

const (
	streamsOfVLLM = 6
	restOfVLLM    = 500 * time.Millisecond // after a transition, before the next measurement
)

// vllmTransition bench: six streams decode continuously on vLLM ranks, which go from two to three, to sharded experts
// and back, and to two; before each transition a window of the same length without. By clients' clocks: the longest
// wait for a token, and tokens per second.
func vllmTransition(ctx context.Context, o options) error {
	rounds := 5
	if os.Getenv("QUICK") != "" {
		rounds = 1
	}
	checkpoint, err := harness.Checkpoint(ctx, o.root, vllmPreset)
	if err != nil {
		return err
	}
	h := harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint, Pods: []int{1, 1, 1}, Granule: 16, MaxTokens: 512}
	if err := vllmOn(&h, ""); err != nil {
		return err
	}
	w, err := harness.Start(ctx, h)
	if err != nil {
		return err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, 2, "ExpertParallel", nil, nil); err != nil {
		return err
	}
	end := keepAsking(ctx, w, streamsOfVLLM, 16, 400)
	defer func() { _ = end() }() // stops the streams after an error
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	found := map[string][]*pair{}
	for range rounds {
		for _, s := range steps(2, 1) {
			lasts := 2 * time.Second // length of the window without, from the previous transition
			if before := found[s.name]; len(before) > 0 {
				lasts = before[len(before)-1].with.end.Sub(before[len(before)-1].with.begin)
			}
			p := &pair{without: window{begin: time.Now()}}
			if err := sleep(ctx, lasts); err != nil {
				return err
			}
			p.without.end, p.with.begin = time.Now(), time.Now()
			if _, err := w.Apply(ctx, s.ranks, s.mode, nil, nil); err != nil {
				return err
			}
			if err := sleep(ctx, restOfVLLM); err != nil {
				return err
			}
			p.with.end = time.Now()
			found[s.name] = append(found[s.name], p)
			say("%s in %.2f s", s.name, p.with.end.Sub(p.with.begin).Seconds()-restOfVLLM.Seconds())
		}
	}
	results := end()
	lines, metrics, worst, slowest, served, expected := json.NewEncoder(os.Stdout), map[string]any{}, 0.0, math.Inf(1), 0.0, 0.0
	for name, pairs := range found {
		var gaps, usual, rates []float64
		for _, p := range pairs {
			for _, r := range results {
				p.with.see(r)
				p.without.see(r)
			}
			gaps, usual, rates = append(gaps, max(p.with.gap, p.with.first)), append(usual, max(p.without.gap, p.without.first)), append(rates, p.with.rate()/p.without.rate())
			served += float64(p.with.tokens)
			expected += p.without.rate() * p.with.end.Sub(p.with.begin).Seconds()
		}
		ratio, rate := median(gaps)/median(usual), median(rates)
		worst, slowest = max(worst, ratio), min(slowest, rate)
		if err := lines.Encode(map[string]any{"transition": name, "longest_gap_seconds": median(gaps), "without_seconds": median(usual), "ratio": ratio, "rate_over_before": rate, "windows": len(pairs)}); err != nil {
			return err
		}
	}
	lost, tokens := 0, 0
	for _, r := range results {
		tokens += len(r.Tokens)
		if r.Err != nil {
			lost++
		}
	}
	// Over all windows together, and for the slowest step. Three ranks on two cores are slower than two, with or
	// without a transition.
	metrics["slowest_rate_over_before"] = slowest
	metrics["rate_over_before"], metrics["lost"], metrics["requests"], metrics["tokens"] = served/expected, lost, len(results), tokens
	return lines.Encode(map[string]any{"bench": "vllm-transition", "value": worst, "ratio": worst, "ceiling": 1, "unit": "longest wait of a stream for a token in a transition over that in as long a time without, medians, the worst transition",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "rounds": rounds, "streams": streamsOfVLLM}})
}
