// Package bench measures the planner: bytes against the lower bound, time, and message sizes. docs/architecture.md,
// section 6, defines the output.
package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Summary is the last line of a bench. tests/bench.py judges whether the goals are reached.
type Summary struct {
	Bench   string         `json:"bench"`
	Value   float64        `json:"value"`
	Unit    string         `json:"unit"`
	Ceiling float64        `json:"ceiling"`
	Ratio   float64        `json:"ratio"`
	Metrics map[string]any `json:"metrics"`
	Env     map[string]any `json:"env"`
}

func environment(quick bool) map[string]any {
	return map[string]any{"go": runtime.Version(), "arch": runtime.GOARCH, "cpus": runtime.NumCPU(),
		"gomaxprocs": runtime.GOMAXPROCS(0), "quick": quick}
}

func printLine(out io.Writer, line any) error {
	if err := json.NewEncoder(out).Encode(line); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

func publicViews() ([]*geometry.View, error) {
	all, err := geometry.Public()
	if err != nil {
		return nil, err
	}
	var out []*geometry.View
	for _, g := range all {
		v, err := geometry.New(g)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.Model, err)
		}
		out = append(out, v)
	}
	return out, nil
}

func find(views []*geometry.View, model string) (*geometry.View, error) {
	for _, v := range views {
		if v.Proto.Model == model {
			return v, nil
		}
	}
	return nil, fmt.Errorf("bench: no geometry named %q", model)
}

// oneLayer is the geometry with its first MoE layer only. In mode Tensor, query heads limit t, which this bench does
// not measure; so shapeOf sets t = 1 where heads are too few.
func oneLayer(v *geometry.View) (*geometry.View, error) { return firstLayers(v, 1) }

// firstLayers is the geometry with its first n MoE layers only.
func firstLayers(v *geometry.View, n uint32) (*geometry.View, error) {
	g := proto.CloneOf(v.Proto)
	g.Layers, g.MoeLayers, g.EvenShardsOnly, g.DenseBytes = min(n, uint32(v.MoELayers())), nil, false, 0
	for l := range g.Layers {
		g.MoeLayers = append(g.MoeLayers, l)
	}
	return geometry.New(g)
}

// shapeOf returns the shape of a mode, with t = 1 if there are more ranks than query heads.
func shapeOf(v *geometry.View, mode layout.Mode, ranks int) layout.Shape {
	s := layout.Shape{Mode: mode}
	if mode == layout.Tensor && uint32(ranks) > v.Proto.QueryHeads {
		s.Mode, s.Layers = layout.Expert, map[uint32]layout.LayerShape{}
		for l := range v.Proto.Layers {
			s.Layers[l] = layout.LayerShape{ExpertGroup: uint32(ranks), AttentionGroup: 1}
		}
	}
	return s
}

func members(n int) []planner.Member {
	out := make([]planner.Member, n)
	for i := range out {
		out[i].Member = &tangramv1.Member{Id: fmt.Sprintf("00000000-0000-4000-8000-%012d/%d/1", i/8, i%8),
			Node: fmt.Sprintf("node-%d", i/8), Pod: fmt.Sprintf("world-%d", i/8), Link: "rdma"}
	}
	return out
}

// request is a plan from `current` (nil: first start) to n ranks; each rank holds the pieces of `current`.
func request(v *geometry.View, current *tangramv1.Layout, n int, mode layout.Mode) planner.Input {
	in := planner.Input{World: "bench", Revision: "r", Geometry: v, Current: current, Shape: shapeOf(v, mode, n),
		Options: planner.Options{SpareBanks: 2}}
	old := len(current.GetMembers())
	in.Members = members(max(n, old))
	for i := range in.Members {
		if i < old {
			in.Members[i].Inventory = layout.InventoryOf(current, v, uint32(i))
		}
		if i < n {
			in.Target = append(in.Target, in.Members[i].Member.Id)
		}
	}
	return in
}

func start(v *geometry.View, n int, mode layout.Mode) (*tangramv1.Layout, error) {
	result, err := planner.Plan(request(v, nil, n, mode))
	if err != nil {
		return nil, fmt.Errorf("%s, %v on %d ranks: %w", v.Proto.Model, mode, n, err)
	}
	return result.Final, nil
}
