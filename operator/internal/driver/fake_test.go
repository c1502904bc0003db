package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// fakeWorld is the gate: an attempt flips when every agent that prepared it is permitted.
type fakeWorld struct {
	mu     sync.Mutex
	view   *geometry.View
	agents []*fakeAgent
	hold   bool // the gate does not open (engines decline)
	// The gate opens once, for members, when the first abort arrives at one of them; at a joiner's
	// it does not, which has withdrawn then.
	openAtAbort bool
}

// fakeAgent keeps the rules of the agent's state machine for one rank.
type fakeAgent struct {
	w         *fakeWorld
	name      string
	highest   uint64
	layout    *tangramv1.Layout
	phase     tangramv1.Phase
	attempt   uint64
	target    *tangramv1.Layout
	calls     []string
	failStage bool
	refuse    *tangramv1.Refusal // of the next Prepare
	lostReply bool               // the next Permit is done, its reply is lost
}

func newFakeWorld(n int) *fakeWorld {
	g := &tangramv1.Geometry{Model: "m", Layers: 2, MoeLayers: []uint32{0, 1}, Hidden: 8, MoeInner: 32, Experts: 6, TopK: 2, QueryHeads: 4, KvHeads: 2,
		HeadDim: 4, GranuleRows: 8, GranuleBytes: 3 * 8 * 8 * 2, Dtype: tangramv1.DType_DTYPE_BF16, SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR,
		PageBytes: 4096, DenseBytes: 10000, KvHeadTokenBytes: 32}
	view, err := geometry.New(g)
	if err != nil {
		panic(err)
	}
	w := &fakeWorld{view: view}
	for i := range n {
		w.agents = append(w.agents, &fakeAgent{w: w, name: fmt.Sprintf("a%d", i), phase: tangramv1.Phase_PHASE_IDLE})
	}
	return w
}

func (a *fakeAgent) id() string      { return a.name + "/0/1" }
func (a *fakeAgent) Address() string { return a.name }

func (a *fakeAgent) no(code tangramv1.Refusal_Code, why string) error {
	return &agentclient.Refused{Agent: a.name, Refusal: &tangramv1.Refusal{Code: code, Message: why}}
}

func (a *fakeAgent) statusLocked() *tangramv1.StatusResponse {
	s := &tangramv1.StatusResponse{World: "w", Epoch: a.layout.GetEpoch(), Layout: a.layout, Geometry: a.w.view.Proto, Revision: "r",
		HighestAttempt: a.highest, Address: &tangramv1.PeerAddress{Agent: a.name}}
	r := &tangramv1.RankStatus{Member: &tangramv1.Member{Id: a.id(), Node: "n", Pod: a.name}, MemoryBytes: 1 << 30,
		Engine: &tangramv1.EngineStatus{Attached: true}, Inventory: &tangramv1.Inventory{}, Transition: &tangramv1.TransitionStatus{
			Attempt: a.attempt, Phase: a.phase, TargetEpoch: a.target.GetEpoch()}}
	if a.phase == tangramv1.Phase_PHASE_FLIPPED {
		r.Transition.StepsSinceFlip = 1
	}
	if a.layout != nil {
		rank := layout.RankOf(a.layout, a.id())
		r.InWorld, r.Rank, r.Inventory = true, uint32(rank), layout.InventoryOf(a.layout, a.w.view, uint32(rank))
		s.LayoutHash, _ = layout.Hash(a.layout)
	}
	s.Ranks = append(s.Ranks, r)
	return s
}

func (a *fakeAgent) Status(context.Context, string) (*tangramv1.StatusResponse, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return a.statusLocked(), nil
}

func (a *fakeAgent) Watch(ctx context.Context, world string, each func(*tangramv1.StatusResponse)) error {
	for ctx.Err() == nil {
		s, _ := a.Status(ctx, world)
		each(s)
		_ = sleep(ctx, time.Millisecond)
	}
	return ctx.Err()
}

