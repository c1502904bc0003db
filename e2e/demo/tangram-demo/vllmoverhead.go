package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
)

func vllmOverheadCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "vllm-overhead", Short: "Benchmark vllm-overhead: tokens/s of a served vLLM rank, compared with stock vLLM in a process", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return vllmOverhead(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/vllm-overhead", "folder for logs")
	c.Flags().Uint64Var(&o.seed, "seed", 1, "random seed of prompts")
	o.rootFlag(c)
	return c
}

const (
	overheadPrompt = 16
	overheadAnswer = 32
)

type overheadCase struct {
	Preset  string `json:"model"`
	Dtype   string `json:"dtype"`
	Ranks   int    `json:"ranks"`
	granule int
	memory  uint64 // of weights, with reserve
	judged  bool   // false: printed only
}

// vllmOverhead bench: the same requests alternately to a vLLM rank in a world, through its gRPC and the gateway, and to
// a stock vLLM process, on one processor; gateway and client use the other. Two ranks are compared with stock vLLM with
// data parallelism of two and expert parallelism, all on both processors. A ratio is the median over rounds of our
// tokens per second over stock's, prefill included.
func vllmOverhead(ctx context.Context, o options) error {
	cases := []overheadCase{
		{"demo-f32", "float32", 1, 16, 512 << 20, false},
		{"hidden2048", "bfloat16", 1, 32, 3 << 30, true},
		{"hidden2048-f32", "float32", 1, 32, 6 << 30, true},
		{"demo-f32", "float32", 2, 16, 512 << 20, false},
		{"hidden2048", "bfloat16", 2, 32, 2 << 30, true},
		{"hidden2048-f32", "float32", 2, 32, 4 << 30, true},
	}
	rounds := 5
	if os.Getenv("QUICK") != "" {
		cases, rounds = []overheadCase{cases[0], cases[1], cases[4]}, 2
	}
	lines, metrics, worst := json.NewEncoder(os.Stdout), map[string]any{}, map[int]float64{1: math.Inf(1), 2: math.Inf(1)}
	for _, c := range cases {
		if err := overheadOf(ctx, o, c, rounds, func(batch int, found overhead) error {
			name := c.Preset + map[int]string{1: "_one", 16: "_sixteen"}[batch] + map[int]string{1: "", 2: "_two_ranks"}[c.Ranks]
			metrics[name] = found.Ratio
			if c.judged {
				worst[c.Ranks] = min(worst[c.Ranks], found.Ratio)
			}
			return lines.Encode(struct {
				overheadCase
				Batch int `json:"batch"`
				overhead
			}{c, batch, found})
		}); err != nil {
			return err
		}
	}
	metrics["two_ranks"] = worst[2]
	return lines.Encode(map[string]any{"bench": "vllm-overhead", "value": worst[1], "ratio": worst[1], "ceiling": 1, "unit": "tokens/s of a rank that is served, over stock vLLM's in a process; the worst of one and sixteen requests, bf16 and fp32",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "rounds": rounds, "prompt": overheadPrompt, "answer": overheadAnswer}})
}

// overhead is the result for a number of concurrent requests.
type overhead struct {
	Ours      float64 `json:"tokens_per_s"`
	Stock     float64 `json:"stock_tokens_per_s"`
	Token     float64 `json:"ms_per_token"` // of one request on each rank
	Ratio     float64 `json:"ratio"`
	Different int     `json:"different"` // requests whose tokens differ by the order of sums; fp32 should have none
	Requests  int     `json:"requests"`
}

func overheadOf(ctx context.Context, o options, c overheadCase, rounds int, found func(batch int, o overhead) error) error {
	checkpoint, err := harness.Checkpoint(ctx, o.root, c.Preset)
	if err != nil {
		return err
	}
	const kv = 256 << 20
	h := harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint, Pods: slices.Repeat([]int{1}, c.Ranks), Granule: c.granule, Memory: c.memory, KV: kv, MaxTokens: 512}
	if err := vllmOn(&h, map[int]string{1: "0"}[c.Ranks]); err != nil {
		return err
	}
	h.EngineFlags = []string{"--max-batch-tokens", "512"}
	w, err := harness.Start(ctx, h)
	if err != nil {
		return err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, c.Ranks, "ExpertParallel", nil, nil); err != nil {
		return err
	}
	peer, err := startStocks(ctx, o, checkpoint, c.Dtype, fmt.Sprint(kv), c.Ranks)
	if err != nil {
		return err
	}
	defer peer.stop()
	random := rand.New(rand.NewPCG(o.seed, 14))
	for _, batch := range []int{1, 16} {
		var ours, theirs, ratios []float64
		var out overhead
		for round := range rounds + 1 { // the first round warms up and does not count
			prompts := make([][]uint32, batch*c.Ranks)
			for i := range prompts {
				for range overheadPrompt {
					prompts[i] = append(prompts[i], random.Uint32N(256))
				}
			}
			mine, err := askWorld(ctx, w, prompts, overheadAnswer)
			if err != nil {
				return err
			}
			stocks, err := peer.ask(prompts, overheadAnswer)
			if err != nil {
				return err
			}
			if round == 0 {
				continue
			}
			tokens := float64(len(prompts) * overheadAnswer)
			ours, theirs, ratios = append(ours, tokens/mine.Seconds), append(theirs, tokens/stocks.Seconds), append(ratios, stocks.Seconds/mine.Seconds)
			for i := range prompts {
				out.Requests++
				if !slices.Equal(mine.Tokens[i], stocks.Tokens[i]) {
					out.Different++
				}
			}
		}
		out.Ours, out.Stock, out.Ratio = median(ours), median(theirs), median(ratios)
		out.Token = 1000 * float64(batch*c.Ranks) / out.Ours
		say("%s, %d ranks, %d at once on each: %.1f tokens/s, stock vLLM %.1f, ratio %.2f; %d of %d requests differ", c.Preset, c.Ranks, batch, out.Ours, out.Stock, out.Ratio, out.Different, out.Requests)
		if err := found(batch, out); err != nil {
			return err
		}
	}
	return nil
}
