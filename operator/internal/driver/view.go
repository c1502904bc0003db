package driver

import (
	"context"
	"fmt"
	"sync"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// View is what those agents that answer say, at about one time. Unlike an Apply it makes do
// with what it gets: it is for showing and for deciding what to do next.
type View struct {
	// Layout in force, of the highest epoch that an agent is in; nil: none.
	Layout *tangramv1.Layout
	Epoch  uint64
	Hash   []byte
	// Statuses and Errors by agent; one of the two is nil.
	Statuses []*tangramv1.StatusResponse
	Errors   []error
}

// Observe asks the agents side by side.
func Observe(ctx context.Context, world string, agents []Agent) *View {
	v := &View{Statuses: make([]*tangramv1.StatusResponse, len(agents)), Errors: make([]error, len(agents))}
	var wait sync.WaitGroup
	for i, agent := range agents {
		wait.Go(func() {
			status, err := agent.Status(ctx, world)
			if err == nil && status.World != world {
				status, err = nil, fmt.Errorf("agent %s is of world %q, not %q", agent.Address(), status.World, world)
			}
			v.Statuses[i], v.Errors[i] = status, err
		})
	}
	wait.Wait()
	for _, s := range v.Statuses {
		if s.GetLayout() != nil && (v.Layout == nil || s.Epoch > v.Epoch) {
			v.Layout, v.Epoch, v.Hash = s.Layout, s.Epoch, s.LayoutHash
		}
	}
	return v
}
