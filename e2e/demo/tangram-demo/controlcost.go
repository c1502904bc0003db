package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"tangram.dev/e2e/harness"
)

// controlCost bench: 64 ranks in 9 agents, the last of one rank alone, which is killed at the end. Agents, driver,
// planner, gRPC, TLS and engine sockets are real; no byte of a weight moves. Seconds are the driver's. Processor
// seconds are those of all agents and engines, because they do not depend on the machine's load (staging gets the time
// that serving leaves, and busy loops leave none).
func controlCost(ctx context.Context, o options) error {
	checkpoint := filepath.Join(o.out, "checkpoint")
	if err := harness.HollowCheckpoint(checkpoint, harness.DeepSeekV3()); err != nil {
		return err
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, "world"), Checkpoint: checkpoint,
		Pods: []int{8, 8, 8, 8, 8, 8, 8, 7, 1}, SizesOnly: true, PageBytes: 2 << 20, Granule: 64, Memory: 256 << 30, KV: 1 << 30, SpareBanks: 58})
	if err != nil {
		return err
	}
	defer w.Stop()
	lines := json.NewEncoder(os.Stdout)
	worst, worstUsed, metrics := 0.0, 0.0, map[string]any{}
	var since time.Duration
	used := func() (time.Duration, error) {
		agents, engines, err := w.ProcessorTime()
		return agents + engines, err
	}
	tell := func(name string, r *harness.Record, judged bool) error {
		say("%s: %.2f s (plan %.2f, prepare %.2f, stage %.2f, flip %.2f, retire %.2f; %d flips)", name, r.TotalSeconds, r.Seconds.Plan,
			r.Seconds.Prepare, r.Seconds.Stage, r.Seconds.Flip, r.Seconds.Retire, r.PlannedFlips)
		now, err := used()
		if err != nil {
			return err
		}
		processor := (now - since).Seconds()
		since = now
		metrics[strings.ReplaceAll(name, "-", "_")+"_seconds"] = r.TotalSeconds
		if judged {
			worst, worstUsed = max(worst, r.TotalSeconds), max(worstUsed, processor)
		}
		return lines.Encode(map[string]any{"transition": name, "seconds": r.TotalSeconds, "processor_seconds": processor, "phases": r.Seconds,
			"flips": r.PlannedFlips, "expert_bytes": r.ExpertBytes, "bytes": r.Bytes})
	}
	for _, t := range []struct {
		name   string
		ranks  int
		shapes []string
		judged bool
	}{
		{"first", 48, nil, false},
		{"grow-48-64", 64, nil, true},
		{"groups-of-8", 64, []string{"3-60=8/1"}, true},
	} {
		record, err := w.Apply(ctx, t.ranks, "ExpertParallel", t.shapes, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if err := tell(t.name, record, t.judged); err != nil {
			return err
		}
	}
	keeper, err := w.Keep(64, "ExpertParallel", nil)
	if err != nil {
		return err
	}
	defer keeper.Kill()
	back, err := keeper.Await(ctx, "experts again", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
	if err != nil {
		return err
	}
	if err := tell("experts-again", &back.Record.Record, true); err != nil {
		return err
	}
	w.KillPod(8)
	if since, err = used(); err != nil { // of the survivors
		return err
	}
	limited, over := context.WithTimeout(ctx, 2*time.Minute) // a repair without a report is a failure
	defer over()
	repaired, err := keeper.Await(limited, "a repair", func(d harness.Did) bool { return d.Did == "repair" && d.Error == "" })
	if err != nil {
		return err
	}
	if err := tell("repair", &repaired.Record.Record, true); err != nil {
		return err
	}
	metrics["processor_seconds"] = worstUsed
	return lines.Encode(map[string]any{"bench": "control-cost", "value": worst, "unit": "s of the slowest transition of 64 ranks of 58 x 256 experts, no byte moved",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "go": runtime.Version()}})
}
