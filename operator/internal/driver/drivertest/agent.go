package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Agent is the agent of one pod; all its ranks go through an attempt together. It implements driver.Agent.
type Agent struct {
	w       *World
	pod     Pod
	number  int // in the trace
	highest uint64
	attempt uint64
	phase   tangramv1.Phase
	kind    tangramv1.FlipKind
	layout  *tangramv1.Layout // active here; nil: none
	hash    []byte            // of layout
	target  *tangramv1.Layout

	left     *tangramv1.Layout // left by the reported flip; nil: none, or retired
	leftHash []byte
	held     bool // no flip by votes until it receives the outcome
	latched  bool // its engine's vote is latched: another agent may have flipped on it

	next    []*tangramv1.PrepareRequest // of its run: the flips that have not begun
	runLast uint64                      // last attempt of its run; 0: none, or it has ended here
	why     string                      // reason why its run ended early

	targetHash []byte
	engines    []engine // by device
	calls      []string
	stopped    bool
	deaf       bool
	data       string              // reported address of its data port
	broken     string              // why it cannot read the checkpoint
	block      uint32              // tokens of a block of its engines' KV
	settings   map[string]string   // declared by its engines
	whole      bool                // its engines keep the heads of a request on one rank
	fail       string              // of the next Stage
	refuse     *tangramv1.Refusal  // of every Prepare
	lose       bool                // the next Permit succeeds, but its reply is lost
	routed     []uint64            // by each rank, by (layer, expert)
	executed   map[string][]uint64 // by member, likewise
}

// engine is the engine of a rank.
type engine struct {
	incarnation int // of the member
	detached    bool
	stopped     bool // until a repair
	fresh       bool // reattached, and its peers do not know its address yet
	hung        bool // it does nothing, and closes no connection
}

// errGone is the error of calls to a stopped or deaf agent.
var errGone = errors.New("connection refused")

// bytesPerRank is the number of bytes that a rank pretends to stage.
const bytesPerRank = 1 << 20

// Member returns the member id of a device.
func (a *Agent) Member(device int) string {
	return fmt.Sprintf("%s/%d/%d", a.pod.UID, device, a.engines[device].incarnation)
}

// Address returns the address of the agent.
func (a *Agent) Address() string { return a.pod.Address }

func (a *Agent) set(change func()) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	change()
	a.w.changedLocked()
}

// Refuse rejects every Prepare; nil: no longer.
func (a *Agent) Refuse(why *tangramv1.Refusal) { a.set(func() { a.refuse = why }) }

// FailStage fails the next staging, with this error.
func (a *Agent) FailStage(why string) { a.set(func() { a.fail = why }) }

// LoseReply loses the reply of the next Permit, which itself succeeds.
func (a *Agent) LoseReply() { a.set(func() { a.lose = true }) }

// Deaf makes the agent continue without answering calls.
func (a *Agent) Deaf(deaf bool) { a.set(func() { a.deaf = deaf }) }

// AttentionDataOnly restricts its engines to layouts that keep the heads of a request on one rank.
func (a *Agent) AttentionDataOnly() { a.set(func() { a.whole = true }) }

// BlockTokens sets the block size of its engines' KV.
func (a *Agent) BlockTokens(n uint32) { a.set(func() { a.block = n }) }

// Settings sets the settings that its engines declare.
func (a *Agent) Settings(s map[string]string) { a.set(func() { a.settings = s }) }

// BreakCheckpoint makes the checkpoint unreadable, with this error; empty: readable.
func (a *Agent) BreakCheckpoint(why string) { a.set(func() { a.broken = why }) }

// MoveData changes the data address, like an agent that restarted.
func (a *Agent) MoveData(address string) { a.set(func() { a.data = address }) }

// Detach detaches the engines, as if their processes were killed, or attaches them again. Those in a layout are stopped
// from then on.
func (a *Agent) Detach(detached bool) {
	a.set(func() {
		for device := range a.engines {
			if a.engines[device].detached == detached {
				continue
			}
			a.engines[device].detached = detached
			if layout.RankOf(a.layout, a.Member(device)) >= 0 {
				a.engines[device].stopped, a.engines[device].fresh = true, true
			}
		}
	})
}

// Hang makes the engine of a device unresponsive, like SIGSTOP: it stops for a broken step only after it continues.
func (a *Agent) Hang(device int, hung bool) { a.set(func() { a.engines[device].hung = hung }) }

// Forget drops the open attempt, like a killed agent whose successor resumes from the engines.
func (a *Agent) Forget() {
	a.set(func() {
		a.w.tell("fence %d", a.number)
		a.attempt, a.phase, a.target = 0, tangramv1.Phase_PHASE_IDLE, nil
		a.endRunLocked("its agent forgot it")
		a.held, a.latched, a.left, a.leftHash = false, false, nil, nil
	})
}

// InWorld says that one of its ranks is in the active layout.
func (a *Agent) InWorld() bool {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return a.layout != nil
}

// Layout returns the active layout of this agent; nil: none.
func (a *Agent) Layout() *tangramv1.Layout {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return a.layout
}

// Epoch returns the epoch of its layout; 0: none.
func (a *Agent) Epoch() uint64 {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return a.layout.GetEpoch()
}

