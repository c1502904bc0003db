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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tangram.dev/e2e/harness"
)

func scaleUpCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{Use: "scale-up", Short: "Benchmark scale-up: from 2 to 3 vLLM ranks under load, with Tangram, with parts of it disabled, and with other methods", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return scaleUp(cmd.Context(), *o) }}
	c.Flags().StringVar(&o.out, "out", "build/bench/scale-up", "folder for logs")
	c.Flags().StringVar(&o.only, "only", "", "methods to run, separated by commas, e.g. ours,cold-restart; empty: all")
	c.Flags().IntVar(&o.rounds, "rounds", 3, "number of timed rounds; one more round measures memory")
	o.rootFlag(c)
	return c
}

const (
	scaleUpPreset = "hidden2048" // 1.6 GiB of experts in BF16, 8 layers of 64
	scaleUpRanks  = 2
	scaleUpSettle = 4 * time.Second // of load, before a command
	scaleUpBefore = 8 * time.Second // maximum length of the window before
	scaleUpEvery  = 50 * time.Millisecond
	scaleUpStood  = time.Second // a measurement is invalid if this process did not run for this long
	scaleUpTries  = 10
)

// The compared ways to add a rank. Each of ours lacks one more part than the previous one.
var (
	scaleUpOurs = []ourWay{
		{name: "ours", standby: true},
		{name: "no-standby"},
		{name: "no-peers", checkpoint: true},
		{name: "no-zero-copy", checkpoint: true, private: true},
	}
	scaleUpStock = []stockWay{
		{name: "cold-restart", width: 3, stopFirst: true},
		{name: "extravagant", width: 3},
		{name: "colocated", width: 3, halfKV: true},
		{name: "horizontal", width: 2, both: true},
	}
)

// scaled is the result of one scale-up, by clients' clocks.
type scaled struct {
	Way     string             `json:"way"`
	Round   int                `json:"round"`
	First   float64            `json:"first_token_seconds"` // from the command to the first token of the new rank
	Settled float64            `json:"settled_seconds"`     // ... to the end of the whole scale-up
	Gap     float64            `json:"longest_silence_seconds"`
	Before  float64            `json:"longest_silence_before_seconds"` // in a window that ends with the command
	Window  [2]float64         `json:"window_seconds"`                 // with, before
	Rates   [3]float64         `json:"tokens_per_second"`              // before, from command to first token, after
	Broken  int                `json:"broken"`                         // answers without their last token
	Refused int                `json:"refused"`                        // rejected requests, which were sent again
	Peak    uint64             `json:"peak_bytes,omitempty"`           // only in round 0, whose times do not count
	Rest    uint64             `json:"bytes_before,omitempty"`
	Samples int                `json:"samples,omitempty"`
	Stood   float64            `json:"stood_still_seconds"` // longest time in which the bench itself did not run
	Moved   *harness.Bytes     `json:"moved,omitempty"`
	Phases  map[string]float64 `json:"phases,omitempty"`
}

// again repeats a measurement in which the bench itself did not run all the time; discarded ones are counted and used
// nowhere.
func again(name string, discarded *int, scale func() (*scaled, error)) (*scaled, error) {
	for tries := 1; ; tries++ {
		clock := watchClock()
		found, err := scale()
		stood := clock.end()
		if err == nil {
			found.Stood = stood.Seconds()
		}
		if stood < scaleUpStood {
			return found, err
		}
		if tries == scaleUpTries {
			return nil, fmt.Errorf("the bench stood still for a second or longer in each of %d tries: this machine has no time for it (%w)", tries, err)
		}
		*discarded++
		say("%s: the bench stood still for %.1f s: measured again (error: %v)", name, stood.Seconds(), err)
	}
}

func (s *scaled) downtime() float64 { return max(0, s.Gap-s.Before) }

