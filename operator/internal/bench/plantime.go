package bench

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
)

const (
	planGoalMillis = 20
	partGoalBytes  = 256 << 10
)

// PlanTime plans the two reference transitions on one thread, per expert and all layers.
func PlanTime(out, progress io.Writer, quick bool) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	views, err := publicViews()
	if err != nil {
		return err
	}
	rounds := 41
	if quick {
		rounds = 15
	}
	slowest, biggest := 0.0, 0
	metrics := map[string]any{"rounds": rounds, "part_goal_bytes": partGoalBytes}
	for _, c := range []struct {
		name, model    string
		from, to       int
		before, wanted layout.Mode
	}{
		{"deepseek_v3_32_to_40", "DeepSeek-V3/R1/V3.1", 32, 40, layout.Expert, layout.Expert},
		{"qwen3_235b_ep8_to_tp8", "Qwen3-235B-A22B", 8, 8, layout.Expert, layout.Tensor},
	} {
		v, err := find(views, c.model)
		if err != nil {
			return err
		}
		from, err := start(v, c.from, c.before)
		if err != nil {
			return err
		}
		in := request(v, from, c.to, c.wanted)
		var times []float64
		var result *planner.Result
		for range rounds {
			runtime.GC()
			begin := time.Now()
			if result, err = planner.Plan(in); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			times = append(times, float64(time.Since(begin).Microseconds())/1000)
		}
		slices.Sort(times)
		median := times[len(times)/2]
		wire, fetches := 0, 0
		for _, flip := range result.Plan.Flips {
			for _, part := range flip.Parts {
				wire = max(wire, proto.Size(part)+proto.Size(flip.Delta))
				fetches += len(part.GetFetches().GetLayer())
			}
		}
		slowest, biggest = max(slowest, median), max(biggest, wire)
		line := map[string]any{"bench": "plan-time", "case": c.name, "ms_median": median, "ms_min": times[0], "ms_max": times[len(times)-1],
			"flips": len(result.Plan.Flips), "fetches": fetches, "part_and_delta_bytes": wire}
		if err := printLine(out, line); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(progress, "plan-time: %s: %.2f ms\n", c.name, median); err != nil {
			return err
		}
		metrics[c.name+"_ms"] = median
	}
	metrics["biggest_part_and_delta_bytes"] = biggest
	return printLine(out, Summary{Bench: "plan-time", Value: slowest, Unit: "ms", Ceiling: planGoalMillis, Ratio: slowest / planGoalMillis,
		Goal: planGoalMillis, Pass: slowest <= planGoalMillis && biggest <= partGoalBytes, Metrics: metrics, Env: environment(quick)})
}
