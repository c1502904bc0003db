package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
)

// World of the bench walk: Qwen3-235B's depth, 64 experts, and engines that only sleep.
const (
	walkRanks = 8
	walkStep  = 20 * time.Millisecond
)

func walkShape() harness.Shape {
	return harness.Shape{Layers: 94, Hidden: 2048, Inner: 768, Experts: 64, TopK: 8, QueryHeads: 32, KVHeads: 8, HeadDim: 128, Rows: 1024}
}

func walkCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "walk", Short: "Benchmark walk: mode switches of 94 layers that transfer no weights, with steps of 20 ms", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return walk(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/walk", "folder for logs")
	o.rootFlag(c)
	return c
}

// walked is one mode switch of the bench.
type walked struct {
	SpareBanks    int     `json:"spare_banks"`
	To            string  `json:"to"`
	Fast          bool    `json:"fast"`
	Seconds       float64 `json:"seconds"`
	Flips         int     `json:"flips"`
	Permits       int     `json:"permits"`
	Calls         uint64  `json:"calls"`
	Steps         int     `json:"steps"`
	StepsPerCycle float64 `json:"steps_per_cycle"` // a cycle flips as many layers as there are spare banks
	LongestGapMs  float64 `json:"longest_gap_ms"`  // between the ends of two steps
}

// walk bench: the protocol's cost of a mode switch at the depth of a real model. Agents, driver, planner and engine
// sockets are real; memory has sizes and no bytes, and engines sleep for a step, so two cores do not slow it down.
func walk(ctx context.Context, o options) error {
	checkpoint := filepath.Join(o.out, "checkpoint")
	if err := harness.HollowCheckpoint(checkpoint, walkShape()); err != nil {
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	cycle, seconds, stall, worstGap, calls := 0., 0., 0., 0., uint64(0)
	some := []int{1, 2, 4}
	if os.Getenv("QUICK") == "1" {
		some = []int{2}
	}
	for _, banks := range some {
		all, err := walkWith(ctx, o, checkpoint, banks)
		if err != nil {
			return fmt.Errorf("%d spare banks: %w", banks, err)
		}
		for _, s := range all {
			if err := lines.Encode(s); err != nil {
				return err
			}
			calls = max(calls, s.Calls)
			if s.Fast {
				stall = max(stall, s.LongestGapMs/1e3)
				continue
			}
			cycle, worstGap = max(cycle, s.StepsPerCycle), max(worstGap, s.LongestGapMs)
			if banks == 2 {
				seconds = max(seconds, s.Seconds)
			}
		}
	}
	return lines.Encode(map[string]any{"bench": "walk", "value": cycle, "unit": "steps for each cycle of the spare banks, the worst switch of 94 layers on 8 ranks",
		"metrics": map[string]any{"seconds_2_banks": seconds, "fast_stall_seconds": stall, "smooth_gap_steps": worstGap / (walkStep.Seconds() * 1e3), "calls": calls},
		"env":     map[string]any{"cpus": runtime.NumCPU(), "go": runtime.Version()}})
}

// walkWith runs two switches with strategy Smooth and two with Fast, with this many spare banks.
func walkWith(ctx context.Context, o options, checkpoint string, banks int) (out []walked, err error) {
	pods := make([]int, walkRanks)
	for i := range pods {
		pods[i] = 1
	}
	w, err := harness.Start(ctx, harness.Options{Root: o.root, Dir: filepath.Join(o.out, fmt.Sprintf("world-%d", banks)), Checkpoint: checkpoint, Pods: pods,
		SizesOnly: true, StubStep: walkStep, PageBytes: 2 << 20, Granule: 96, Memory: 32 << 30, KV: 1 << 30, SpareBanks: banks})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	if _, err := w.Apply(ctx, walkRanks, "ExpertParallel", nil, nil); err != nil {
		return nil, err
	}
	for i, mode := range []string{"TensorParallel", "ExpertParallel", "TensorParallel", "ExpertParallel"} {
		s := walked{SpareBanks: banks, To: mode, Fast: i >= 2}
		var record *harness.Record
		if s.Fast {
			record, err = w.ApplyFast(ctx, walkRanks, mode, nil)
		} else {
			record, err = w.Apply(ctx, walkRanks, mode, nil, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", mode, err)
		}
		s.Seconds, s.Flips, s.Permits, s.Calls = record.TotalSeconds, record.PlannedFlips, record.Permits, record.Calls
		time.Sleep(5 * walkStep) // the file then has the last step that began before the end
		ends, err := w.StubSteps()
		if err != nil {
			return nil, err
		}
		s.count(ends, record.Started, record.Ended)
		say("%d spare banks, to %s, fast %v: %.2f s, %d flips, %d permits, %d calls, %d steps (%.2f a cycle), longest gap %.0f ms", banks, mode, s.Fast, s.Seconds, s.Flips,
			s.Permits, s.Calls, s.Steps, s.StepsPerCycle, s.LongestGapMs)
		out = append(out, s)
	}
	return out, nil
}

// count counts the steps that ended in the transition, and records the longest gap before one of them or before the
// next step.
func (s *walked) count(ends []time.Time, started, ended time.Time) {
	for i := 1; i < len(ends) && !ends[i-1].After(ended); i++ {
		if ends[i].Before(started) {
			continue
		}
		s.LongestGapMs = max(s.LongestGapMs, ends[i].Sub(ends[i-1]).Seconds()*1e3)
		if !ends[i].After(ended) {
			s.Steps++
		}
	}
	s.StepsPerCycle = float64(s.Steps) / math.Ceil(float64(walkShape().Layers)/float64(s.SpareBanks))
}
