package plancli

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/planner"
	"tangram.dev/operator/pkg/rebalance"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// World is a width and a mode. Ranks 0: no world yet.
type World struct {
	Ranks int    `json:"ranks"`
	Mode  string `json:"mode,omitempty"`
	// Layout of a world in mode Hybrid; otherwise nil.
	Layout layout.Ranges `json:"layout,omitempty"`
}

func (w World) String() string {
	if w.Mode == layout.Hybrid.String() {
		return fmt.Sprintf("%s (%v)", w.Mode, w.Layout)
	}
	return w.Mode
}

// PlanInput of Plan.
type PlanInput struct {
	Geometry    *geometry.View
	From, To    World
	RanksPerPod int
	SpareBanks  uint32
	MemoryBytes uint64         // of each rank for weights; 0: not checked
	Old         load.Placement // of From in mode ExpertParallel; nil: the initial placement
	// Loads [MoE layer][expert], to place experts by; nil: move as little as possible. The fields below apply to a
	// placement by load.
	Loads     [][]float64
	Redundant int
	MaxMoves  int
	Price     float64
}

// Plan makes the plan that the operator would make, for members that hold the pieces of their layout.
func Plan(in PlanInput) (*PlanReport, error) {
	if in.RanksPerPod < 1 {
		return nil, fmt.Errorf("number of ranks per pod is %d; want at least 1", in.RanksPerPod)
	}
	if in.Redundant != 0 && in.Loads == nil {
		return nil, fmt.Errorf("%d redundant experts cannot be placed without a load: set --load", in.Redundant)
	}
	if in.Old != nil && (in.From.Ranks == 0 || in.From.Mode != layout.Expert.String()) {
		return nil, fmt.Errorf("an active placement needs an active layout in ExpertParallel mode: set --from-ranks and --from-mode ExpertParallel")
	}
	r := &PlanReport{Model: in.Geometry.Proto.Model, From: in.From, To: in.To}
	var current *tangramv1.Layout
	if in.From.Ranks != 0 {
		now, err := in.to(nil, in.From, nil)
		if err == nil && in.Old != nil { // an initial layout has one copy of each
			now, err = in.to(now.Final, in.From, sorted(in.Old))
		}
		if err != nil {
			return nil, fmt.Errorf("active layout: %w", err)
		}
		current = now.Final
	}
	var placed [][][]uint32
	if in.Loads != nil {
		var err error
		if r.Balance, err = in.balance(current); err != nil {
			return nil, err
		}
		placed = sorted(r.Balance.Placement)
	}
	result, err := in.to(current, in.To, placed)
	if err != nil {
		return nil, err
	}
	r.fill(in.Geometry, current, result)
	return r, nil
}

// balance places experts on the target ranks by load, from the active placement.
func (in *PlanInput) balance(current *tangramv1.Layout) (*BalanceReport, error) {
	if in.To.Mode != layout.Expert.String() {
		return nil, fmt.Errorf("--load cannot be used with target mode %s: experts are placed by load only in ExpertParallel mode", in.To.Mode)
	}
	if len(in.Loads) != in.Geometry.MoELayers() || len(in.Loads[0]) != int(in.Geometry.Proto.Experts) {
		return nil, fmt.Errorf("load has %d layers of %d experts; want %d MoE layers of %d experts, as %s has", len(in.Loads), len(in.Loads[0]),
			in.Geometry.MoELayers(), in.Geometry.Proto.Experts, in.Geometry.Proto.Model)
	}
	b := BalanceInput{Loads: in.Loads, Ranks: in.To.Ranks, Nodes: (in.To.Ranks + in.RanksPerPod - 1) / in.RanksPerPod, Redundant: in.Redundant, Mode: Full, MaxMoves: in.MaxMoves, Price: in.Price}
	if current != nil && in.From.Mode == layout.Expert.String() {
		old, err := rebalance.FromLayout(current, in.Geometry, 0)
		if err != nil {
			return nil, err
		}
		b.Old, b.Mode = old.Lists(), Incremental
	}
	r, err := Balance(b)
	if err == nil && hollow(r.Placement) { // in a layout, every rank has an expert
		b.Mode = Full
		r, err = Balance(b)
	}
	return r, err
}

func hollow(placement [][][]int32) bool {
	return slices.ContainsFunc(placement, func(ranks [][]int32) bool {
		return slices.ContainsFunc(ranks, func(held []int32) bool { return len(held) == 0 })
	})
}

// sorted converts a placement for layout.Shape, without empty slots.
func sorted(p [][][]int32) [][][]uint32 {
	if p == nil {
		return nil
	}
	out := make([][][]uint32, len(p))
	for l, ranks := range p {
		for _, held := range ranks {
			row := []uint32{}
			for _, e := range held {
				if e != load.Empty {
					row = append(row, uint32(e))
				}
			}
			slices.Sort(row)
			out[l] = append(out[l], slices.Compact(row))
		}
	}
	return out
}

// to plans a transition from a layout to a world.
func (in *PlanInput) to(current *tangramv1.Layout, w World, placed [][][]uint32) (*planner.Result, error) {
	mode, err := layout.ParseMode(w.Mode)
	if err != nil {
		return nil, err
	}
	if w.Ranks < 1 || w.Ranks > 8192 {
		return nil, fmt.Errorf("number of ranks is %d; want 1 to 8192", w.Ranks)
	}
	shape := layout.Shape{Mode: mode}
	if mode == layout.Hybrid {
		if len(w.Layout) == 0 {
			return nil, fmt.Errorf("mode Hybrid needs layers: set -f to a MoEDeployment with spec.parallelism.layers")
		}
		if shape, err = w.Layout.On(in.Geometry, w.Ranks); err != nil {
			return nil, err
		}
	}
	shape.Placement = placed
	p := planner.Input{World: "plan", Revision: "plan", Geometry: in.Geometry, Current: current, Shape: shape,
		Options: planner.Options{SpareBanks: in.SpareBanks}}
	for i := range max(w.Ranks, len(current.GetMembers())) {
		pod, device := i/in.RanksPerPod, i%in.RanksPerPod
		m := planner.Member{Member: &tangramv1.Member{Id: fmt.Sprintf("pod-%d/%d/1", pod, device), Pod: fmt.Sprintf("pod-%d", pod), Node: fmt.Sprintf("node-%d", pod)},
			MemoryBytes: in.MemoryBytes}
		if i < len(current.GetMembers()) {
			m.Inventory = layout.InventoryOf(current, in.Geometry, uint32(i))
		}
		if p.Members = append(p.Members, m); i < w.Ranks {
			p.Target = append(p.Target, m.Member.Id)
		}
	}
	return planner.Plan(p)
}
