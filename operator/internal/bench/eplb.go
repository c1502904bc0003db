package bench

import (
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"time"

	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
)

// eplbPrice of a moved slot, in peak over mean: an expert of DeepSeek-V3 (44 MB) over a 50 GB/s link. The engine is
// delayed for 30 % of the copy. Layers take 0.4 ms, and the load has drifted away after 1,000 steps.
var eplbPrice = placement.PriceOf(44.05e6, 50e9, 0.4e-3, 1000, 0.7)

const (
	eplbWindows     = 4
	eplbAssignments = 32768
	eplbDraws       = 20 // unseen seeds
	// Goals that a single seed can miss; tests/bench.py judges the medians.
	eplbFloor  = .999
	eplbMoves  = .2 // of FlashLB-like's
	eplbPoints = 2  // of balance below FlashLB-like's
)

// eplbFixed are added to every draw: the seed of the first figures, and seeds that missed a goal by themselves.
var eplbFixed = []uint64{1}

type eplbWorkload struct {
	name                          string
	layers, experts, ranks, slots int
	groups                        int
	sigma, rho                    float64 // log-normal; sigma 0: Zipf 1.0 with 5 % churn
	judged                        bool    // has goals; the others are only printed
}

// The workloads of the reference, section 3.
func eplbWorkloads() []eplbWorkload {
	return []eplbWorkload{
		{"A", 58, 256, 32, 9, 8, 1, .9, true},
		{"A_zipf", 58, 256, 32, 9, 8, 0, 0, false},
		{"A_ln05", 58, 256, 32, 9, 8, .5, .9, false},
		{"B", 58, 256, 144, 2, 1, 1, .9, false},
		{"C", 94, 128, 8, 18, 1, 1, .9, true},
		{"D", 60, 384, 32, 13, 1, 1, .9, true},
		{"E", 58, 256, 8, 34, 8, 1, .9, true},
	}
}

func (w eplbWorkload) windows(seed uint64) ([][][]float64, error) {
	shape := load.Shape{Layers: w.layers, Experts: w.experts, Assignments: eplbAssignments, Seed: seed}
	var g load.Generator
	var err error
	if w.sigma > 0 {
		g, err = load.NewLogNormal(shape, w.sigma, w.rho)
	} else {
		g, err = load.NewZipf(shape, 1, .05)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	var out [][][]float64
	for range eplbWindows + 1 { // the last is only for scoring
		out = append(out, g.Next())
	}
	return out, nil
}

// seedsOf returns the seeds of a date, to which no algorithm has been tuned.
func seedsOf(date string, n int) []uint64 {
	out := slices.Clone(eplbFixed)
	for i := range n {
		h := fnv.New64a()
		_, _ = fmt.Fprintf(h, "%s/%d", date, i) // a hash never fails
		out = append(out, h.Sum64())
	}
	return out
}

// eplbEffort of a run: the numbers of drawn seeds for A, for the other judged workloads and for the rest, and the timed
// rounds. few: FlashLB-like is the only baseline besides the greedy, and it is not timed.
type eplbEffort struct {
	a, judged, printed, rounds int
	few                        bool
}

// Eplb plans the reference workloads with the planner's two modes and the baselines, on the fixed seeds and those of a
// date (YYYY-MM-DD; "": today). Times are ratios to the plain greedy on the CPU clock of the one thread, measured in
// alternation.
func Eplb(out, progress io.Writer, date string, quick bool) error {
	if date == "" {
		date = time.Now().UTC().Format(time.DateOnly)
	}
	if _, err := time.Parse(time.DateOnly, date); err != nil {
		return fmt.Errorf("eplb: DATE: %w", err)
	}
	if _, err := fmt.Fprintf(progress, "eplb: DATE=%s draws the seeds\n", date); err != nil {
		return err
	}
	effort := eplbEffort{a: eplbDraws, judged: eplbDraws, printed: 4, rounds: 5}
	if quick {
		effort = eplbEffort{a: eplbDraws, judged: 2, printed: 0, rounds: 2, few: true}
	}
	defer alone()()
	metrics := map[string]any{"price": eplbPrice, "windows": eplbWindows, "date": date, "stop_tolerance": placement.StopWithin}
	for _, w := range eplbWorkloads() {
		draws := effort.printed
		if w.judged {
			draws = effort.judged
		}
		if w.name == "A" {
			draws = effort.a
		}
		f, err := w.figures(out, seedsOf(date, draws), effort)
		if err != nil {
			return err
		}
		for _, name := range eplbFigures {
			metrics[w.name+"_"+name], metrics[w.name+"_"+name+"_worst"] = f.median(name), f.worst(name)
		}
		metrics[w.name+"_seeds"] = len(f.seeds)
		if w.judged {
			metrics[w.name+"_seeds_missed"] = f.missed()
		}
		if _, err := fmt.Fprintf(progress, "eplb: %s, %d seeds, median (worst): %s\n", w.name, len(f.seeds), f); err != nil {
			return err
		}
	}
	value := metrics["A_full_over_greedy"].(float64)
	return printLine(out, Summary{Bench: "eplb", Value: value, Unit: "times the plain greedy's CPU time, full plan, workload A", Ceiling: 1,
		Ratio: value, Metrics: metrics, Env: environment(quick)})
}
