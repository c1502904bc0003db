package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	"tangram.dev/operator/pkg/simulator"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// pricing computes the cost of a new shape with the transitions' planner, from active layout and agents' memory.
type pricing struct {
	shapes
	view *geometry.View
	seen world.Snapshot
}

// price returns the cost of a change from the active layout. Errors: the planner's, or what engines do not support.
func (p pricing) price(from, to kernels.Shape) (costmodel.Transition, error) {
	if from == to {
		return costmodel.Transition{}, nil
	}
	shape := p.layoutShape(to)
	if p.byData && to.AttentionGroup > 1 {
		return costmodel.Transition{}, fmt.Errorf("attentionGroup is %d, but the engine keeps all heads of a request on one rank", to.AttentionGroup)
	}
	l := p.seen.Layout
	in := planner.Input{World: worldName(p.d), Revision: l.GetRevision(), Geometry: p.view, Current: l, Shape: shape,
		Options: planner.Options{SpareBanks: uint32(p.d.Spec.Tuning.SpareBanks)}}
	pool := uint64(p.d.Spec.Memory.Weights.Value())
	memory := map[string]uint64{}
	for _, status := range p.seen.Statuses {
		for _, r := range status.GetRanks() {
			memory[r.GetMember().GetId()] = r.MemoryBytes
		}
	}
	for i, m := range l.GetMembers() {
		// Inventory from the layout: an agent's report may precede the last flip, and a price is for one layout.
		in.Members = append(in.Members, planner.Member{Member: m, Inventory: layout.InventoryOf(l, p.view, uint32(i)), MemoryBytes: cmp.Or(memory[m.Id], pool)})
	}
	for i := len(in.Members); i < to.Ranks; i++ { // pods that do not exist yet
		id := fmt.Sprintf("00000000-0000-4000-8000-%012d/0/1", i)
		in.Members = append(in.Members, planner.Member{Member: &tangramv1.Member{Id: id, Node: fmt.Sprint("node-", i), Pod: fmt.Sprint("pod-", i)}, MemoryBytes: pool})
	}
	for _, m := range in.Members[:to.Ranks] {
		in.Target = append(in.Target, m.Member.Id)
	}
	plan, err := planner.Plan(in)
	if err != nil {
		return costmodel.Transition{}, err
	}
	return simulator.PriceOf(plan, p.view, to), nil
}

// layoutShape is the shape that a transition would have.
func (p pricing) layoutShape(s kernels.Shape) layout.Shape {
	switch p.mode(s) {
	case api.ModeExpert:
		return layout.Shape{Mode: layout.Expert}
	case api.ModeTensor:
		return layout.Shape{Mode: layout.Tensor, AttentionByData: p.byData}
	}
	return spreadOf(p.kindOf(s)).Shape(int(p.view.Proto.Layers), s.Ranks)
}

// refused says why a shape is blocked: a switch failed recently, or a repair needs the checkpoint and it is unreadable.
func (p pricing) refused(s kernels.Shape) string {
	if st := p.d.Status.Policy; st != nil {
		if i := slices.IndexFunc(st.Backoff, p.isOption(s)); i >= 0 && time.Now().Before(st.Backoff[i].Until.Time) {
			r := st.Backoff[i]
			return fmt.Sprintf("the last switch to this shape failed and is not retried before %s: %s", r.Until.UTC().Format(time.TimeOnly), r.Message)
		}
	}
	if p.layoutShape(s).Shares() {
		for _, status := range p.seen.Statuses {
			if why := status.GetCheckpointError(); why != "" {
				return "an agent cannot read the checkpoint, which a repair would require: " + why
			}
		}
	}
	return ""
}
