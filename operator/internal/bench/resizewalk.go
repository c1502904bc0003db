package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const walkRanks = 12 // maximum

// walker moves a world of all layers at random through widths, modes and placements. Any members may leave. Each plan
// starts from the layout that the walk has reached, in pools that fit this plan exactly.
type walker struct {
	v      *geometry.View
	random *rand.Rand
	now    *tangramv1.Layout
	joined int // number of members so far
}

func (w *walker) member() planner.Member {
	w.joined++
	return planner.Member{Member: &tangramv1.Member{Id: fmt.Sprintf("00000000-0000-4000-8000-%012d/0/1", w.joined),
		Node: fmt.Sprintf("node-%d", w.joined), Pod: fmt.Sprintf("world-%d", w.joined), Link: "rdma"}}
}

// input of the next plan: some members stay, others join.
func (w *walker) input(n int, shape layout.Shape) planner.Input {
	in := planner.Input{World: "bench", Revision: "r", Geometry: w.v, Current: w.now, Shape: shape, Options: planner.Options{SpareBanks: 2}}
	for rank, m := range w.now.GetMembers() {
		in.Members = append(in.Members, planner.Member{Member: m, Inventory: layout.InventoryOf(w.now, w.v, uint32(rank))})
	}
	stay := w.random.Perm(len(in.Members))[:w.random.IntN(min(n, len(in.Members))+1)]
	slices.Sort(stay)
	for _, rank := range stay {
		in.Target = append(in.Target, in.Members[rank].Member.Id)
	}
	for len(in.Target) < n {
		m := w.member()
		in.Members, in.Target = append(in.Members, m), append(in.Target, m.Member.Id)
	}
	return in
}

// step takes a random step. For a resize or switch it returns the moved bytes and the lower bound; for a rebalance,
// whose placement is given, moved == least.
func (w *walker) step() (name string, moved, least uint64, err error) {
	n := 1 + w.random.IntN(walkRanks)
	shape, kind := layout.Shape{Mode: layout.Expert}, w.random.IntN(3)
	n = min(n, int(w.v.Proto.Experts))
	if kind == 1 {
		n = min(n, int(w.v.Granules))
		shape = shapeOf(w.v, layout.Tensor, n)
	}
	if kind == 2 && w.now != nil {
		shape.Placement = w.placement(n)
	}
	in := w.input(n, shape)
	name = fmt.Sprintf("%s, all layers, %d ranks -> %d (kind %d)", w.v.Proto.Model, len(w.now.GetMembers()), n, kind)
	result, err := planner.Plan(in)
	if err != nil {
		return name, 0, 0, err
	}
	for i := range in.Members { // pools with room for exactly this
		for _, flip := range result.Plan.Flips {
			for _, part := range flip.Parts {
				if part.Member == in.Members[i].Member.Id {
					in.Members[i].MemoryBytes = max(in.Members[i].MemoryBytes, part.PeakBytes)
				}
			}
		}
	}
	if result, err = planner.Plan(in); err != nil {
		return name, 0, 0, fmt.Errorf("in the memory that the same plan asked for: %w", err)
	}
	g := uint32(1)
	if kind == 1 {
		g = uint32(n)
	}
	if w.now == nil { // from the checkpoint: no rank holds a piece
		moved, least = 0, 0
	} else if moved, least = movedAndLeast(w.v, in, result, g); kind == 2 {
		least = moved
	}
	w.now = result.Final
	return name, moved, least, nil
}

// placement at random: every expert on one rank, and about one in four on two, as after rebalances.
func (w *walker) placement(n int) [][][]uint32 {
	out := make([][][]uint32, w.v.MoELayers())
	for o := range out {
		out[o] = make([][]uint32, n)
		for i, e := range w.random.Perm(int(w.v.Proto.Experts)) {
			out[o][i%n] = append(out[o][i%n], uint32(e))
			if other := w.random.IntN(n); other != i%n && w.random.IntN(4) == 0 {
				out[o][other] = append(out[o][other], uint32(e))
			}
		}
		for r := range out[o] {
			slices.Sort(out[o][r])
		}
	}
	return out
}
