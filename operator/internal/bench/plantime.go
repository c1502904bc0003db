package bench

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// planCase is a transition to plan, between at most `ranks` ranks.
type planCase struct {
	name   string
	model  string
	ranks  int
	rounds int
	size   caseSize
	plan   func() (*planner.Result, error)
}

func (c planCase) run() error {
	_, err := c.plan()
	return err
}

type caseSize int

const (
	reference caseSize = iota // relative to the sort
	small                     // reference for the growth of time with the ranks
	large                     // relative to the slowest reference case
)

// PlanTime plans two reference transitions, per expert and all layers, and two large ones. Times are of one thread.
// Reference cases are relative to sorting one 64-bit key per piece of the target layout and per fetch. Large cases are
// relative to the slower reference case, and to a small case of the same model over n log n for n ranks. All alternate
// with their references, so that all see the machine in the same state.
func PlanTime(out, progress io.Writer, quick bool) error {
	cases, err := planCases(quick)
	if err != nil {
		return err
	}
	defer alone()()
	slowest, biggest, growth := 0.0, 0, 0.0
	overReference := 0.0
	var yardstick, least planCase // the slower reference case, and the small one
	most := 0.0                   // milliseconds of the yardstick
	metrics := map[string]any{}
	for _, c := range cases {
		line, ratio, wire, err := c.measure()
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		metrics[c.name+"_ms"], metrics[c.name+"_over_sort"] = line["ms_cpu"], ratio
		switch c.size {
		case reference:
			slowest, biggest = max(slowest, ratio), max(biggest, wire)
			if ms := line["ms_cpu"].(float64); ms > most {
				most, yardstick = ms, c
			}
		case small:
			least = c
		case large:
			times, err := alternating(c.rounds, c.run, yardstick.run, least.run)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			over, grown := over(times[0], times[1]), over(times[0], times[2])
			line["over_reference"] = over
			overReference = max(overReference, over)
			if c.model == least.model {
				growth = grown / (nLogN(c.ranks) / nLogN(least.ranks))
				line["over_n_log_n"] = growth
			}
		}
		if err := printLine(out, line); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(progress, "plan-time: %s: %.2f ms, %.1f times sorting %d keys (%.2f ms)\n", c.name, line["ms_cpu"], ratio,
			line["keys"], line["sort_ms_cpu"]); err != nil {
			return err
		}
	}
	metrics["biggest_part_and_delta_bytes"] = biggest
	metrics["large_over_reference"], metrics["growth_over_n_log_n"] = overReference, growth
	if _, err := fmt.Fprintf(progress, "plan-time: the slower of the large ones takes %.1f times %s; with more ranks time grows %.2f times as n log n\n",
		overReference, yardstick.name, growth); err != nil {
		return err
	}
	return printLine(out, Summary{Bench: "plan-time", Value: slowest, Unit: "times sorting a 64-bit key per piece and fetch, slowest of two",
		Ceiling: 1, Ratio: slowest, Metrics: metrics, Env: environment(quick)})
}

func nLogN(n int) float64 { return float64(n) * math.Log2(float64(n)) }

func planCases(quick bool) ([]planCase, error) {
	views, err := publicViews()
	if err != nil {
		return nil, err
	}
	deepseek, err := find(views, "DeepSeek-V3/R1/V3.1")
	if err != nil {
		return nil, err
	}
	qwen, err := find(views, "Qwen3-235B-A22B")
	if err != nil {
		return nil, err
	}
	kimi, err := find(views, "Kimi-K2-Instruct")
	if err != nil {
		return nil, err
	}
	rounds, few := 41, 15
	if quick {
		rounds, few = 11, 5
	}
	resize := func(v *geometry.View, from, to int, wanted layout.Mode) (func() (*planner.Result, error), error) {
		now, err := start(v, from, layout.Expert)
		if err != nil {
			return nil, err
		}
		in := request(v, now, to, wanted)
		return func() (*planner.Result, error) { return planner.Plan(in) }, nil
	}
	out := []planCase{{name: "deepseek_v3_32_to_40", model: "deepseek", ranks: 40, rounds: rounds}, {name: "qwen3_235b_ep8_to_tp8", model: "qwen", ranks: 8, rounds: rounds},
		{name: "kimi_k2_32_to_40", model: "kimi", ranks: 40, rounds: few, size: small}, {name: "kimi_k2_320_to_384", model: "kimi", ranks: 384, rounds: few, size: large},
		{name: "deepseek_v3_256_one_lost", model: "deepseek", ranks: 256, rounds: few, size: large}}
	if out[0].plan, err = resize(deepseek, 32, 40, layout.Expert); err != nil {
		return nil, err
	}
	if out[1].plan, err = resize(qwen, 8, 8, layout.Tensor); err != nil {
		return nil, err
	}
	if out[2].plan, err = resize(kimi, 32, 40, layout.Expert); err != nil {
		return nil, err
	}
	if out[3].plan, err = resize(kimi, 320, 384, layout.Expert); err != nil {
		return nil, err
	}
	wide, err := start(deepseek, 256, layout.Expert)
	if err != nil {
		return nil, err
	}
	lost := planner.RepairInput{World: "bench", Revision: "r", Geometry: deepseek, Current: wide}
	for rank, m := range wide.Members[:255] {
		lost.Survivors = append(lost.Survivors, planner.Member{Member: m, Inventory: layout.InventoryOf(wide, deepseek, uint32(rank))})
	}
	out[4].plan = func() (*planner.Result, error) { return planner.Repair(lost) }
	return out, nil
}

// measure returns the line of a case, its time over the sort's, and the largest part with its flip's delta in bytes.
func (c planCase) measure() (line map[string]any, ratio float64, wire int, err error) {
	result, err := c.plan()
	if err != nil {
		return nil, 0, 0, err
	}
	fetches := 0
	for _, flip := range result.Plan.Flips {
		for _, part := range flip.Parts {
			wire = max(wire, proto.Size(part)+proto.Size(flip.Delta))
			fetches += len(part.GetFetches().GetLayer())
		}
	}
	keys := make([]uint64, piecesOf(result.Final)+fetches)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range keys {
		keys[i] = random.Uint64()
	}
	scratch := make([]uint64, len(keys))
	times, err := alternating(c.rounds, c.run, func() error {
		copy(scratch, keys)
		slices.Sort(scratch)
		return nil
	})
	if err != nil {
		return nil, 0, 0, err
	}
	plan, ratio := middle(times[0]), over(times[0], times[1])
	return map[string]any{"bench": "plan-time", "case": c.name, "rounds": c.rounds, "ms_cpu": plan, "ms_cpu_min": slices.Min(times[0]),
		"ms_cpu_max": slices.Max(times[0]), "sort_ms_cpu": middle(times[1]), "over_sort": ratio, "keys": len(keys), "pieces": len(keys) - fetches,
		"fetches": fetches, "flips": len(result.Plan.Flips), "part_and_delta_bytes": wire}, ratio, wire, nil
}

// piecesOf counts the pieces of a layout on all ranks: filled slots times the ranks that share them.
func piecesOf(l *tangramv1.Layout) int {
	n := 0
	for _, layer := range l.Layers {
		for _, g := range layer.Experts {
			for _, expert := range g.Slots {
				if expert > 0 {
					n += len(g.Ranks)
				}
			}
		}
	}
	return n
}
