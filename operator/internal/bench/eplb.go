package bench

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"tangram.dev/operator/internal/bench/peers"
	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
)

// eplbPrice of a moved slot, in peak over mean: an expert of DeepSeek-V3 (44 MB) over a
// 50 GB/s link that delays the engine for 30 % of the copy, layers of 0.4 ms and 1,000
// steps until the load has drifted away.
var eplbPrice = placement.PriceOf(44.05e6, 50e9, 0.4e-3, 1000, 0.7)

const (
	eplbWindows     = 4
	eplbAssignments = 32768
	eplbFullMillis  = 4
	eplbIncrMillis  = 15
)

type eplbWorkload struct {
	name                          string
	layers, experts, ranks, slots int
	groups                        int
	sigma, rho                    float64 // log-normal; sigma 0: Zipf 1.0 with 5 % churn
}

// The workloads of the reference, section 3.
func eplbWorkloads() []eplbWorkload {
	return []eplbWorkload{
		{"A", 58, 256, 32, 9, 8, 1, .9},
		{"A_zipf", 58, 256, 32, 9, 8, 0, 0},
		{"A_ln05", 58, 256, 32, 9, 8, .5, .9},
		{"B", 58, 256, 144, 2, 1, 1, .9},
		{"C", 94, 128, 8, 18, 1, 1, .9},
		{"D", 60, 384, 32, 13, 1, 1, .9},
		{"E", 58, 256, 8, 34, 8, 1, .9},
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
	for range eplbWindows + 1 { // the last is only scored
		out = append(out, g.Next())
	}
	return out, nil
}

// eplbScore of a policy over the windows of a workload.
type eplbScore struct {
	millis           []float64
	cpu              []float64 // milliseconds of the thread; nil: not measured
	peak, mean       float64   // sums over layers and windows, on the window planned for
	nextPeak         float64
	nextMean         float64
	worst            float64 // balance of the worst layer
	floor            float64
	moved, slots     int
	home             float64 // tokens served in the node of their group, as means
	layersUnderFloor int     // peaks below the floor: must be 0
}

func (s *eplbScore) add(w eplbWorkload, now []peers.Layout, old []peers.Layout, this, next [][]float64, floors []float64) {
	for l := range now {
		peak, mean := peers.Peak(this[l], now[l])
		s.peak, s.mean, s.floor = s.peak+peak, s.mean+mean, s.floor+floors[l]
		if s.worst == 0 || mean/peak < s.worst {
			s.worst = mean / peak
		}
		if peak < floors[l]*(1-1e-9) {
			s.layersUnderFloor++
		}
		peak, mean = peers.Peak(next[l], now[l])
		s.nextPeak, s.nextMean = s.nextPeak+peak, s.nextMean+mean
		s.moved += peers.Moved(old[l], now[l])
	}
	s.slots += w.layers * w.ranks * w.slots
}

func (s *eplbScore) line(w eplbWorkload, policy string) map[string]any {
	slices.Sort(s.millis)
	slices.Sort(s.cpu)
	out := map[string]any{"bench": "eplb", "workload": w.name, "policy": policy, "ms_median": s.median(), "ms_min": s.millis[0],
		"balance": s.mean / s.peak, "balance_worst_layer": s.worst, "balance_over_floor": s.floor / s.peak,
		"balance_next_window": s.nextMean / s.nextPeak, "moved_share": s.movedShare()}
	if s.cpu != nil {
		out["cpu_ms_median"] = s.cpu[len(s.cpu)/2]
	}
	return out
}

func (s *eplbScore) median() float64     { return s.millis[len(s.millis)/2] }
func (s *eplbScore) movedShare() float64 { return float64(s.moved) / float64(s.slots) }

// Eplb plans the reference workloads with the planner's two modes and the baselines.
func Eplb(out, progress io.Writer, quick bool) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	metrics := map[string]any{"price": eplbPrice, "windows": eplbWindows}
	pass := true
	for _, w := range eplbWorkloads() {
		windows, err := w.windows(1)
		if err != nil {
			return err
		}
		scores := map[string]*eplbScore{}
		floors := w.floors(windows)
		run := func(name string, s *eplbScore, err error) error {
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w.name, name, err)
			}
			if s.layersUnderFloor > 0 {
				return fmt.Errorf("%s, %s: %d layers are below the floor: the floor is wrong", w.name, name, s.layersUnderFloor)
			}
			scores[name] = s
			if err := printLine(out, s.line(w, name)); err != nil {
				return err
			}
			_, err = fmt.Fprintf(progress, "eplb: %s %s: %.2f ms, balance %.4f, over floor %.5f, next %.4f, moved %.1f %%\n",
				w.name, name, s.median(), s.mean/s.peak, s.floor/s.peak, s.nextMean/s.nextPeak, 100*s.movedShare())
			return err
		}
		modes := []string{"full", "incremental"}
		if w.groups > 1 && w.ranks > 8 {
			modes = append(modes, "full-groups")
		}
		for _, mode := range modes {
			s, err := w.ours(mode, windows, floors, quick)
			if err := run(mode, s, err); err != nil {
				return err
			}
		}
		policies := []peers.Policy{peers.DeepSeek{}, &peers.FlashLB{}, peers.Swift{}}
		if w.groups > 1 {
			policies = append(policies, peers.DeepSeek{Groups: w.groups, Nodes: max(1, w.ranks/8)})
		}
		for _, policy := range policies {
			if err := run(policy.Name(), w.peer(policy, windows, floors), nil); err != nil {
				return err
			}
		}
		if g, ok := scores["full-groups"]; ok {
			metrics[w.name+"_groups_balance"], metrics[w.name+"_groups_home"] = g.mean/g.peak, g.home/g.mean
			metrics[w.name+"_groups_ms"] = g.median()
		}
		full, incr, flash := scores["full"], scores["incremental"], scores["flashlb"]
		metrics[w.name+"_full_ms"] = full.median()
		metrics[w.name+"_full_balance_over_floor"] = full.floor / full.peak
		metrics[w.name+"_full_next_balance"] = full.nextMean / full.nextPeak
		metrics[w.name+"_incr_ms"] = incr.median()
		metrics[w.name+"_full_cpu_ms"], metrics[w.name+"_incr_cpu_ms"] = full.cpu[len(full.cpu)/2], incr.cpu[len(incr.cpu)/2]
		metrics[w.name+"_incr_moved_ratio"] = incr.movedShare() / flash.movedShare()
		metrics[w.name+"_incr_balance_points"] = 100 * (flash.mean/flash.peak - incr.mean/incr.peak)
		metrics[w.name+"_incr_next_balance"] = incr.nextMean / incr.nextPeak
		metrics[w.name+"_flashlb_next_balance"] = flash.nextMean / flash.nextPeak
		if w.name == "A" {
			pass = full.median() <= eplbFullMillis && full.floor/full.peak >= .999 && incr.median() <= eplbIncrMillis &&
				5*incr.movedShare() <= flash.movedShare() && flash.mean/flash.peak-incr.mean/incr.peak <= .02
		}
	}
	value := metrics["A_full_ms"].(float64)
	return printLine(out, Summary{Bench: "eplb", Value: value, Unit: "ms", Ceiling: eplbFullMillis, Ratio: value / eplbFullMillis,
		Goal: eplbFullMillis, Pass: pass, Metrics: metrics, Env: environment(quick)})
}

