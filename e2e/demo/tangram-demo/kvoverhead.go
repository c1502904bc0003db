package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"tangram.dev/e2e/harness"
)

// The load of the bench kv-overhead (operator/internal/bench): KV that a rank holds at rest. Agents of sizes only do
// not know it.
const (
	overheadRanks    = 8
	overheadRequests = 256
	overheadTokens   = 4096
)

// kvOverhead bench on memory of sizes: 8 ranks of Qwen3-235B switch Expert -> Tensor -> Expert with one spare bank.
// Each rank's maximum pool use, as reported by its agent, over its use at rest plus the KV of the same load; for
// comparison the plan's figure. No byte moves: agents, pools, banks and pages of 2 MiB are real.
func kvOverhead(ctx context.Context, o options) error {
	shape := harness.Qwen3MoE235B()
	checkpoint := filepath.Join(o.out, "checkpoint")
	if err := harness.HollowCheckpoint(checkpoint, shape); err != nil {
		return err
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint,
		Pods: []int{overheadRanks}, SizesOnly: true, PageBytes: 2 << 20, Granule: 64, Memory: 128 << 30, KV: 1 << 30, SpareBanks: 1})
	if err != nil {
		return err
	}
	defer w.Stop()
	lines := json.NewEncoder(os.Stdout)
	rest, metrics := uint64(0), map[string]any{}
	var switches []*harness.Record
	for _, mode := range []string{"ExpertParallel", "TensorParallel", "ExpertParallel"} {
		record, err := w.Apply(ctx, overheadRanks, mode, nil, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		used, err := inUse(ctx, w)
		if err != nil {
			return err
		}
		say("%s: %d flips in %.1f s; the fullest rank had %.2f GB in use at most (by the plan %.2f), and has %.2f at rest", mode, record.PlannedFlips, record.TotalSeconds,
			gb(record.PeakBytes), gb(record.PlannedPeakBytes), gb(used))
		rest = max(rest, used)
		if err := lines.Encode(map[string]any{"to": mode, "flips": record.PlannedFlips, "peak_bytes": record.PeakBytes, "planned_peak_bytes": record.PlannedPeakBytes, "at_rest_bytes": used}); err != nil {
			return err
		}
		switches = append(switches, record)
	}
	heads := max(1, shape.KVHeads/overheadRanks) // in mode TensorParallel, which needs more KV than ExpertParallel
	kv := uint64(overheadRequests*overheadTokens) * uint64(shape.Layers*heads) * uint64(2*2*shape.HeadDim)
	worst, overPlan := 0., 0.
	for _, s := range switches[1:] {
		more := max(s.PeakBytes, rest) - rest
		worst = max(worst, float64(more)/float64(rest+kv))
		overPlan = max(overPlan, float64(s.PeakBytes)/float64(s.PlannedPeakBytes))
	}
	metrics["peak_over_plan"] = overPlan
	metrics["weights_at_rest_bytes"], metrics["kv_at_rest_bytes"] = rest, kv
	return lines.Encode(map[string]any{"bench": "kv-overhead-ghost", "value": worst, "unit": "memory of weights that a switch of Qwen3-235B with one spare bank has in use over weights and KV at rest, as pools count it",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "go": runtime.Version()}})
}

func gb(bytes uint64) float64 { return float64(bytes) / 1e9 }

// inUse returns the pool use of the fullest rank.
func inUse(ctx context.Context, w *harness.World) (most uint64, err error) {
	all, err := w.Status(ctx)
	if err != nil {
		return 0, err
	}
	for _, s := range all {
		for _, r := range s.Ranks {
			most = max(most, r.MemoryBytes-r.MemoryFree)
		}
	}
	return most, nil
}
