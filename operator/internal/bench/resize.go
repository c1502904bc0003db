package bench

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"tangram.dev/operator/pkg/bound"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const mostRanks = 40

// ResizeBytes plans every P -> Q of the public models and compares the bytes that the parts fetch with the bound.
// Layers are independent and alike, so every pair is planned for one MoE layer, and a sample for all layers. So is a
// random walk of widths, modes and placements, in pools with no byte to spare. Quick stops planning new pairs of a
// model after its share of 30 s and prints the number left out.
func ResizeBytes(out, progress io.Writer, quick bool) error {
	views, err := publicViews()
	if err != nil {
		return err
	}
	begin := time.Now()
	worst, pairs, skipped, fullPlans, walked, walk := 0.0, 0, 0, 0, 0, 30
	if quick {
		walk = 5
	}
	var most string
	note := func(name string, moved, least uint64) {
		pairs++
		ratio := 1.0
		if least > 0 {
			ratio = float64(moved) / float64(least)
		} else if moved > 0 {
			ratio = float64(moved)
		}
		if ratio > worst {
			worst, most = ratio, name
		}
	}
	for i, v := range views {
		one, err := oneLayer(v)
		if err != nil {
			return err
		}
		deadline := time.Time{}
		if quick {
			deadline = begin.Add(time.Duration(i+1) * 30 * time.Second / time.Duration(len(views)))
		}
		before, modelBegin := pairs, time.Now()
		for _, mode := range []layout.Mode{layout.Expert, layout.Tensor} {
			limit := min(mostRanks, int(v.Proto.Experts))
			if mode == layout.Tensor {
				limit = min(mostRanks, int(v.Granules))
			}
			n, left, err := everyPair(one, mode, limit, deadline, note)
			if err != nil {
				return err
			}
			skipped += left
			_ = n
		}
		for _, pq := range [][2]int{{4, 6}, {6, 4}} {
			moved, least, err := pair(v, layout.Expert, pq[0], pq[1])
			if err != nil {
				return err
			}
			note(fmt.Sprintf("%s, all layers, ExpertParallel %d -> %d", v.Proto.Model, pq[0], pq[1]), moved, least)
			fullPlans++
		}
		w := &walker{v: v, random: rand.New(rand.NewPCG(uint64(i), 1))}
		for range walk {
			name, moved, least, err := w.step()
			if err != nil {
				return fmt.Errorf("a walk: %s: %w", name, err)
			}
			note(name, moved, least)
			walked++
		}
		if _, err := fmt.Fprintf(progress, "resize-bytes: %s: %d pairs, worst ratio so far %.6f, %.1f s\n", v.Proto.Model, pairs-before, worst,
			time.Since(modelBegin).Seconds()); err != nil {
			return err
		}
		if err := printLine(out, map[string]any{"bench": "resize-bytes", "model": v.Proto.Model, "pairs": pairs - before, "worst": worst}); err != nil {
			return err
		}
	}
	return printLine(out, Summary{Bench: "resize-bytes", Value: worst, Unit: "bytes moved / lower bound", Ceiling: 1, Ratio: worst,
		Env: environment(quick), Metrics: map[string]any{"pairs": pairs, "pairs_left_out": skipped, "models": len(views),
			"layers_per_pair": 1, "plans_of_all_layers": fullPlans, "plans_of_walks": walked, "worst_case": most, "seconds": time.Since(begin).Seconds()}})
}

// everyPair goes through all pairs by strides, so that the pairs left out at the deadline are spread over all widths.
func everyPair(v *geometry.View, mode layout.Mode, limit int, deadline time.Time, note func(string, uint64, uint64)) (done, left int, err error) {
	froms := make([]*tangramv1.Layout, limit+1)
	total := limit * limit
	stride := 1
	for _, s := range []int{617, 619, 631} { // primes: coprime to any total they do not divide
		if total%s != 0 {
			stride = s
			break
		}
	}
	for i := range total {
		if !deadline.IsZero() && time.Now().After(deadline) {
			return i, total - i, nil
		}
		k := i * stride % total
		p, q := k/limit+1, k%limit+1
		if froms[p] == nil {
			if froms[p], err = start(v, p, mode); err != nil {
				return i, 0, err
			}
		}
		moved, least, err := resize(v, froms[p], mode, q)
		if err != nil {
			return i, 0, fmt.Errorf("%s, %v %d -> %d: %w", v.Proto.Model, mode, p, q, err)
		}
		note(fmt.Sprintf("%s, %v %d -> %d", v.Proto.Model, mode, p, q), moved, least)
	}
	return total, 0, nil
}

func pair(v *geometry.View, mode layout.Mode, p, q int) (moved, least uint64, err error) {
	from, err := start(v, p, mode)
	if err != nil {
		return 0, 0, err
	}
	return resize(v, from, mode, q)
}

// resize counts the bytes in the parts themselves, not the plan's stated cost.
func resize(v *geometry.View, from *tangramv1.Layout, mode layout.Mode, q int) (moved, least uint64, err error) {
	in := request(v, from, q, mode)
	result, err := planner.Plan(in)
	if err != nil {
		return 0, 0, err
	}
	g := uint32(1)
	if mode == layout.Tensor {
		g = uint32(q)
	}
	moved, least = movedAndLeast(v, in, result, g)
	return moved, least, nil
}

// movedAndLeast counts the bytes in a plan's parts to groups of g ranks, and the lower bound for its shape.
func movedAndLeast(v *geometry.View, in planner.Input, result *planner.Result, g uint32) (moved, least uint64) {
	ordinal := map[uint32]int{}
	held := make([][][]bound.Held, v.MoELayers())
	for o, layer := range v.Proto.MoeLayers {
		ordinal[layer] = o
		held[o] = make([][]bound.Held, v.Proto.Experts)
	}
	type owner struct {
		member        string
		layer, expert uint32
	}
	holds := map[owner]bool{}
	for rank, m := range in.Members {
		inv := m.Inventory
		for i := range inv.GetLayer() {
			o, e := ordinal[inv.Layer[i]], inv.Expert[i]
			held[o][e] = append(held[o][e], bound.Held{Rank: uint32(rank), Run: geometry.Run{Start: inv.GranuleStart[i], Count: inv.GranuleCount[i]}})
			holds[owner{m.Member.Id, inv.Layer[i], e}] = true
		}
	}
	for _, flip := range result.Plan.Flips {
		for _, part := range flip.Parts {
			f := part.Fetches
			for i := range f.GetLayer() {
				moved += uint64(f.GranuleCount[i]) * v.Proto.GranuleBytes
				if key := (owner{part.Member, f.Layer[i], f.Expert[i]}); !holds[key] {
					moved += v.Proto.ExpertTailBytes
					holds[key] = true
				}
			}
		}
	}
	target := make([]uint32, len(in.Target))
	for i, id := range in.Target {
		target[i] = uint32(slices.IndexFunc(in.Members, func(m planner.Member) bool { return m.Member.Id == id }))
	}
	memo := bound.NewMemo(v)
	for o := range held {
		least += memo.Layer(held[o], target, g)
	}
	return moved, least
}
