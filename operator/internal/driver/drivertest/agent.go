package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Agent of one pod; all its ranks go through an attempt together. It is a driver.Agent.
type Agent struct {
	w        *World
	pod      Pod
	highest  uint64
	attempt  uint64
	phase    tangramv1.Phase
	layout   *tangramv1.Layout // in force here; nil: none
	target   *tangramv1.Layout
	calls    []string
	stopped  bool
	deaf     bool
	attached bool
	fail     string             // of the next Stage
	refuse   *tangramv1.Refusal // of every Prepare
	lose     bool               // the next Permit is done, its reply is lost
}

// errGone is what a caller of a stopped or deaf agent gets.
var errGone = errors.New("connection refused")

// bytesPerRank that a rank pretends to stage.
const bytesPerRank = 1 << 20

// Member id of a device.
func (a *Agent) Member(device int) string { return fmt.Sprintf("%s/%d/1", a.pod.UID, device) }

// Address of the agent.
func (a *Agent) Address() string { return a.pod.Address }

func (a *Agent) set(change func()) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	change()
}

// Refuse every Prepare; nil: no more.
func (a *Agent) Refuse(why *tangramv1.Refusal) { a.set(func() { a.refuse = why }) }

// FailStage fails the next staging, with these words.
func (a *Agent) FailStage(why string) { a.set(func() { a.fail = why }) }

// LoseReply of the next Permit, which is done.
func (a *Agent) LoseReply() { a.set(func() { a.lose = true }) }

// Deaf agents go on, but answer nobody.
func (a *Agent) Deaf(deaf bool) { a.set(func() { a.deaf = deaf }) }

// Detach the engines, or attach them again.
func (a *Agent) Detach(detached bool) { a.set(func() { a.attached = !detached }) }

// InWorld says that one of its ranks is in the layout in force.
func (a *Agent) InWorld() bool {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return a.layout != nil
}

// Calls that came in, in order: prepare, stage, permit, abort, retire.
func (a *Agent) Calls() []string {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return slices.Clone(a.calls)
}

func (a *Agent) no(code tangramv1.Refusal_Code, why string) error {
	return &agentclient.Refused{Agent: a.pod.Address, Refusal: &tangramv1.Refusal{Code: code, Message: why,
		Current: &tangramv1.Header{World: a.w.name, Epoch: a.layout.GetEpoch(), Attempt: a.attempt}}}
}

// hear takes the lock for a call, if the agent answers at all.
func (a *Agent) hear(name string) error {
	a.w.mu.Lock()
	if a.stopped || a.deaf {
		a.w.mu.Unlock()
		return fmt.Errorf("agent %s: %w", a.pod.Address, errGone)
	}
	if name != "" {
		a.calls = append(a.calls, name)
	}
	return nil
}

// Status implements driver.Agent.
func (a *Agent) Status(context.Context, string) (*tangramv1.StatusResponse, error) {
	if err := a.hear(""); err != nil {
		return nil, err
	}
	defer a.w.mu.Unlock()
	return a.statusLocked()
}

func (a *Agent) statusLocked() (*tangramv1.StatusResponse, error) {
	s := &tangramv1.StatusResponse{World: a.w.name, Epoch: a.layout.GetEpoch(), Layout: a.layout, Geometry: a.w.view.Proto, Revision: "r1",
		HighestAttempt: a.highest, Address: &tangramv1.PeerAddress{Agent: a.pod.Address}}
	if a.layout != nil {
		hash, err := layout.Hash(a.layout)
		if err != nil {
			return nil, err
		}
		s.LayoutHash = hash
	}
	for device := range a.pod.Ranks {
		s.Ranks = append(s.Ranks, a.rankLocked(device))
	}
	return s, nil
}

func (a *Agent) rankLocked(device int) *tangramv1.RankStatus {
	t := &tangramv1.TransitionStatus{Attempt: a.attempt, Phase: a.phase, TargetEpoch: a.target.GetEpoch()}
	switch a.phase {
	case tangramv1.Phase_PHASE_STAGING:
		t.BytesDone, t.BytesTotal = bytesPerRank/2, bytesPerRank
	case tangramv1.Phase_PHASE_STAGED, tangramv1.Phase_PHASE_PERMITTED:
		t.BytesDone, t.BytesTotal, t.BytesTcp = bytesPerRank, bytesPerRank, bytesPerRank
	case tangramv1.Phase_PHASE_FLIPPED:
		t.BytesDone, t.BytesTotal, t.BytesTcp, t.StepsSinceFlip = bytesPerRank, bytesPerRank, bytesPerRank, 1
	case tangramv1.Phase_PHASE_FAILED:
		t.Error = a.fail
	default:
	}
	r := &tangramv1.RankStatus{Member: &tangramv1.Member{Id: a.Member(device), Node: a.pod.Node, Pod: a.pod.Name}, MemoryBytes: a.w.memory,
		Engine: &tangramv1.EngineStatus{Attached: a.attached}, Inventory: &tangramv1.Inventory{}, Transition: t}
	if rank := layout.RankOf(a.layout, a.Member(device)); rank >= 0 {
		r.InWorld, r.Rank, r.Inventory = true, uint32(rank), layout.InventoryOf(a.layout, a.w.view, uint32(rank))
	}
	return r
}