// scaleUp bench: two vLLM ranks serve six streams, and get a third rank. Round 0 watches memory, which costs time. So
// its times are printed but do not count, unless it is the only round (QUICK).
func scaleUp(ctx context.Context, o options) (err error) {
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	if o.checkpoint, err = harness.Checkpoint(ctx, o.root, scaleUpPreset); err != nil {
		return err
	}
	rounds, ours, stock := o.rounds, scaleUpOurs, scaleUpStock
	if os.Getenv("QUICK") != "" {
		rounds, ours, stock = 0, ours[:1], stock[:1] // only round 0
	}
	if o.only != "" {
		names := strings.Split(o.only, ",")
		ours = slices.DeleteFunc(slices.Clone(ours), func(w ourWay) bool { return !slices.Contains(names, w.name) })
		stock = slices.DeleteFunc(slices.Clone(stock), func(w stockWay) bool { return !slices.Contains(names, w.name) })
	}
	lines, all := json.NewEncoder(os.Stdout), map[string][]*scaled{}
	discarded := 0
	if rounds < 0 {
		return fmt.Errorf("--rounds %d: 0 (memory alone) or more", rounds)
	}
	told := func(s *scaled) error {
		say("%s, round %d: first token after %.2f s, silence %.0f ms (before %.0f), %d broken, %d refused, peak %s", s.Way, s.Round, s.First, s.Gap*1e3, s.Before*1e3, s.Broken, s.Refused, mib(s.Peak))
		all[s.Way] = append(all[s.Way], s)
		return lines.Encode(s)
	}
	for i := range rounds + 1 {
		round := (i + 1) % (rounds + 1) // 0 comes last
		if err := scaleOurs(ctx, o, round, ours, &discarded, told); err != nil {
			return err
		}
		for _, way := range stock {
			found, err := again(way.name, &discarded, func() (*scaled, error) { return way.scale(ctx, o, round) })
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if err := told(found); err != nil {
				return err
			}
		}
	}
	return lines.Encode(scaleUpSummary(all, stock, rounds, discarded))
}

func scaleUpSummary(all map[string][]*scaled, stock []stockWay, rounds, discarded int) map[string]any {
	metrics, fastest, peaks := map[string]any{"discarded": discarded}, math.Inf(1), map[string]uint64{}
	firsts := map[string]float64{}
	for way, found := range all {
		var first, gap, before, down []float64
		broken, refused := 0, 0
		for _, s := range found {
			peaks[way] = max(peaks[way], s.Peak)
			if s.Round == 0 && rounds > 0 {
				continue
			}
			first, gap, before, down = append(first, s.First), append(gap, s.Gap), append(before, s.Before), append(down, s.downtime())
			broken += s.Broken
			refused += s.Refused
		}
		firsts[way] = median(first)
		name := strings.ReplaceAll(way, "-", "_")
		metrics[name+"_seconds"], metrics[name+"_downtime_seconds"], metrics[name+"_peak_bytes"] = firsts[way], median(down), peaks[way]
		metrics[name+"_silence_seconds"], metrics[name+"_silence_before_seconds"] = median(gap), median(before)
		metrics[name+"_broken"], metrics[name+"_refused"] = broken, refused
	}
	for _, way := range stock {
		if seconds, ok := firsts[way.name]; ok {
			fastest = min(fastest, seconds)
		}
	}
	value := any(nil)
	if first, ok := firsts["ours"]; ok && !math.IsInf(fastest, 1) {
		value = first / fastest
	}
	if cold := peaks["cold-restart"]; cold > 0 && peaks["ours"] > 0 {
		metrics["peak_over_cold_restart"] = float64(peaks["ours"]) / float64(cold)
	}
	return map[string]any{"bench": "scale-up", "value": value, "ratio": value, "ceiling": 1, "unit": "seconds from the command to the first token of the new rank, over those of the fastest way without Tangram; medians",
		"metrics": metrics, "env": map[string]any{"cpus": runtime.NumCPU(), "rounds": rounds, "model": scaleUpPreset, "streams": scaleUpStreams, "prompt": scaleUpPrompt, "answer": scaleUpAnswer, "kv_bytes": scaleUpKV}}
}