// Phase returns its phase.
func (a *Agent) Phase() tangramv1.Phase {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return a.phase
}

// Calls returns the received calls, in order: prepare, stage, permit, abort, retire, resolve, release.
func (a *Agent) Calls() []string {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	return slices.Clone(a.calls)
}

func (a *Agent) no(code tangramv1.Refusal_Code, why string) error {
	return &agentclient.Refused{Agent: a.pod.Address, Refusal: &tangramv1.Refusal{Code: code, Message: why,
		Current: &tangramv1.Header{World: a.w.name, Epoch: a.layout.GetEpoch(), Attempt: a.attempt}}}
}

// hear takes the lock for a call, if the agent answers.
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

// done ends a call.
func (a *Agent) done() {
	a.w.changedLocked()
	a.w.mu.Unlock()
}

// Status implements driver.Agent.
func (a *Agent) Status(context.Context, string) (*tangramv1.StatusResponse, error) {
	if err := a.hear(""); err != nil {
		return nil, err
	}
	defer a.w.mu.Unlock()
	return a.statusLocked(), nil
}

func (a *Agent) statusLocked() *tangramv1.StatusResponse {
	s := &tangramv1.StatusResponse{World: a.w.name, Epoch: a.layout.GetEpoch(), Layout: a.layout, LayoutHash: a.hash, Geometry: a.w.view.Proto,
		Revision: "r1", HighestAttempt: a.highest, Address: &tangramv1.PeerAddress{Agent: a.pod.Address, Data: a.data}, CheckpointError: a.broken}
	if a.layout == nil && a.left != nil {
		s.Epoch, s.Layout, s.LayoutHash = a.left.Epoch, a.left, a.leftHash
	}
	for device := range a.engines {
		s.Ranks = append(s.Ranks, a.rankLocked(device))
	}
	return s
}

func (a *Agent) rankLocked(device int) *tangramv1.RankStatus {
	t := &tangramv1.TransitionStatus{Attempt: a.attempt, Phase: a.phase, TargetEpoch: a.target.GetEpoch(), TargetHash: a.targetHash, Held: a.held,
		Error: a.why}
	if len(a.next) > 0 {
		t.RunLast = a.runLast
	}
	switch a.phase {
	case tangramv1.Phase_PHASE_STAGING:
		t.BytesDone, t.BytesTotal = bytesPerRank/2, bytesPerRank
	case tangramv1.Phase_PHASE_STAGED, tangramv1.Phase_PHASE_PERMITTED:
		t.BytesDone, t.BytesTotal, t.BytesTcp = bytesPerRank, bytesPerRank, bytesPerRank
	case tangramv1.Phase_PHASE_FLIPPED:
		t.BytesDone, t.BytesTotal, t.BytesTcp = bytesPerRank, bytesPerRank, bytesPerRank
		if a.steppedLocked() {
			t.StepsSinceFlip = 1
		}
	case tangramv1.Phase_PHASE_FAILED:
		t.Error = a.fail
	default:
	}
	id, e := a.Member(device), a.engines[device]
	r := &tangramv1.RankStatus{Device: uint32(device), Member: &tangramv1.Member{Id: id, Node: a.pod.Node, Pod: a.pod.Name}, MemoryBytes: a.w.memory,
		Engine: &tangramv1.EngineStatus{Attached: !e.detached, Stopped: e.stopped, AttachedAfterFlip: e.fresh, AttentionDataOnly: a.whole, KvBlockTokens: a.block,
			Settings: a.settings}, Inventory: &tangramv1.Inventory{}, Transition: t}
	rank := layout.RankOf(a.layout, id)
	if rank < 0 {
		return r
	}
	r.InWorld, r.Rank, r.Inventory = true, uint32(rank), a.w.inventoryLocked(a.layout, a.hash, uint32(rank))
	if e.stopped {
		for other, m := range a.layout.Members {
			if other != rank && (a.lostLocked(device) || !a.w.reachLocked(id, m.Id)) { // fresh: no addresses
				r.Engine.Unreachable = append(r.Engine.Unreachable, uint32(other))
				r.Engine.Missed = append(r.Engine.Missed, &tangramv1.Missed{Rank: uint32(other), Cause: tangramv1.Cause_CAUSE_GAVE_UP,
					Doing: tangramv1.Doing_DOING_COMBINE, Layer: 1})
			}
		}
	}
	return r
}

// steppedLocked: all members took a step of the active layout. Without Manual that is always so.
func (a *Agent) steppedLocked() bool { return !a.w.manual || a.w.stepped[string(a.hash)] }

// Watch implements driver.Agent.
func (a *Agent) Watch(ctx context.Context, world string, each func(*tangramv1.StatusResponse)) error {
	for {
		a.w.mu.Lock()
		changed := a.w.changed
		a.w.mu.Unlock()
		s, err := a.Status(ctx, world)
		if err != nil {
			return err
		}
		each(s)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// Leave leaves the agent staged in an attempt to its own layout, like a driver that dies.
func (a *Agent) Leave(attempt uint64) { a.LeaveIn(attempt, tangramv1.Phase_PHASE_STAGED) }
