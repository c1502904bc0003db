package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
)

func vllmMemoryCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "vllm-memory", Short: "Benchmark vllm-memory: memory of a vLLM rank on a node, compared with stock vLLM", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return vllmMemory(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/vllm-memory", "folder for logs")
	o.rootFlag(c)
	return c
}

// vllmMemory bench: after the same requests, a node's bytes for one rank: its agent, its engine, the process that forks
// it, and the agent's memory for weights and KV, counted once and in full; over those of a stock vLLM process. KV is
// small here, because a large KV would make both alike.
func vllmMemory(ctx context.Context, o options) error {
	cases := []overheadCase{{"hidden2048", "bfloat16", 1, 32, 1712 << 20, true}, {"hidden2048-f32", "float32", 1, 32, 3424 << 20, true}}
	if os.Getenv("QUICK") != "" {
		cases = cases[:1]
	}
	lines, metrics, worst := json.NewEncoder(os.Stdout), map[string]any{}, 0.0
	for _, c := range cases {
		found, err := memoryOf(ctx, o, c)
		if err != nil {
			return err
		}
		ratio := float64(found["bytes"]) / float64(found["stock_bytes"])
		worst, metrics[c.Preset] = max(worst, ratio), ratio
		say("%s: %s beside %s of stock vLLM, ratio %.2f; without weights and KV %s", c.Preset, mib(found["bytes"]), mib(found["stock_bytes"]), ratio, mib(found["private_bytes"]))
		if err := lines.Encode(map[string]any{"model": c.Preset, "dtype": c.Dtype, "found": found, "ratio": ratio}); err != nil {
			return err
		}
	}
	return lines.Encode(map[string]any{"bench": "vllm-memory", "value": worst, "ratio": worst, "ceiling": 1, "unit": "bytes of a node that a rank takes, weights once, over those of stock vLLM; the worse of bf16 and fp32",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU()}})
}

func memoryOf(ctx context.Context, o options, c overheadCase) (map[string]uint64, error) {
	const kv = 64 << 20
	checkpoint, err := harness.Checkpoint(ctx, o.root, c.Preset)
	if err != nil {
		return nil, err
	}
	h := harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint, Pods: []int{1}, Granule: c.granule, Memory: c.memory, KV: kv, SpareBanks: 1, MaxTokens: 512}
	if err := vllmOn(&h, ""); err != nil {
		return nil, err
	}
	h.EngineFlags = []string{"--max-batch-tokens", "512"}
	w, err := harness.Start(ctx, h)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, 1, "ExpertParallel", nil, nil); err != nil {
		return nil, err
	}
	random, prompts := rand.New(rand.NewPCG(1, 14)), make([][]uint32, 16)
	for i := range prompts {
		for range overheadPrompt {
			prompts[i] = append(prompts[i], random.Uint32N(256))
		}
	}
	if _, err := askWorld(ctx, w, prompts, overheadAnswer); err != nil {
		return nil, err
	}
	agents, engines, err := w.Resident()
	if err != nil {
		return nil, err
	}
	peer, err := startStock(ctx, o, checkpoint, c.Dtype, "0", fmt.Sprint(kv))
	if err != nil {
		return nil, err
	}
	defer peer.stop()
	if _, err := peer.ask(prompts, overheadAnswer); err != nil {
		return nil, err
	}
	stocks, err := harness.ResidentOf(peer.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	private := agents.Others + engines.Others
	return map[string]uint64{"agent_private_bytes": agents.Others, "engine_private_bytes": engines.Others, "touched_bytes": agents.Shared + engines.Shared,
		"private_bytes": private, "bytes": private + c.memory + kv, "stock_bytes": stocks.Others + stocks.Shared}, nil
}
