package drivertest

import (
	"context"
	"slices"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Route so many tokens to each (layer, expert), by each rank, between one question for the load and the next.
func (w *World) Route(tokens []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routes = tokens
}

// Skew is a load for Route that heats one expert of each layer.
func (w *World) Skew() []uint64 {
	experts := int(w.view.Proto.Experts)
	tokens := make([]uint64, w.view.MoELayers()*experts)
	for i := range tokens {
		tokens[i] = 20
		if i/experts == i%experts { // another one in each
			tokens[i] = 500
		}
	}
	return tokens
}

// Load of the experts by the ranks of this agent: as sources, and as it executed them in the layout in force, where the
// copies of an expert are used evenly.
func (a *Agent) Load(context.Context, string) (*tangramv1.ExpertLoadResponse, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	if a.stopped || a.deaf {
		return nil, errGone
	}
	if a.routed == nil {
		a.routed = make([]uint64, a.w.view.MoELayers()*int(a.w.view.Proto.Experts))
	}
	for i, n := range a.w.routes {
		a.routed[i] += n
	}
	out := &tangramv1.ExpertLoadResponse{}
	for device := range a.engines {
		a.execute(a.Member(device))
		out.Ranks = append(out.Ranks, &tangramv1.RankExpertLoad{Member: a.Member(device), Tokens: slices.Clone(a.routed),
			Executed: slices.Clone(a.executed[a.Member(device)])})
	}
	return out, nil
}

// execute this member's part of what all ranks of the layout route between two questions.
func (a *Agent) execute(member string) {
	experts := int(a.w.view.Proto.Experts)
	if a.executed == nil {
		a.executed = map[string][]uint64{}
	}
	if a.executed[member] == nil {
		a.executed[member] = make([]uint64, len(a.routed))
	}
	rank := layout.RankOf(a.layout, member)
	if rank < 0 || a.w.routes == nil {
		return
	}
	for o, ranks := range layout.PlacementOf(a.layout) {
		copies := make([]uint64, experts)
		for _, held := range ranks {
			for _, e := range held {
				copies[e]++
			}
		}
		if ranks == nil {
			continue // shared by all ranks: no expert is placed
		}
		for _, e := range ranks[rank] {
			i := o*experts + int(e)
			a.executed[member][i] += a.w.routes[i] * uint64(len(a.layout.Members)) / copies[e]
		}
	}
}
