package simulator

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Price of a change of shape, of any width, from the real planner's bytes. All layers are alike, so one is planned and
// counts for all. A plan that the planner rejects is its error. Ranks join or leave at the end of their order.
func Price(v *geometry.View, from, to kernels.Shape, memory costmodel.Memory) (costmodel.Transition, error) {
	if from == to {
		return costmodel.Transition{}, nil
	}
	g := proto.CloneOf(v.Proto)
	g.Layers, g.MoeLayers = 1, []uint32{0}
	one, err := geometry.New(g)
	if err != nil {
		return costmodel.Transition{}, err
	}
	banks := max(memory.SpareBanks, 1)
	before, err := planned(one, nil, from, banks)
	if err != nil {
		return costmodel.Transition{}, err
	}
	after, err := planned(one, before.Final, to, banks)
	if err != nil {
		return costmodel.Transition{}, err
	}
	layers := v.MoELayers()
	t := PriceOf(after, v, to)
	t.BusiestBytes *= uint64(layers)
	t.Flips = (layers + banks - 1) / banks
	if _, err := memory.Budget(v, to); err != nil {
		return costmodel.Transition{}, err
	}
	return t, nil
}

// PriceOf returns the price of a plan to a shape: the expert bytes that its busiest rank receives, its flips, and the
// KV that moves per live token.
func PriceOf(planned *planner.Result, v *geometry.View, to kernels.Shape) costmodel.Transition {
	received := map[string]uint64{}
	for _, flip := range planned.Plan.Flips {
		for _, part := range flip.Parts {
			for _, count := range part.Fetches.GetGranuleCount() {
				received[part.Member] += uint64(count) * v.Proto.GranuleBytes
			}
		}
	}
	t := costmodel.Transition{Flips: len(planned.Plan.Flips)}
	for _, bytes := range received {
		t.BusiestBytes = max(t.BusiestBytes, bytes)
	}
	// Each rank keeps this much of a token of the world in the new shape; its old part of it is an even share.
	kept := float64(costmodel.TokenBytes(v, to)) * float64(to.AttentionGroup) / float64(to.Ranks)
	t.TokenBytes = kept * (1 - 1/float64(to.Ranks))
	return t
}

func planned(v *geometry.View, current *tangramv1.Layout, shape kernels.Shape, banks int) (*planner.Result, error) {
	in := planner.Input{World: "simulated", Revision: "r", Geometry: v, Current: current, Options: planner.Options{SpareBanks: uint32(banks)},
		Shape: layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{
			0: {ExpertGroup: uint32(shape.ExpertGroup), AttentionGroup: uint32(shape.AttentionGroup)}}}}
	for i := range max(shape.Ranks, len(current.GetMembers())) {
		m := planner.Member{Member: &tangramv1.Member{Id: fmt.Sprintf("00000000-0000-4000-8000-000000000000/%d/1", i), Node: "node", Pod: "world", Link: "rdma"}}
		if i < len(current.GetMembers()) {
			m.Inventory = layout.InventoryOf(current, v, uint32(i))
		}
		in.Members = append(in.Members, m)
		if i < shape.Ranks {
			in.Target = append(in.Target, m.Member.Id)
		}
	}
	return planner.Plan(in)
}

// Hardware of a simulated world.
type Hardware struct {
	Memory costmodel.Memory
	Rates  costmodel.Rates
}

// H200 has the rate that Moebius (arXiv 2606.26607) measured for its switch: Qwen3-235B's experts, 49.7 GB to each of 8
// ranks in 152 ms. A flip of one millisecond, and the sizes of graphs and communicators, are assumptions.
func H200() Hardware {
	return Hardware{
		Memory: costmodel.Memory{RankBytes: 141e9, SpareBanks: 2, GraphBytes: 2e9, CommunicatorBytes: 1e9, ActivationBytes: 4e9},
		Rates:  costmodel.Rates{BytesPerSecond: 327e9, FlipSeconds: .001},
	}
}

// Build returns the modes and prices of a world with one engine's kernels as truth.
func Build(v *geometry.View, t *kernels.Table, engine, routing string, h Hardware, shapes ...kernels.Shape) (Config, error) {
	c := Config{Rates: h.Rates}
	for _, s := range shapes {
		truth, err := kernels.At(t, v, engine, routing, s)
		if err != nil {
			return Config{}, err
		}
		room, err := h.Memory.Budget(v, s)
		if err != nil {
			return Config{}, err
		}
		c.Modes = append(c.Modes, Mode{Truth: truth, GroupTokens: room.GroupTokens})
	}
	for _, from := range shapes {
		var row []costmodel.Transition
		for _, to := range shapes {
			price, err := Price(v, from, to, h.Memory)
			if err != nil {
				return Config{}, err
			}
			row = append(row, price)
		}
		c.Switches = append(c.Switches, row)
	}
	return c, nil
}