func (w eplbWorkload) rankList() []placement.Rank {
	out := make([]placement.Rank, w.ranks)
	for g := range out {
		out[g] = placement.Rank{Slots: w.slots, Node: g / 8}
	}
	return out
}

// floors [window][layer], flattened per window.
func (w eplbWorkload) floors(windows [][][]float64) [][]float64 {
	ranks := w.rankList()
	out := make([][]float64, eplbWindows)
	for i := range out {
		for _, row := range windows[i] {
			out[i] = append(out[i], placement.EvenFloor(row, ranks))
		}
	}
	return out
}

// ours times only the planner; each window's plan starts from the last one.
func (w eplbWorkload) ours(mode string, windows [][][]float64, floors [][]float64, quick bool) (*eplbScore, error) {
	s := &eplbScore{}
	old := make([]peers.Layout, w.layers)
	for l := range old {
		old[l] = peers.Default(w.experts, w.ranks, w.slots)
	}
	problem := &placement.Problem{Layers: make([]placement.Layer, w.layers), Ranks: w.rankList(), Old: w.placement(old)}
	repeat := 9
	if quick {
		repeat = 3
	}
	for e := range w.experts {
		problem.Groups = append(problem.Groups, e*w.groups/w.experts)
	}
	var p placement.Planner
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range eplbWindows {
		for l := range problem.Layers {
			problem.Layers[l].Load = windows[i][l]
		}
		var r *placement.Result
		for range repeat {
			runtime.GC()
			begin, busy := time.Now(), threadMillis()
			var err error
			switch mode {
			case "full":
				r, err = p.Full(problem, placement.Options{Groups: placement.IgnoreGroups})
			case "full-groups":
				r, err = p.Full(problem, placement.Options{Groups: placement.KeepGroups})
			default:
				r, err = p.Incremental(problem, placement.Options{Price: eplbPrice})
			}
			if err != nil {
				return nil, err
			}
			s.millis = append(s.millis, float64(time.Since(begin).Microseconds())/1000)
			s.cpu = append(s.cpu, threadMillis()-busy)
		}
		now := w.layouts(r.Placement)
		for _, f := range r.Layers {
			s.home += f.Home * f.Mean // 0 where groups are not kept
		}
		s.add(w, now, old, windows[i], windows[i+1], floors[i])
		old, problem.Old = now, r.Placement
	}
	return s, nil
}

// threadMillis that this thread was on a CPU: what a plan takes where nobody else wants the cores.
func threadMillis() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic(err) // it cannot fail with these arguments
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
}

func (w eplbWorkload) peer(policy peers.Policy, windows [][][]float64, floors [][]float64) *eplbScore {
	s := &eplbScore{}
	old := make([]peers.Layout, w.layers)
	for l := range old {
		old[l] = peers.Default(w.experts, w.ranks, w.slots)
	}
	for i := range eplbWindows {
		now := make([]peers.Layout, w.layers)
		begin := time.Now()
		for l := range now {
			now[l] = policy.Plan(l, windows[i][l], old[l])
		}
		s.millis = append(s.millis, float64(time.Since(begin).Microseconds())/1000)
		s.add(w, now, old, windows[i], windows[i+1], floors[i])
		old = now
	}
	return s
}

func (w eplbWorkload) placement(layers []peers.Layout) *placement.Placement {
	out := &placement.Placement{Experts: w.experts, Start: []int32{0}}
	for g := range w.ranks {
		out.Start = append(out.Start, int32((g+1)*w.slots))
	}
	for _, l := range layers {
		for _, held := range l {
			out.Slot = append(out.Slot, held...)
		}
	}
	return out
}

func (w eplbWorkload) layouts(p *placement.Placement) []peers.Layout {
	out := make([]peers.Layout, w.layers)
	for l := range out {
		for g := range w.ranks {
			out[l] = append(out[l], p.Rank(l, g))
		}
	}
	return out
}
