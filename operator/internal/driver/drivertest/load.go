package drivertest

import (
	"context"
	"slices"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Route sets the tokens that each rank routes to each (layer, expert) between two load queries.
func (w *World) Route(tokens []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routes = tokens
}

// Skew returns a load for Route that heats one expert of each layer.
func (w *World) Skew() []uint64 {
	experts := int(w.view.Proto.Experts)
	tokens := make([]uint64, w.view.MoELayers()*experts)
	for i := range tokens {
		tokens[i] = 20
		if i/experts == i%experts { // a different one in each layer
			tokens[i] = 500
		}
	}
	return tokens
}

// Load returns the load of the experts by this agent's ranks: as routed, and as executed in the active layout, which
// uses the replicas of an expert evenly.
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

// execute counts this member's part of the tokens that all ranks of the layout route between two queries.
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
