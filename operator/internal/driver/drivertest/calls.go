package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Calls that change an agent, answered like the real one.

// Prepare implements driver.Agent.
func (a *Agent) Prepare(_ context.Context, q *tangramv1.PrepareRequest) error {
	if err := a.hear("prepare"); err != nil {
		return err
	}
	defer a.done()
	if a.refuse != nil {
		return &agentclient.Refused{Agent: a.pod.Address, Call: "Prepare", Refusal: a.refuse}
	}
	repair := q.Kind == tangramv1.FlipKind_FLIP_KIND_REPAIR
	if q.Header.Attempt <= a.highest {
		return a.no(tangramv1.Refusal_CODE_STALE_ATTEMPT, "stale")
	}
	if a.phase != tangramv1.Phase_PHASE_IDLE && (!repair || a.phase != tangramv1.Phase_PHASE_FLIPPED) {
		return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "busy")
	}
	if a.layout != nil && q.Header.Epoch != a.layout.Epoch {
		return a.no(tangramv1.Refusal_CODE_STALE_EPOCH, "stale")
	}
	target := q.GetLayout()
	if target == nil {
		if a.layout == nil {
			return a.no(tangramv1.Refusal_CODE_STALE_EPOCH, "a delta, and no layout that it is over")
		}
		var err error
		if target, err = layout.ApplyDelta(a.layout, q.GetDelta(), q.TargetEpoch); err != nil {
			return a.no(tangramv1.Refusal_CODE_BAD_PLAN, err.Error())
		}
	}
	if err := a.checkLocked(q, target, repair); err != nil {
		return a.no(tangramv1.Refusal_CODE_BAD_PLAN, err.Error())
	}
	for device := range a.engines {
		if id := a.Member(device); layout.RankOf(a.layout, id) >= 0 && layout.RankOf(target, id) >= 0 && a.engines[device].stopped != repair {
			return a.no(tangramv1.Refusal_CODE_ENGINE, fmt.Sprintf("kind %v, and the engine of %s stopped: %v", q.Kind, id, a.engines[device].stopped))
		}
	}
	a.highest, a.attempt, a.phase, a.kind, a.target = q.Header.Attempt, q.Header.Attempt, tangramv1.Phase_PHASE_PREPARED, q.Kind, proto.CloneOf(target)
	a.targetHash, a.held, a.left, a.leftHash = q.TargetHash, false, nil, nil
	a.next, a.runLast, a.why = q.Next, 0, ""
	if n := len(q.Next); n > 0 {
		a.runLast = q.Next[n-1].Header.Attempt
	}
	if a.w.paused == nil {
		a.w.paused = map[uint64]bool{}
	}
	a.w.paused[q.Header.Attempt] = q.PauseSteps
	return nil
}

// checkLocked checks a plan like a real agent: the target is valid and has the given hash, and there is one part for
// each of its ranks in the old or the new layout.
func (a *Agent) checkLocked(q *tangramv1.PrepareRequest, target *tangramv1.Layout, repair bool) error {
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
	for _, l := range target.Layers {
		if a.whole && l.AttentionGroupSize > 1 {
			return fmt.Errorf("layer %d: the heads of a request are shared by %d ranks, and the engines take them on one only", l.Layer, l.AttentionGroupSize)
		}
	}
	parts := map[string]int{}
	for _, p := range q.Parts {
		parts[p.Member]++
	}
	for device := range a.engines {
		id := a.Member(device)
		if layout.RankOf(target, id) < 0 && (repair || layout.RankOf(a.layout, id) < 0) {
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
	defer a.done()
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
	defer a.done()
	if h.Attempt != a.attempt || a.phase < tangramv1.Phase_PHASE_STAGED || a.phase > tangramv1.Phase_PHASE_FLIPPED {
		return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "not staged")
	}
	if a.phase == tangramv1.Phase_PHASE_STAGED {
		a.phase = tangramv1.Phase_PHASE_PERMITTED
		a.w.tell("arm %d %d %d", a.number, a.attempt, a.target.Epoch)
		a.wordLocked()
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
	defer a.done()
	a.highest = max(a.highest, h.Attempt)
	if a.ofRunLocked(h.Attempt) != a.attempt {
		return false, nil
	}
	a.endRunLocked("an abort")
	if a.w.openAtAbort && a.layout != nil {
		a.w.holdGate, a.w.openAtAbort = false, false
		a.w.gateLocked(h.Attempt)
	}
	if a.phase == tangramv1.Phase_PHASE_FLIPPED || a.phase == tangramv1.Phase_PHASE_IDLE {
		return a.phase == tangramv1.Phase_PHASE_FLIPPED, nil
	}
	if a.latched || a.latchedLocked() {
		return false, a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "its word is given, and not all peers say what came of it")
	}
	if agentsCarryWords(a.kind) {
		a.w.tell("fence %d", a.number)
	} else {
		a.w.tell("withdraw %d %d %d", a.number, a.attempt, flag(a.phase == tangramv1.Phase_PHASE_PERMITTED))
	}
	a.burnLocked()
	return false, nil
}

func (a *Agent) burnLocked() {
	if a.phase == tangramv1.Phase_PHASE_FAILED {
		a.fail = ""
	}
	if !a.inLocked(a.layout) { // it was to join
		for device := range a.engines {
			a.engines[device].stopped = false
		}
	}
	a.phase, a.latched = tangramv1.Phase_PHASE_IDLE, false
}

// Retire implements driver.Agent.
func (a *Agent) Retire(_ context.Context, h *tangramv1.Header) error {
	if err := a.hear("retire"); err != nil {
		return err
	}
	defer a.done()
	if h.Attempt != a.attempt || a.phase != tangramv1.Phase_PHASE_FLIPPED && a.phase != tangramv1.Phase_PHASE_IDLE {
		return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "not flipped")
	}
	if a.phase == tangramv1.Phase_PHASE_FLIPPED && a.layout != nil && !a.steppedLocked() {
		return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "no step of the new epoch yet")
	}
	a.phase, a.left, a.leftHash = tangramv1.Phase_PHASE_IDLE, nil, nil
	return nil
}