// Watch implements driver.Agent.
func (a *Agent) Watch(ctx context.Context, world string, each func(*tangramv1.StatusResponse)) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := a.Status(ctx, world)
		if err != nil {
			return err
		}
		each(s)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Prepare implements driver.Agent.
func (a *Agent) Prepare(_ context.Context, q *tangramv1.PrepareRequest) error {
	if err := a.hear("prepare"); err != nil {
		return err
	}
	defer a.w.mu.Unlock()
	if a.refuse != nil {
		return &agentclient.Refused{Agent: a.pod.Address, Call: "Prepare", Refusal: a.refuse}
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
	if err := a.checkLocked(q, target); err != nil {
		return a.no(tangramv1.Refusal_CODE_BAD_PLAN, err.Error())
	}
	a.highest, a.attempt, a.phase, a.target = q.Header.Attempt, q.Header.Attempt, tangramv1.Phase_PHASE_PREPARED, proto.CloneOf(target)
	return nil
}

// checkLocked what an agent can check of a plan: the target is what the hash says and valid,
// and there is one part for each of its ranks that is in the old or the new layout.
func (a *Agent) checkLocked(q *tangramv1.PrepareRequest, target *tangramv1.Layout) error {
	hash, err := layout.Hash(target)
	if err != nil {
		return err
	}
	if string(hash) != string(q.TargetHash) {
		return fmt.Errorf("the target's hash is %x, not %x", hash, q.TargetHash)
	}
	if err := layout.Validate(target, a.w.view); err != nil {
		return err
	}
	parts := map[string]int{}
	for _, p := range q.Parts {
		parts[p.Member]++
	}
	for device := range a.pod.Ranks {
		id := a.Member(device)
		if layout.RankOf(a.layout, id) < 0 && layout.RankOf(target, id) < 0 {
			continue
		}
		if parts[id] != 1 {
			return fmt.Errorf("%d parts for member %s", parts[id], id)
		}
		delete(parts, id)
	}
	if len(parts) > 0 {
		return fmt.Errorf("parts of others: %v", parts)
	}
	return nil
}

// Stage implements driver.Agent.
func (a *Agent) Stage(_ context.Context, h *tangramv1.Header) error {
	if err := a.hear("stage"); err != nil {
		return err
	}
	defer a.w.mu.Unlock()
	if h.Attempt != a.attempt || a.phase == tangramv1.Phase_PHASE_IDLE {
		return a.no(tangramv1.Refusal_CODE_STALE_ATTEMPT, "stale")
	}
	if a.phase != tangramv1.Phase_PHASE_PREPARED {
		return nil // a repeated call
	}
	switch {
	case a.fail != "":
		a.phase = tangramv1.Phase_PHASE_FAILED
	case a.w.holdStage:
		a.phase = tangramv1.Phase_PHASE_STAGING
	default:
		a.phase = tangramv1.Phase_PHASE_STAGED
	}
	return nil
}

// Permit implements driver.Agent.
func (a *Agent) Permit(_ context.Context, h *tangramv1.Header) error {
	if err := a.hear("permit"); err != nil {
		return err
	}
	defer a.w.mu.Unlock()
	if h.Attempt != a.attempt || a.phase < tangramv1.Phase_PHASE_STAGED || a.phase > tangramv1.Phase_PHASE_FLIPPED {
		return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "not staged")
	}
	if a.phase == tangramv1.Phase_PHASE_STAGED {
		a.phase = tangramv1.Phase_PHASE_PERMITTED
	}
	a.w.gateLocked(h.Attempt)
	if a.lose {
		a.lose = false
		return errors.New("connection reset")
	}
	return nil
}

// Abort implements driver.Agent.
func (a *Agent) Abort(_ context.Context, h *tangramv1.Header, _ string) (bool, error) {
	if err := a.hear("abort"); err != nil {
		return false, err
	}
	defer a.w.mu.Unlock()
	a.highest = max(a.highest, h.Attempt)
	if h.Attempt != a.attempt {
		return false, nil
	}
	if a.phase == tangramv1.Phase_PHASE_FLIPPED {
		return true, nil
	}
	if a.phase == tangramv1.Phase_PHASE_FAILED {
		a.fail = ""
	}
	a.phase = tangramv1.Phase_PHASE_IDLE
	return false, nil
}

// Retire implements driver.Agent.
func (a *Agent) Retire(_ context.Context, h *tangramv1.Header) error {
	if err := a.hear("retire"); err != nil {
		return err
	}
	defer a.w.mu.Unlock()
	if h.Attempt != a.attempt || a.phase != tangramv1.Phase_PHASE_FLIPPED && a.phase != tangramv1.Phase_PHASE_IDLE {
		return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "not flipped")
	}
	a.phase = tangramv1.Phase_PHASE_IDLE
	return nil
}

// Leave the agent staged in an attempt to its own layout again, as a driver does that dies.
func (a *Agent) Leave(attempt uint64) {
	a.set(func() {
		a.attempt, a.highest, a.phase = attempt, max(a.highest, attempt), tangramv1.Phase_PHASE_STAGED
		a.target = proto.CloneOf(a.layout)
		a.target.Epoch++
	})
}
