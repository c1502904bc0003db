package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"tangram.dev/e2e/harness"
)

// reshard bench: real agents, a process for each rank, hold layers of the experts of Qwen3-30B-A3B (all zeros: a hole in a file) and slice them over
// all ranks and back; bytes that agents counted over the seconds that staging took, beside the best copy between two processes.
func reshard(ctx context.Context, o options) error {
	layers, widths, rounds := 4, []int{2, 4, 8}, 5
	if os.Getenv("QUICK") != "" {
		layers, widths, rounds = 1, []int{4}, 3
	}
	shape := harness.Qwen3MoE30B(layers)
	checkpoint := filepath.Join(o.out, "checkpoint")
	if err := harness.HollowCheckpoint(checkpoint, shape); err != nil {
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	worst, metrics := math.Inf(1), map[string]any{}
	for _, ranks := range widths {
		ratios, err := reshardAt(ctx, o, checkpoint, shape, ranks, rounds, lines)
		if err != nil {
			return fmt.Errorf("%d ranks: %w", ranks, err)
		}
		for mode, ratio := range ratios {
			metrics[fmt.Sprintf("%s_%d_ranks", mode, ranks)] = ratio
			worst = min(worst, ratio)
		}
	}
	return lines.Encode(map[string]any{"bench": "reshard", "value": worst, "unit": "of the bytes/s of the best hashed copy between two processes, by the driver's seconds of staging; the worst width and direction",
		"ceiling": 1, "ratio": worst, "metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "layers": layers, "rounds": rounds}})
}

// reshardAt gives the median ratio by target mode.
func reshardAt(ctx context.Context, o options, checkpoint string, shape harness.Shape, ranks, rounds int, lines *json.Encoder) (map[string]float64, error) {
	const granuleRows = 96 // the inner 768 rows over 8 ranks
	unit := 3 * granuleRows * shape.Hidden * 2
	weights := uint64(shape.Layers) * uint64(shape.Experts) * uint64(3*shape.Hidden*shape.Inner*2)
	pods := make([]int, ranks)
	for i := range pods {
		pods[i] = 1
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint, Pods: pods, StubEngines: true, OneNode: true,
		Granule: granuleRows, Memory: 2*weights/uint64(ranks) + 64<<20, KV: 1 << 20, SpareBanks: shape.Layers})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, ranks, "Expert", nil, nil); err != nil {
		return nil, err
	}
	found := map[string][]float64{}
	for range rounds {
		for _, mode := range []string{"Tensor", "Expert"} {
			ceiling, err := bestCopy(ctx, o, unit)
			if err != nil {
				return nil, err
			}
			r, err := w.Apply(ctx, ranks, mode, nil, nil)
			if err != nil {
				return nil, err
			}
			rate := float64(r.Bytes.Shared+r.Bytes.TCP) / r.Seconds.Stage / 1e9
			found[mode] = append(found[mode], rate/ceiling)
			say("%d ranks, %s: %.2f GB/s, a copy %.2f; stage %.2f s of %.2f s, %d flips", ranks, mode, rate, ceiling, r.Seconds.Stage, r.TotalSeconds, r.PlannedFlips)
			if err := lines.Encode(map[string]any{"ranks": ranks, "to": mode, "gb_per_s": rate, "copy_gb_per_s": ceiling, "ratio": rate / ceiling, "shared_bytes": r.Bytes.Shared,
				"tcp_bytes": r.Bytes.TCP, "local_bytes": r.Bytes.Local, "seconds": r.Seconds, "total_seconds": r.TotalSeconds, "flips": r.PlannedFlips}); err != nil {
				return nil, err
			}
		}
	}
	medians := map[string]float64{}
	for mode, ratios := range found {
		slices.Sort(ratios)
		medians[mode] = ratios[len(ratios)/2]
	}
	return medians, nil
}

// bestCopy is GB/s between two processes, units hashed.
func bestCopy(ctx context.Context, o options, unit int) (float64, error) {
	binary := filepath.Join(o.root, "build/cxx/agent/mover/tangram-copy")
	out, err := exec.CommandContext(ctx, binary, strconv.Itoa(unit), strconv.Itoa(512<<20), "3").Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", binary, err)
	}
	var made struct {
		Rate float64 `json:"gb_per_s"`
	}
	return made.Rate, json.Unmarshal(out, &made)
}