// Resolve implements driver.Agent.
func (a *Agent) Resolve(_ context.Context, h *tangramv1.Header, outcome tangramv1.Outcome, _ string, lost ...string) error {
	name := "resolve"
	if outcome == tangramv1.Outcome_OUTCOME_HOLD {
		name = "hold"
	}
	if err := a.hear(name); err != nil {
		return err
	}
	defer a.done()
	a.endRunLocked("a fence")
	if outcome == tangramv1.Outcome_OUTCOME_HOLD {
		a.held = a.held || h.Attempt == a.attempt
		return nil
	}
	if a.w.openAtResolve {
		a.w.holdGate, a.w.openAtResolve = false, false
		a.w.gateLocked(h.Attempt)
	}
	for device := range a.engines {
		a.engines[device].stopped = a.engines[device].stopped || slices.Contains(lost, a.Member(device))
		if layout.RankOf(a.layout, a.Member(device)) >= 0 && !a.engines[device].stopped {
			return a.no(tangramv1.Refusal_CODE_ENGINE, "the engine of "+a.Member(device)+" has not stopped")
		}
	}
	mine := h.Attempt == a.attempt
	switch outcome {
	case tangramv1.Outcome_OUTCOME_ABORT:
		if mine && a.phase == tangramv1.Phase_PHASE_FLIPPED {
			return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, "flipped")
		}
		a.highest = max(a.highest, h.Attempt)
		if mine {
			a.w.tell("fence %d", a.number)
			a.burnLocked()
		}
		return nil
	case tangramv1.Outcome_OUTCOME_ROLL_FORWARD:
		if mine && a.phase == tangramv1.Phase_PHASE_FLIPPED {
			return nil
		}
		if !mine || a.phase != tangramv1.Phase_PHASE_STAGED && a.phase != tangramv1.Phase_PHASE_PERMITTED {
			return a.no(tangramv1.Refusal_CODE_STALE_ATTEMPT, fmt.Sprintf("attempt %d is %v here", a.attempt, a.phase))
		}
		a.w.tell("forward %d %d %d", a.number, a.attempt, a.target.Epoch)
		a.flipLocked()
		for device := range a.engines { // the engines stay stopped, like those of the others
			a.engines[device].stopped = layout.RankOf(a.layout, a.Member(device)) >= 0
		}
		return nil
	default:
		return a.no(tangramv1.Refusal_CODE_BAD_PLAN, "no outcome")
	}
}

// Release implements driver.Agent.
func (a *Agent) Release(_ context.Context, h *tangramv1.Header, members []string, worldEnds bool, _ string) error {
	if err := a.hear("release"); err != nil {
		return err
	}
	defer a.done()
	if a.layout.GetEpoch() >= h.Epoch && !worldEnds {
		for _, id := range members {
			if layout.RankOf(a.layout, id) >= 0 {
				return a.no(tangramv1.Refusal_CODE_WRONG_PHASE, fmt.Sprintf("%s is a member of epoch %d", id, a.layout.GetEpoch()))
			}
		}
	}
	for device := range a.engines {
		if slices.Contains(members, a.Member(device)) {
			a.engines[device] = engine{incarnation: a.engines[device].incarnation + 1, detached: a.engines[device].detached}
		}
	}
	if !a.inLocked(a.layout) {
		a.w.tell("fence %d", a.number)
		a.layout, a.hash, a.left, a.leftHash = nil, nil, nil, nil
		a.attempt, a.phase, a.target, a.latched = 0, tangramv1.Phase_PHASE_IDLE, nil, false
	}
	a.endRunLocked("members are released")
	return nil
}

// LeaveIn leaves the agent in a phase of an attempt to its own layout, like a driver that dies.
func (a *Agent) LeaveIn(attempt uint64, phase tangramv1.Phase) {
	a.set(func() {
		a.attempt, a.highest, a.phase, a.kind = attempt, max(a.highest, attempt), phase, tangramv1.FlipKind_FLIP_KIND_LAYOUT
		from := a.layout
		for _, b := range a.w.agents {
			if a.layout == nil && b.layout.GetEpoch() > from.GetEpoch() { // it was to join this layout
				from = b.layout
			}
		}
		a.target = proto.CloneOf(from)
		if phase == tangramv1.Phase_PHASE_FLIPPED {
			return // to its current layout
		}
		a.target.Epoch++
	})
}
