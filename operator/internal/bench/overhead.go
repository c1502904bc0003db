package bench

import (
	"fmt"
	"io"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// The load of KVOverhead, and the KV that the reference engine leaves for the flip after copying ahead
// (e2e/engine/transition). That is the block that a request fills, and a number of full blocks per rank.
const (
	overheadRequests = 256
	overheadTokens   = 4096
	overheadBlock    = 16
	overheadLeft     = 8
	overheadStep     = 30e-3 // seconds
	overheadLink     = 450e9 // bytes per second into a GPU
)

// KVOverhead measures the cost of being ready for a mode switch, by the planner's own flips. One figure is the rank
// memory of weights and KV above the larger of both modes at rest. The other is the bytes that move in a flip after all
// other KV was copied ahead, as a share of a step. No bytes are moved; they are counted.
func KVOverhead(out, progress io.Writer, quick bool) error {
	views, err := publicViews()
	if err != nil {
		return err
	}
	worst, steps, metrics := 0.0, 0.0, map[string]any{}
	for _, m := range []struct{ name, model string }{{"qwen3_235b", publishedModel}, {"deepseek_v3", "DeepSeek-V3/R1/V3.1"}} {
		v, err := find(views, m.model)
		if err != nil {
			return err
		}
		for _, spare := range []uint32{1, 2} {
			for _, way := range [][2]layout.Mode{{layout.Expert, layout.Tensor}, {layout.Tensor, layout.Expert}} {
				name := fmt.Sprintf("%s_%s_to_%s_spare_%d", m.name, short(way[0]), short(way[1]), spare)
				c, err := overheadCase(v, way[0], way[1], spare)
				if err != nil {
					return fmt.Errorf("kv-overhead: %s: %w", name, err)
				}
				if m.model == publishedModel && spare == 1 {
					worst = max(worst, c.overhead())
				}
				steps = max(steps, c.flipSteps)
				metrics[name] = c.overhead()
				line := map[string]any{"bench": "kv-overhead", "case": name, "flips": c.flips, "weights_at_rest": c.weights, "kv_at_rest": []uint64{c.kvBefore, c.kvAfter},
					"weights_in_a_flip": c.peakWeights, "kv_in_a_flip": c.peakKV, "overhead": c.overhead(), "kv_of_a_flip_in_steps": c.flipSteps, "repair_headroom_bytes": c.repair}
				if err := printLine(out, line); err != nil {
					return err
				}
				if _, err := fmt.Fprintf(progress, "kv-overhead: %s: %d flips; a rank at rest %.1f GB of weights and %.1f, %.1f of KV; %.4f more to switch; a flip's KV takes %.4f of a step; a repair wants %.1f GB\n", name, c.flips,
					float64(c.weights)/1e9, float64(c.kvBefore)/1e9, float64(c.kvAfter)/1e9, c.overhead(), c.flipSteps, float64(c.repair)/1e9); err != nil {
					return err
				}
			}
		}
	}
	metrics["flip_steps"] = steps
	return printLine(out, Summary{Bench: "kv-overhead", Value: worst, Unit: "memory that a switch of Qwen3-235B with one spare bank needs over what a rank holds at rest", Ceiling: .024, Ratio: worst / .024, Metrics: metrics,
		Env: environment(quick)})
}

// overhead of one switch, in bytes of the most loaded rank.
type overhead struct {
	flips                int
	weights, peakWeights uint64 // at rest, the larger of both modes; during flips
	kvBefore, kvAfter    uint64
	peakKV, rest, peak   uint64 // weights and KV together
	repair               uint64 // extra memory of a survivor for the worst loss of a rank, on top of rest
	flipSteps            float64
}

func (o *overhead) overhead() float64 { return float64(o.peak-o.rest) / float64(o.rest) }

func overheadCase(v *geometry.View, from, to layout.Mode, spare uint32) (*overhead, error) {
	in := request(v, nil, modelRanks, from)
	in.Options.SpareBanks = spare
	first, err := planner.Plan(in)
	if err != nil {
		return nil, err
	}
	now := first.Final
	in = request(v, now, modelRanks, to)
	in.Options.SpareBanks = spare
	result, err := planner.Plan(in)
	if err != nil {
		return nil, err
	}
	o := &overhead{flips: len(result.Plan.Flips)}
	last := result.Plan.Flips[len(result.Plan.Flips)-1]
	weightsBefore, weightsAfter := make([]uint64, modelRanks), make([]uint64, modelRanks)
	for _, part := range first.Plan.Flips[len(first.Plan.Flips)-1].Parts {
		weightsBefore[part.Rank] = part.SteadyBytes
	}
	for _, part := range last.Parts {
		weightsAfter[part.Rank] = part.SteadyBytes
	}
	for r := range modelRanks {
		before, after := kvOf(v, now, r), kvOf(v, result.Final, r)
		o.kvBefore, o.kvAfter = max(o.kvBefore, before), max(o.kvAfter, after)
		o.weights = max(o.weights, weightsBefore[r], weightsAfter[r])
		o.rest = max(o.rest, weightsBefore[r]+before, weightsAfter[r]+after)
	}
	for i, flip := range result.Plan.Flips {
		old := now
		if i > 0 {
			old = result.Layouts[i-1]
		}
		for _, part := range flip.Parts {
			kv := kvOf(v, old, int(part.Rank)) + arriving(v, old, result.Layouts[i], int(part.Rank), overheadTokens)
			o.peakWeights, o.peakKV = max(o.peakWeights, part.PeakBytes), max(o.peakKV, kv)
			o.peak = max(o.peak, part.PeakBytes+kv)
			inFlip := arriving(v, old, result.Layouts[i], int(part.Rank), overheadBlock)
			// The remaining full blocks span all layers of the flip, and at most all heads.
			inFlip += overheadLeft * overheadBlock * changed(old, result.Layouts[i]) * uint64(v.Proto.KvHeads) * v.Proto.KvHeadTokenBytes
			o.flipSteps = max(o.flipSteps, float64(inFlip)/overheadLink/overheadStep)
		}
	}
	o.peak = max(o.peak, o.rest)
	for i := range in.Members {
		in.Members[i].MemoryBytes = 1 << 40 // more than any repair needs
	}
	room, err := planner.Headroom(planner.HeadroomInput{Geometry: v, Layout: now, Members: in.Members})
	if err != nil {
		return nil, err
	}
	for _, s := range room.Worst.Survivors {
		o.repair = max(o.repair, s.NeedBytes-min(s.NeedBytes, weightsBefore[s.Rank]))
	}
	return o, nil
}

// headsOf returns the KV heads that a rank has of a request, by the request's home, in one layer.
func headsOf(v *geometry.View, l *tangramv1.LayerLayout, rank, home int) (first, last uint32) {
	for _, g := range l.Attention {
		p := slices.Index(g.Ranks, uint32(rank))
		if p >= 0 && slices.Contains(g.Ranks, uint32(home)) {
			return layout.KVHeadsOf(g, p, v)
		}
	}
	return 0, 0
}

// kvOf returns the KV bytes of a rank, with homes assigned round-robin.
func kvOf(v *geometry.View, l *tangramv1.Layout, rank int) uint64 {
	var heads uint64
	for _, layer := range l.Layers {
		for home := range modelRanks {
			first, last := headsOf(v, layer, rank, home)
			heads += uint64(last-first) * overheadRequests / modelRanks
		}
	}
	return heads * overheadTokens * v.Proto.KvHeadTokenBytes
}

// arriving returns the bytes that a rank lacks and receives in a flip, for `tokens` tokens of each request.
func arriving(v *geometry.View, before, after *tangramv1.Layout, rank int, tokens uint64) uint64 {
	var heads uint64
	for i, layer := range after.Layers {
		for home := range modelRanks {
			first, last := headsOf(v, layer, rank, home)
			a, b := headsOf(v, before.Layers[i], rank, home)
			have := max(int64(min(last, b))-int64(max(first, a)), 0)
			heads += uint64(int64(last-first)-have) * overheadRequests / modelRanks
		}
	}
	return heads * tokens * v.Proto.KvHeadTokenBytes
}

// changed counts the layers whose attention sharding changes.
func changed(before, after *tangramv1.Layout) (n uint64) {
	for i, layer := range after.Layers {
		if layer.AttentionGroupSize != before.Layers[i].AttentionGroupSize {
			n++
		}
	}
	return n
}
