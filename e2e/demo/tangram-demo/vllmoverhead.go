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
	c := &cobra.Command{Use: "vllm-overhead", Short: "the vllm-overhead bench: a rank of vLLM, served, beside stock vLLM in a process", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return vllmOverhead(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/vllm-overhead", "folder of logs")
	c.Flags().Uint64Var(&o.seed, "seed", 1, "of prompts")
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
	granule int
	memory  uint64 // of weights, with room
	judged  bool   // else it is printed
}

// vllmOverhead bench: the same requests to a rank of vLLM in a world, through its gRPC and the gateway, and to stock vLLM in a process, in turns on one
// processor; the gateway and who asks have another. A ratio is the median over rounds of the tokens in a second of ours over stock's, prefill included.
func vllmOverhead(ctx context.Context, o options) error {
	cases := []overheadCase{
		{"demo-f32", "float32", 16, 512 << 20, false},
		{"hidden2048", "bfloat16", 32, 3 << 30, true},
		{"hidden2048-f32", "float32", 32, 6 << 30, true},
	}
	rounds := 5
	if os.Getenv("QUICK") != "" {
		cases, rounds = cases[:2], 2
	}
	lines, metrics, worst := json.NewEncoder(os.Stdout), map[string]any{}, math.Inf(1)
	for _, c := range cases {
		if err := overheadOf(ctx, o, c, rounds, func(batch int, found overhead) error {
			name := c.Preset + map[int]string{1: "_one", 16: "_sixteen"}[batch]
			metrics[name] = found.Ratio
			if c.judged {
				worst = min(worst, found.Ratio)
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
	return lines.Encode(map[string]any{"bench": "vllm-overhead", "value": worst, "ratio": worst, "ceiling": 1, "unit": "tokens/s of a rank that is served, over stock vLLM's in a process; the worst of one and sixteen requests, bf16 and fp32",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "rounds": rounds, "prompt": overheadPrompt, "answer": overheadAnswer}})
}

// overhead of so many requests at once.
type overhead struct {
	Ours      float64 `json:"tokens_per_s"`
	Stock     float64 `json:"stock_tokens_per_s"`
	Token     float64 `json:"ms_per_token"` // of one request
	Ratio     float64 `json:"ratio"`
	Different int     `json:"different"` // requests whose tokens differ: another order of sums decides a close call; fp32 should have none
	Requests  int     `json:"requests"`
}

func overheadOf(ctx context.Context, o options, c overheadCase, rounds int, found func(batch int, o overhead) error) error {
	checkpoint, err := harness.Checkpoint(ctx, o.root, c.Preset)
	if err != nil {
		return err
	}
	const core, kv = "0", 256 << 20
	h := harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint, Pods: []int{1}, Granule: c.granule, Memory: c.memory, KV: kv, MaxTokens: 512}
	if err := vllmOn(&h, core); err != nil {
		return err
	}
	h.EngineFlags = []string{"--max-batch-tokens", "512"}
	w, err := harness.Start(ctx, h)
	if err != nil {
		return err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, 1, "Expert", nil, nil); err != nil {
		return err
	}
	peer, err := startStock(ctx, o, checkpoint, c.Dtype, core, fmt.Sprint(kv))
	if err != nil {
		return err
	}
	defer peer.stop()
	random := rand.New(rand.NewPCG(o.seed, 14))
	for _, batch := range []int{1, 16} {
		var ours, theirs, ratios []float64
		var out overhead
		for round := range rounds + 1 { // what is done for the first time is not counted
			prompts := make([][]uint32, batch)
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
			tokens := float64(batch * overheadAnswer)
			ours, theirs, ratios = append(ours, tokens/mine.Seconds), append(theirs, tokens/stocks.Seconds), append(ratios, stocks.Seconds/mine.Seconds)
			for i := range prompts {
				out.Requests++
				if !slices.Equal(mine.Tokens[i], stocks.Tokens[i]) {
					out.Different++
				}
			}
		}
		out.Ours, out.Stock, out.Ratio = median(ours), median(theirs), median(ratios)
		out.Token = 1000 * float64(batch) / out.Ours
		say("%s, %d at once: %.1f tokens/s, stock vLLM %.1f, ratio %.2f; %d of %d requests differ", c.Preset, batch, out.Ours, out.Stock, out.Ratio, out.Different, out.Requests)
		if err := found(batch, out); err != nil {
			return err
		}
	}
	return nil
}
