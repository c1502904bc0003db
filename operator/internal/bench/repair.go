package bench

import (
	"fmt"
	"io"
	"time"

	"tangram.dev/operator/pkg/bound"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	mostRepairRanks = 64
	repairLayers    = 3 // layers are independent; a walk between modes needs some
)

// state is a world that loses a rank.
type state struct {
	name string
	now  *tangramv1.Layout
	// also is a layout whose verified pieces the ranks hold in addition to those of now; nil: none.
	also *tangramv1.Layout
}

// RepairBytes removes each single rank of worlds of 2 to 64 ranks of the public models, in ExpertParallel, in Tensor
// and halfway between. It compares the bytes that the repair reads with those that no survivor holds. Quick spreads the
// repairs that fit into 30 s over all widths, states and ranks.
func RepairBytes(out, progress io.Writer, quick bool) error {
	views, err := publicViews()
	if err != nil {
		return err
	}
	t := repairTally{begin: time.Now()}
	for i, v := range views {
		few, err := firstLayers(v, repairLayers)
		if err != nil {
			return err
		}
		deadline := time.Time{}
		if quick {
			deadline = t.begin.Add(time.Duration(i+1) * 30 * time.Second / time.Duration(len(views)))
		}
		before, modelBegin := t.repairs, time.Now()
		if err := t.everyWidth(few, deadline); err != nil {
			return err
		}
		if err := t.allLayers(v, 8); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(progress, "repair-bytes: %s: %d repairs, worst ratio so far %.6f, %.1f s\n", v.Proto.Model, t.repairs-before,
			t.worst, time.Since(modelBegin).Seconds()); err != nil {
			return err
		}
		if err := printLine(out, map[string]any{"bench": "repair-bytes", "model": v.Proto.Model, "repairs": t.repairs - before, "worst": t.worst}); err != nil {
			return err
		}
	}
	return printLine(out, Summary{Bench: "repair-bytes", Value: t.worst, Unit: "bytes read / bytes that no survivor holds", Ceiling: 1,
		Ratio: t.worst, Env: environment(quick), Metrics: map[string]any{"repairs": t.repairs,
			"repairs_left_out": t.left, "models": len(views), "layers_per_repair": repairLayers, "repairs_of_all_layers": t.whole,
			"read_gigabytes": float64(t.read) / 1e9, "worst_case": t.name, "seconds": time.Since(t.begin).Seconds()}})
}

// repairTally adds up the results.
type repairTally struct {
	begin                time.Time
	worst                float64
	name                 string // of the worst
	repairs, left, whole int
	read                 uint64
}

// everyWidth goes through the widths, and the ranks of each, by strides, so that the repairs left out at the deadline
// are spread.
func (t *repairTally) everyWidth(v *geometry.View, deadline time.Time) error {
	widths := mostRepairRanks - 1
	for i := range widths {
		n := 2 + i*29%widths // 29 is coprime to 63
		if !deadline.IsZero() && time.Now().After(deadline) {
			t.left += 3 * n // at most
			continue
		}
		states, err := statesOf(v, n)
		if err != nil {
			return err
		}
		for _, s := range states {
			stride, before := 1, t.repairs
			if !deadline.IsZero() {
				stride = max(1, n/6)
			}
			for dead := i % stride; dead < n; dead += stride {
				if err := t.lose(v, s, dead); err != nil {
					return err
				}
			}
			t.left += n - (t.repairs - before)
		}
	}
	return nil
}

// allLayers loses one rank of a world of the whole model, in each mode.
func (t *repairTally) allLayers(v *geometry.View, n int) error {
	for _, mode := range []layout.Mode{layout.Expert, layout.Tensor} {
		if mode == layout.Tensor && uint32(n) > v.Granules {
			continue
		}
		now, err := start(v, n, mode)
		if err != nil {
			return err
		}
		if err := t.lose(v, state{name: fmt.Sprintf("all layers, %v", mode), now: now}, n-1); err != nil {
			return err
		}
		t.whole++
	}
	return nil
}

