package drivertest

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Runs: consecutive flips under the permit of the first.

// HoldRuns pauses the runs when this many of their flips are left to begin; 0: never.
func (w *World) HoldRuns(left int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holdRuns = left
	w.changedLocked()
}

// walkLocked takes the runs one flip further, all their agents at once. It returns true if one advanced.
func (w *World) walkLocked() bool {
	var on []*Agent
	for _, a := range w.inOrderLocked() {
		if a.onwardLocked() {
			on = append(on, a)
		}
	}
	for _, a := range on {
		w.gateLocked(a.attempt)
	}
	return len(on) > 0
}

// onwardLocked retires a flip of a run after a step in its layout. Then it prepares, stages and permits the next flip.
// It returns true if it did something.
func (a *Agent) onwardLocked() bool {
	if len(a.next) == 0 || a.phase != tangramv1.Phase_PHASE_FLIPPED || !a.steppedLocked() || a.w.holdRuns >= len(a.next) || !a.w.wholeLocked(a) {
		return false
	}
	q := a.next[0]
	a.next = a.next[1:]
	target, err := layout.ApplyDelta(a.layout, q.GetDelta(), q.TargetEpoch)
	if err == nil {
		err = a.checkLocked(q, target, false)
	}
	if err == nil && a.refuse != nil {
		err = fmt.Errorf("%s", a.refuse.Message)
	}
	if err != nil {
		a.phase, a.highest, a.next, a.why = tangramv1.Phase_PHASE_IDLE, max(a.highest, a.runLast), nil, err.Error()
		return true
	}
	a.highest, a.attempt, a.kind, a.target = max(a.highest, q.Header.Attempt), q.Header.Attempt, q.Kind, proto.CloneOf(target)
	a.targetHash, a.held, a.left, a.leftHash = q.TargetHash, false, nil, nil
	if a.fail != "" {
		a.phase = tangramv1.Phase_PHASE_FAILED
		a.endRunLocked(a.fail)
		return true
	}
	a.phase = tangramv1.Phase_PHASE_PERMITTED
	a.w.tell("arm %d %d %d", a.number, a.attempt, a.target.Epoch)
	return true
}

// endRunLocked aborts the flips of the run that have not begun.
func (a *Agent) endRunLocked(why string) {
	if len(a.next) == 0 {
		return
	}
	a.highest = max(a.highest, a.runLast)
	a.next, a.why = nil, why
}

// ofRunLocked maps an attempt of the agent's run to the attempt in progress; any other attempt to itself.
func (a *Agent) ofRunLocked(attempt uint64) uint64 {
	if a.runLast != 0 && attempt <= a.runLast && attempt > a.attempt && a.runLast >= a.attempt {
		return a.attempt
	}
	return attempt
}
