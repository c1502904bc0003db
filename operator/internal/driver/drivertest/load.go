package drivertest

import (
	"context"

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

// Load of the experts by the ranks of this agent, as sources.
func (a *Agent) Load(context.Context, string) (*tangramv1.LoadResponse, error) {
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
	out := &tangramv1.LoadResponse{}
	for device := range a.engines {
		out.Ranks = append(out.Ranks, &tangramv1.RankLoad{Member: a.Member(device), Tokens: append([]uint64(nil), a.routed...)})
	}
	return out, nil
}
