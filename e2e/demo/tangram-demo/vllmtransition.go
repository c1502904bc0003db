package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

func vllmTransitionCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "vllm-transition", Short: "the vllm-transition bench: what streams of vLLM's ranks see of resizes and switches", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return vllmTransition(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/vllm-transition", "folder of logs")
	o.rootFlag(c)
	return c
}

const (
	streamsOfVLLM = 6
	restOfVLLM    = 500 * time.Millisecond // after a transition, before anything else is looked at
)

// window of serving. What clients saw in it is known when their requests are over.
type window struct {
	begin, end time.Time
	gap        float64 // the longest time that a stream waited for a token, seconds
	tokens     int
}

func (w *window) rate() float64 { return float64(w.tokens) / w.end.Sub(w.begin).Seconds() }

// see what a request got in the window. A wait counts also if it began before or ended after; so does that for the first token.
func (w *window) see(r *load.Result) {
	last := r.Sent
	for _, token := range r.Tokens {
		if token.At.After(w.begin) && last.Before(w.end) {
			w.gap = max(w.gap, token.At.Sub(last).Seconds())
		}
		if token.At.After(w.begin) && !token.At.After(w.end) {
			w.tokens++
		}
		last = token.At
	}
}

// vllmTransition bench: six streams decode without a pause on two, then three ranks of vLLM, while these go from two to three, to experts cut over all
// and back, and to two; before each as long a time without. By clients' clocks: the longest wait for a token, and tokens in a second.
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
	if _, err := w.Apply(ctx, 2, "Expert", nil, nil); err != nil {
		return err
	}
	end := keepAsking(ctx, w, streamsOfVLLM)
	defer func() { _ = end() }() // where an error ended the rest
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	type pair struct{ with, without window }
	found := map[string][]*pair{}
	for range rounds {
		for _, s := range steps(2, 1) {
			lasts := 2 * time.Second // as long as it took last time, to be seen without
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
			gaps, usual, rates = append(gaps, p.with.gap), append(usual, p.without.gap), append(rates, p.with.rate()/p.without.rate())
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
	// Of all windows together, and of the slowest step: three ranks on two cores are slower than two, whatever moves.
	metrics["slowest_rate_over_before"] = slowest
	metrics["rate_over_before"], metrics["lost"], metrics["requests"], metrics["tokens"] = served/expected, lost, len(results), tokens
	return lines.Encode(map[string]any{"bench": "vllm-transition", "value": worst, "ratio": worst, "ceiling": 1, "unit": "longest wait of a stream for a token in a transition over that in as long a time without, medians, the worst transition",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "rounds": rounds, "streams": streamsOfVLLM}})
}

// keepAsking has so many streams, each with one request after another, until `end` lets the last ones finish and gives all.
func keepAsking(ctx context.Context, w *harness.World, streams int) (end func() []*load.Result) {
	const prompt, answer = 16, 400
	var mu sync.Mutex
	var results []*load.Result
	var wait sync.WaitGroup
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return ctx.Err() != nil
		}
	}
	for i := range streams {
		wait.Go(func() {
			// Streams do not end together: the first answers have lengths of their own.
			for n, tokens := 0, answer*(i+1)/streams; !stopped(); n, tokens = n+1, answer {
				request := load.Request{MaxTokens: tokens, TopP: 1}
				for j := range prompt {
					request.Prompt = append(request.Prompt, uint32(1+(i*31+n*17+j*7)%250))
				}
				r := client(w).Do(ctx, request)
				mu.Lock()
				results = append(results, r)
				mu.Unlock()
			}
		})
	}
	return sync.OnceValue(func() []*load.Result {
		close(stop)
		wait.Wait()
		return results
	})
}
