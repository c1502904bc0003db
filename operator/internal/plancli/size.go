package plancli

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// SizeInput of SizeRank.
type SizeInput struct {
	Geometry *geometry.View
	// Widths that the world may have, in ranks, ascending. Every change between two of them and every switch of the
	// mode must fit.
	Widths      []int
	RanksPerPod int
	SpareBanks  uint32
	// Modes that the world may have. TensorParallel is possible only at widths that its experts can be sharded over.
	Modes []layout.Mode
	// MemoryBytes of a rank for weights and KV cache. 0: as much as KVTokens needs.
	MemoryBytes uint64
	// Lenient skips TensorParallel at widths that cannot share an expert, instead of failing.
	Lenient bool
	// KVTokens is the KV cache of a rank in mode ExpertParallel, if MemoryBytes is 0.
	KVTokens uint64
}

// SizeItem is one line of a memory budget.
type SizeItem struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
}

// SizeReport is the memory that a rank needs.
type SizeReport struct {
	WeightsBytes uint64 `json:"weightsBytes"` // spec.memory.weights
	KVBytes      uint64 `json:"kvBytes"`      // spec.memory.kvCache
	KVTokens     uint64 `json:"kvTokens"`     // per rank, in mode ExpertParallel
	// Items add up to WeightsBytes + KVBytes.
	Items []SizeItem `json:"items"`
}

// mostWidths limits the even spacing of WidthsBetween.
const mostWidths = 5

// WidthsBetween returns numbers of ranks that a world may have, ascending: the widths from low to high, or evenly
// spaced ones if there are many. Both ends and the initial number of pods are among them.
func WidthsBetween(low, start, high, ranksPerPod int) []int {
	pods := []int{low, start, high}
	for i := range mostWidths {
		pods = append(pods, low+(high-low)*i/(mostWidths-1))
	}
	slices.Sort(pods)
	pods = slices.Compact(pods)
	for i := range pods {
		pods[i] *= ranksPerPod
	}
	return pods
}

// sizeUnit is the unit to which pools are rounded up.
const sizeUnit = 1 << 20

// SizeRank computes the memory of a rank with the planner. It covers every transition between the widths and modes, and
// the repair after the loss of any rank. Errors name the wrong width or the missing memory.
func SizeRank(in SizeInput) (*SizeReport, error) {
	plan := PlanInput{Geometry: in.Geometry, RanksPerPod: in.RanksPerPod, SpareBanks: in.SpareBanks}
	var worlds []World
	for _, width := range in.Widths {
		for _, mode := range in.Modes {
			if g := in.Geometry.Proto; in.Lenient && mode == layout.Tensor && width > int(g.MoeInner/g.GranuleRows) {
				continue
			}
			worlds = append(worlds, World{Ranks: width, Mode: mode.String()})
		}
	}
	var steady, peak, repair uint64
	layouts := make([]*tangramv1.Layout, len(worlds))
	for i, w := range worlds {
		first, err := plan.to(nil, w, nil)
		if err != nil {
			return nil, fmt.Errorf("%d ranks in %s mode: %w", w.Ranks, w.Mode, err)
		}
		layouts[i] = first.Final
		peak = max(peak, peakOf(first))
		for rank := range first.Final.Members {
			steady = max(steady, layout.SteadyBytes(first.Final, in.Geometry, uint32(rank)))
		}
		if w.Ranks > 1 {
			need, err := repairNeed(in.Geometry, first.Final)
			if err != nil {
				return nil, err
			}
			repair = max(repair, need)
		}
	}
	for i, from := range layouts {
		for j, to := range worlds {
			if i == j {
				continue
			}
			changed, err := plan.to(from, to, nil)
			if err != nil {
				return nil, fmt.Errorf("from %d ranks in %s mode to %d ranks in %s mode: %w", worlds[i].Ranks, worlds[i].Mode, to.Ranks, to.Mode, err)
			}
			peak = max(peak, peakOf(changed))
		}
	}
	weights := geometry.RoundUp(max(peak, repair), sizeUnit)
	token := costmodel.TokenBytes(in.Geometry, kernels.Expert(in.Widths[0]))
	kv := geometry.RoundUp(in.KVTokens*token, sizeUnit)
	if in.MemoryBytes > 0 {
		if in.MemoryBytes < weights+sizeUnit {
			return nil, fmt.Errorf("%.1f GB of memory per rank cannot hold %s: the weights need %.1f GB on %d ranks; use more ranks or more memory", gb(in.MemoryBytes),
				in.Geometry.Proto.Model, gb(weights), in.Widths[0])
		}
		kv = (in.MemoryBytes - weights) / sizeUnit * sizeUnit
	}
	dense := min(in.Geometry.Proto.DenseBytes, steady)
	return &SizeReport{WeightsBytes: weights, KVBytes: kv, KVTokens: kv / token, Items: []SizeItem{
		{"experts", steady - dense},
		{"weights outside experts", dense},
		{"transitions: spare banks, and old and new pieces at the same time", max(peak, steady) - steady},
		{"repair after the loss of a rank, in addition to transitions", weights - max(peak, steady)},
		{"KV cache", kv},
	}}, nil
}

func gb(bytes uint64) float64 { return float64(bytes) / 1e9 }

// peakOf returns the peak memory of any rank in a plan.
func peakOf(result *planner.Result) uint64 {
	var peak uint64
	for _, flip := range result.Plan.Flips {
		for _, part := range flip.Parts {
			peak = max(peak, part.PeakBytes)
		}
	}
	return peak
}

// repairNeed returns the largest memory of a survivor after the loss of any rank.
func repairNeed(v *geometry.View, l *tangramv1.Layout) (uint64, error) {
	in := planner.HeadroomInput{Geometry: v, Layout: l}
	for _, m := range l.Members {
		// Each is short, so the worst loss is the one with the largest shortage.
		in.Members = append(in.Members, planner.Member{Member: m, MemoryBytes: 1})
	}
	result, err := planner.Headroom(in)
	if err != nil {
		return 0, err
	}
	var need uint64
	for _, s := range result.Worst.Survivors {
		need = max(need, s.NeedBytes)
	}
	return need, nil
}