// statesOf returns the states of a world of n ranks. They are each possible mode and the halfway point between them,
// with and without the previous flip's pieces, which are not retired yet.
func statesOf(v *geometry.View, n int) ([]state, error) {
	var out []state
	var expert, tensor *tangramv1.Layout
	var err error
	if uint32(n) <= v.Proto.Experts {
		if expert, err = start(v, n, layout.Expert); err != nil {
			return nil, err
		}
		out = append(out, state{name: "ExpertParallel", now: expert})
	}
	if uint32(n) <= v.Granules {
		if tensor, err = start(v, n, layout.Tensor); err != nil {
			return nil, err
		}
		out = append(out, state{name: "TensorParallel", now: tensor})
	}
	if expert != nil && tensor != nil {
		walk, err := planner.Plan(request(v, expert, n, layout.Tensor))
		if err != nil {
			return nil, err
		}
		middle := walk.Layouts[0]
		out = append(out, state{name: "half way", now: middle}, state{name: "half way, not retired", now: middle, also: expert})
	}
	return out, nil
}

// lose removes a rank and counts the bytes in the parts themselves. If survivors hold only the layout's pieces, no
// bytes may move between them either.
func (t *repairTally) lose(v *geometry.View, s state, dead int) error {
	in := planner.RepairInput{World: "bench", Revision: "r", Geometry: v, Current: s.now}
	held := make([][][]bound.Held, v.MoELayers())
	for o := range held {
		held[o] = make([][]bound.Held, v.Proto.Experts)
	}
	type owner struct {
		member        string
		layer, expert uint32
	}
	holds := map[owner]bool{}
	for rank, m := range s.now.Members {
		if rank == dead {
			continue
		}
		inv := holding(v, s, uint32(rank))
		in.Survivors = append(in.Survivors, planner.Member{Member: m, Inventory: inv})
		for i, layer := range inv.Layer {
			o, e := v.Ordinal(layer), inv.Expert[i]
			held[o][e] = append(held[o][e], bound.Held{Rank: uint32(rank), Run: geometry.Run{Start: inv.GranuleStart[i], Count: inv.GranuleCount[i]}})
			holds[owner{m.Id, layer, e}] = true
		}
	}
	name := fmt.Sprintf("%s, %s, %d ranks, rank %d lost", v.Proto.Model, s.name, len(s.now.Members), dead)
	result, err := planner.Repair(in)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	moved := uint64(0)
	for _, part := range result.Plan.Flips[0].Parts {
		f := part.Fetches
		for i := range f.GetLayer() {
			if f.Source[i] != 0 && s.also != nil {
				continue
			}
			moved += uint64(f.GranuleCount[i]) * v.Proto.GranuleBytes
			if key := (owner{part.Member, f.Layer[i], f.Expert[i]}); !holds[key] {
				moved += v.Proto.ExpertTailBytes
				holds[key] = true
			}
		}
	}
	least := bound.RepairBytes(v, held)
	ratio := 1.0
	if least > 0 {
		ratio = float64(moved) / float64(least)
	} else if moved > 0 {
		ratio = float64(moved)
	}
	t.repairs, t.read = t.repairs+1, t.read+moved
	if ratio > t.worst {
		t.worst, t.name = ratio, name
	}
	return nil
}

// holding returns the pieces of a rank in a state.
func holding(v *geometry.View, s state, rank uint32) *tangramv1.Inventory {
	inv := layout.InventoryOf(s.now, v, rank)
	if s.also == nil {
		return inv
	}
	also := layout.InventoryOf(s.also, v, rank)
	for i, layer := range also.Layer {
		if s.also.Layers[layer] == s.now.Layers[layer] {
			continue // the same pieces
		}
		inv.Layer, inv.Bank, inv.Slot = append(inv.Layer, layer), append(inv.Bank, also.Bank[i]), append(inv.Slot, also.Slot[i])
		inv.Expert = append(inv.Expert, also.Expert[i])
		inv.GranuleStart, inv.GranuleCount = append(inv.GranuleStart, also.GranuleStart[i]), append(inv.GranuleCount, also.GranuleCount[i])
	}
	return inv
}
