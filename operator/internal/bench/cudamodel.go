package bench

import (
	"fmt"
	"io"
	"math"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Rates of an H200 and its links, and published results; docs/performance.md has the sources.
const (
	nvlinkLine      = 450e9 // bytes/s, each direction of a GPU
	nvlinkPractical = 370e9 // the highest rate observed for collectives
	hbm             = 4.8e12
	publishedMs     = 152. // Qwen3-235B-A22B, EP8 -> TP8, weights alone
	publishedModel  = "Qwen3-235B-A22B"
	modelRanks      = 8
)

// CudaModel plans the mode switches of two models on 8 GPUs and reports the bytes over each link and by each kernel,
// from the planner's own plan. `tool` (tangram-traffic) counts the sectors and the full ones. Durations follow from the
// rates above. No GPU is used: bytes and sectors are counted, and seconds are arithmetic.
func CudaModel(out, progress io.Writer, tool string, quick bool) error {
	views, err := publicViews()
	if err != nil {
		return err
	}
	fewest, overBound, metrics := 1.0, 0.0, map[string]any{}
	for _, m := range []struct{ name, model string }{{"qwen3_235b", publishedModel}, {"deepseek_v3", "DeepSeek-V3/R1/V3.1"}} {
		plain, err := find(views, m.model)
		if err != nil {
			return err
		}
		for _, rowMajor := range []bool{false, true} {
			v, format := plain, "granule_major"
			if rowMajor {
				format = "row_major"
				if v, err = rowMajorView(plain); err != nil {
					return err
				}
			}
			for _, way := range [][2]layout.Mode{{layout.Expert, layout.Tensor}, {layout.Tensor, layout.Expert}} {
				name := fmt.Sprintf("%s_%s_to_%s_%s", m.name, short(way[0]), short(way[1]), format)
				line, err := cudaModelCase(v, way[0], way[1], tool)
				if err != nil {
					return fmt.Errorf("cuda-model: %s: %w", name, err)
				}
				line["bench"], line["case"] = "cuda-model", name
				full := line["full_sectors"].(float64)
				fewest = min(fewest, full)
				overBound = max(overBound, float64(line["expert_bytes"].(uint64))/float64(line["bound_bytes"].(uint64)))
				metrics[name+"_full_sectors"], metrics[name+"_ms"] = full, line["predicted_ms"]
				if m.model == publishedModel {
					line["published_ms"], metrics["published_ms"] = publishedMs, publishedMs
					metrics[name+"_line_rate_ms"] = line["line_rate_ms"]
				}
				if err := printLine(out, line); err != nil {
					return err
				}
				if _, err := fmt.Fprintf(progress, "cuda-model: %s: %.1f GB into a GPU, %.0f ms at 450 GB/s, %.0f ms at 370; %.4f of the sectors full\n", name,
					line["most_into_gpu_gb"], line["line_rate_ms"], line["predicted_ms"], full); err != nil {
					return err
				}
			}
		}
	}
	metrics["bytes_over_bound"] = overBound
	return printLine(out, Summary{Bench: "cuda-model", Value: fewest, Unit: "of the sectors that copies by kernels move are full, fewest of all cases",
		Ceiling: 1, Ratio: fewest, Metrics: metrics, Env: environment(quick)})
}

func short(m layout.Mode) string {
	if m == layout.Tensor {
		return "tp8"
	}
	return "ep8"
}

func cudaModelCase(v *geometry.View, from, to layout.Mode, tool string) (map[string]any, error) {
	now, err := start(v, modelRanks, from)
	if err != nil {
		return nil, err
	}
	result, err := planner.Plan(request(v, now, modelRanks, to))
	if err != nil {
		return nil, err
	}
	moved, err := movesOf(v, now, result.Plan)
	if err != nil {
		return nil, err
	}
	found, err := countTraffic(tool, v, moved.kinds())
	if err != nil {
		return nil, err
	}
	return describe(v, result.Plan, moved, found), nil
}

// describe adds up the moves of one case. The milliseconds are of the GPU with the busiest links, both directions
// concurrently, at the line rate and at the practical one. They are also of the busiest GPU's memory at its peak rate:
// it sends bytes, receives as many, and reads them again to hash them.
func describe(v *geometry.View, plan *tangramv1.Plan, moved *planMoves, found map[moveKind]moveTraffic) map[string]any {
	var most, local, fewestLink, mostLink uint64 = 0, 0, math.MaxUint64, 0
	for a := range modelRanks {
		var in, out uint64
		for b := range modelRanks {
			if a == b {
				continue
			}
			in, out = in+moved.links[b][a], out+moved.links[a][b]
			fewestLink, mostLink = min(fewestLink, moved.links[b][a]), max(mostLink, moved.links[b][a])
		}
		most, local = max(most, in, out), max(local, moved.links[a][a])
	}
	kernels := map[string]*kernelTotal{}
	for name := range kernelsOf(moveTraffic{}) {
		kernels[name] = &kernelTotal{}
	}
	var ranges, rangeBytes uint64
	for kind, n := range moved.count {
		one := found[kind]
		ranges, rangeBytes = ranges+n*one.Ranges, rangeBytes+n*one.RangeBytes
		for name, traffic := range kernelsOf(one) {
			kernels[name].add(traffic, n)
		}
	}
	byKernel := map[string]any{}
	for name, total := range kernels {
		if total.loads.Sectors > 0 || total.stores.Sectors > 0 {
			byKernel[name] = total.line()
		}
	}
	// Weights are moved by the copies. If the copy engine does all of them, report what a kernel would do.
	copies := kernels["copy_strips"]
	if copies.loads.Sectors == 0 {
		copies = kernels["copy_strips_alone"]
	}
	// A GPU gathers received units before it hashes them if they are interleaved: once more in and out.
	passes := uint64(1)
	if v.Proto.SlabFormat == tangramv1.SlabFormat_SLAB_FORMAT_ROW_MAJOR {
		passes = 3
	}
	memory := most*2 + local*2 + (most+local)*passes
	return map[string]any{"flips": len(plan.Flips), "expert_bytes": plan.Cost.ExpertBytes, "bound_bytes": plan.Cost.ExpertBoundBytes,
		"local_bytes": plan.Cost.LocalBytes, "most_into_gpu_gb": float64(most) / 1e9, "link_bytes_least": fewestLink, "link_bytes_most": mostLink,
		"kinds_of_moves": len(found), "copy_engine_bytes": rangeBytes, "copy_engine_ranges": ranges, "kernels": byKernel,
		"full_sectors": copies.full(), "line_rate_ms": float64(most) / nvlinkLine * 1e3, "predicted_ms": float64(most) / nvlinkPractical * 1e3,
		"memory_ms": float64(memory) / hbm * 1e3}
}