func (a *fakeAgent) Prepare(_ context.Context, q *tangramv1.PrepareRequest) error {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.calls = append(a.calls, "prepare")
	if a.refuse != nil {
		why := a.refuse
		a.refuse = nil
		return &agentclient.Refused{Agent: a.name, Call: "Prepare", Refusal: why}
	}
	if q.Header.Attempt <= a.highest || a.phase != tangramv1.Phase_PHASE_IDLE {
		return a.no(tangramv1.Refusal_CODE_STALE_ATTEMPT, "stale or busy")
	}
	if a.layout != nil && q.Header.Epoch != a.layout.Epoch {
		return a.no(tangramv1.Refusal_CODE_STALE_EPOCH, "stale")
	}
	target := q.GetLayout()
	if target == nil {
		var err error
		if target, err = layout.ApplyDelta(a.layout, q.GetDelta(), q.TargetEpoch); err != nil {
			return a.no(tangramv1.Refusal_CODE_BAD_PLAN, err.Error())
		}
	}
	hash, _ := layout.Hash(target)
	if string(hash) != string(q.TargetHash) || layout.Validate(target, a.w.view) != nil || len(q.Parts) != 1 || q.Parts[0].Member != a.id() {
		return a.no(tangramv1.Refusal_CODE_BAD_PLAN, "target or parts do not fit")
	}
	a.highest, a.attempt, a.phase, a.target = q.Header.Attempt, q.Header.Attempt, tangramv1.Phase_PHASE_PREPARED, proto.CloneOf(target)
	return nil
}

func (a *fakeAgent) Stage(_ context.Context, h *tangramv1.Header) error {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.calls = append(a.calls, "stage")
	if h.Attempt != a.attempt {
		return a.no(tangramv1.Refusal_CODE_STALE_ATTEMPT, "stale")
	}
	a.phase = tangramv1.Phase_PHASE_STAGED
	if a.failStage {
		a.phase, a.failStage = tangramv1.Phase_PHASE_FAILED, false
	}
	return nil
}

func (a *fakeAgent) Permit(_ context.Context, h *tangramv1.Header) error {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.calls = append(a.calls, "permit")
	if h.Attempt != a.attempt || a.phase < tangramv1.Phase_PHASE_STAGED || a.phase > tangramv1.Phase_PHASE_FLIPPED {
		return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "not staged")
	}
	if a.phase == tangramv1.Phase_PHASE_STAGED {
		a.phase = tangramv1.Phase_PHASE_PERMITTED
	}
	a.w.gateLocked(h.Attempt)
	if a.lostReply {
		a.lostReply = false
		return errors.New("connection reset")
	}
	return nil
}

func (w *fakeWorld) gateLocked(attempt uint64) {
	var in []*fakeAgent
	for _, a := range w.agents {
		if a.attempt == attempt {
			in = append(in, a)
			if a.phase != tangramv1.Phase_PHASE_PERMITTED || w.hold {
				return
			}
		}
	}
	for _, a := range in {
		a.phase, a.layout = tangramv1.Phase_PHASE_FLIPPED, a.target
		if layout.RankOf(a.layout, a.id()) < 0 {
			a.layout = nil
		}
	}
}

func (a *fakeAgent) Abort(_ context.Context, h *tangramv1.Header, _ string) (bool, error) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.calls = append(a.calls, "abort")
	a.highest = max(a.highest, h.Attempt)
	if h.Attempt != a.attempt {
		return false, nil
	}
	if a.w.openAtAbort && a.layout != nil {
		a.w.hold, a.w.openAtAbort = false, false
		a.w.gateLocked(h.Attempt)
	}
	if a.phase == tangramv1.Phase_PHASE_FLIPPED {
		return true, nil
	}
	a.phase = tangramv1.Phase_PHASE_IDLE
	return false, nil
}

func (a *fakeAgent) Retire(_ context.Context, h *tangramv1.Header) error {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.calls = append(a.calls, "retire")
	if h.Attempt != a.attempt || a.phase != tangramv1.Phase_PHASE_FLIPPED && a.phase != tangramv1.Phase_PHASE_IDLE {
		return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "not flipped")
	}
	a.phase = tangramv1.Phase_PHASE_IDLE
	return nil
}
