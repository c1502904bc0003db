package bench

import (
	"fmt"
	"slices"
	"strings"
)

// Figures of each seed of a workload. Times are relative to the greedy; the balance of the full plan to the floor;
// moves of the incremental plan to FlashLB-like. The last is the points of balance that the incremental plan is below
// FlashLB-like.
var eplbFigures = []string{"full_over_greedy", "incr_over_greedy", "balance_over_floor", "moves_over_flashlb", "points_below_flashlb"}

// eplbSeeds are the figures of a workload, seed by seed.
type eplbSeeds struct {
	seeds  []uint64
	values map[string][]float64 // [figure][seed]
}

func (f *eplbSeeds) add(seed uint64, scores map[string]*eplbScore) {
	if f.values == nil {
		f.values = map[string][]float64{}
	}
	full, incr, greedy, flash := scores["full"], scores["incremental"], scores["greedy"], scores["flashlb"]
	f.seeds = append(f.seeds, seed)
	for name, v := range map[string]float64{
		"full_over_greedy":     over(full.millis, greedy.millis),
		"incr_over_greedy":     over(incr.millis, greedy.millis),
		"balance_over_floor":   full.floor / full.peak,
		"moves_over_flashlb":   incr.movedShare() / flash.movedShare(),
		"points_below_flashlb": 100 * (flash.mean/flash.peak - incr.mean/incr.peak),
	} {
		f.values[name] = append(f.values[name], v)
	}
}

func (f *eplbSeeds) median(name string) float64 { return middle(f.values[name]) }

// worst returns the maximum of a figure, and of the balance the minimum.
func (f *eplbSeeds) worst(name string) float64 {
	if name == "balance_over_floor" {
		return slices.Min(f.values[name])
	}
	return slices.Max(f.values[name])
}

// missed returns the seeds whose own balance, moves or points miss the goals: candidates for eplbFixed. Times do not
// depend on the seed.
func (f *eplbSeeds) missed() []uint64 {
	out := []uint64{}
	for i, seed := range f.seeds {
		if f.values["balance_over_floor"][i] < eplbFloor || f.values["moves_over_flashlb"][i] > eplbMoves ||
			f.values["points_below_flashlb"][i] > eplbPoints {
			out = append(out, seed)
		}
	}
	return out
}

func (f *eplbSeeds) String() string {
	var parts []string
	for _, name := range eplbFigures {
		parts = append(parts, fmt.Sprintf("%s %.4g (%.4g)", strings.ReplaceAll(name, "_", " "), f.median(name), f.worst(name)))
	}
	return strings.Join(parts, ", ")
}

// eplbScore of a policy over the windows of a workload, of one seed or of all.
type eplbScore struct {
	millis           []float64 // of each window, round and seed; nil: not timed
	peak, mean       float64   // sums over layers and windows, on the window planned for
	nextPeak         float64
	nextMean         float64
	worst            float64 // balance of the worst layer
	floor            float64
	moved, slots     int
	home             float64 // tokens served in the node of their group, in units of the mean
	layersUnderFloor int     // peaks below the floor: must be 0
	seeds            int
}

func (s *eplbScore) balance() float64    { return s.mean / s.peak }
func (s *eplbScore) movedShare() float64 { return float64(s.moved) / float64(s.slots) }

// join adds the score of another seed.
func (s *eplbScore) join(o *eplbScore) {
	if s.seeds == 0 {
		*s = *o
		return
	}
	s.millis = append(s.millis, o.millis...)
	s.peak, s.mean, s.nextPeak, s.nextMean = s.peak+o.peak, s.mean+o.mean, s.nextPeak+o.nextPeak, s.nextMean+o.nextMean
	s.worst, s.floor, s.moved, s.slots, s.home = min(s.worst, o.worst), s.floor+o.floor, s.moved+o.moved, s.slots+o.slots, s.home+o.home
	s.seeds += o.seeds
}

// line of a policy, over all seeds.
func (s *eplbScore) line(w eplbWorkload, policy string, greedy *eplbScore) map[string]any {
	out := map[string]any{"bench": "eplb", "workload": w.name, "policy": policy, "seeds": s.seeds, "balance": s.balance(),
		"balance_worst_layer": s.worst, "balance_over_floor": s.floor / s.peak, "balance_next_window": s.nextMean / s.nextPeak,
		"moved_share": s.movedShare()}
	if s.home > 0 {
		out["home_share"] = s.home / s.mean
	}
	if s.millis != nil {
		out["ms_cpu"], out["over_greedy"] = middle(s.millis), over(s.millis, greedy.millis)
	}
	return out
}
