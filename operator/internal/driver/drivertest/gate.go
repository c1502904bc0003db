package drivertest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// agentsCarryWords says that no engine takes part in the gate of such a flip: the agents exchange the votes.
func agentsCarryWords(kind tangramv1.FlipKind) bool {
	return kind == tangramv1.FlipKind_FLIP_KIND_FIRST || kind == tangramv1.FlipKind_FLIP_KIND_REPAIR
}

// wordLocked casts the agent's vote, where agents exchange votes.
func (a *Agent) wordLocked() {
	if agentsCarryWords(a.kind) {
		a.w.words[fmt.Sprint(a.attempt, " ", a.pod.Address)] = true
	}
}

// latchedLocked says that the vote is cast and its result cannot be queried. It withdraws a vote if another is missing.
func (a *Agent) latchedLocked() bool {
	if !a.w.manual || !agentsCarryWords(a.kind) || a.phase != tangramv1.Phase_PHASE_PERMITTED {
		return false
	}
	complete := true
	for _, m := range a.target.Members {
		b, _ := a.w.ownerLocked(m.Id)
		if b == nil {
			return true
		}
		if b.attempt == a.attempt && b.phase == tangramv1.Phase_PHASE_FLIPPED {
			return true // it is going to flip
		}
		complete = complete && a.w.words[fmt.Sprint(a.attempt, " ", b.pod.Address)]
	}
	if !complete {
		delete(a.w.words, fmt.Sprint(a.attempt, " ", a.pod.Address))
	}
	return complete
}

// gateLocked flips an attempt, all agents at once, if all are permitted.
func (w *World) gateLocked(attempt uint64) {
	if w.manual || w.holdGate || attempt == 0 {
		return
	}
	var in []*Agent
	for _, a := range w.agents {
		if a.attempt != attempt {
			continue
		}
		if a.phase != tangramv1.Phase_PHASE_PERMITTED || a.held {
			return
		}
		in = append(in, a)
	}
	for _, a := range in { // every member of both layouts must vote in the gate
		layouts := []*tangramv1.Layout{a.layout, a.target}
		if agentsCarryWords(a.kind) {
			layouts = layouts[1:]
		} else if a.layout != nil && !w.wholeLocked(a) {
			return
		}
		for _, l := range layouts {
			for _, m := range l.GetMembers() {
				if owner, _ := w.ownerLocked(m.Id); owner == nil || !slices.Contains(in, owner) {
					return
				}
			}
		}
	}
	for _, a := range in {
		a.flipLocked()
	}
}

// flipLocked flips this agent alone. A repair starts its engines again.
func (a *Agent) flipLocked() {
	a.phase, a.layout, a.latched = tangramv1.Phase_PHASE_FLIPPED, a.target, false
	a.hash, _ = layout.Hash(a.layout) // it was hashed at Prepare
	if !a.inLocked(a.layout) {
		a.left, a.leftHash = a.layout, a.hash
		a.layout, a.hash = nil, nil
	}
	if a.kind == tangramv1.FlipKind_FLIP_KIND_REPAIR {
		for device := range a.engines {
			if layout.RankOf(a.layout, a.Member(device)) >= 0 {
				a.engines[device].stopped, a.engines[device].fresh = false, false
			}
		}
	}
}

// Manual makes Step the only source of steps and flips, one by one; engines then stop one after another.
func (w *World) Manual() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.manual = true
}

// Step advances the world a little, at random. A layout with all its members takes a step, and flips if the votes are
// equal and chances allow it. Otherwise an engine detects a broken exchange. Agents whose votes are complete flip, one
// at a time. It returns an error for a step in a layout that another one followed: two worlds.
func (w *World) Step(dice *rand.Rand, chances Chances) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.changedLocked()
	agents := w.inOrderLocked()
	for _, a := range agents {
		if agentsCarryWords(a.kind) && a.phase == tangramv1.Phase_PHASE_PERMITTED && !a.held && w.wordsLocked(a) && dice.IntN(2) == 0 {
			w.tell("mended %d %d %d", a.number, a.attempt, a.target.Epoch)
			a.flipLocked()
		}
	}
	seen := map[string]bool{}
	for _, a := range agents {
		if a.layout == nil || seen[string(a.hash)] {
			continue
		}
		seen[string(a.hash)] = true
		if !w.wholeLocked(a) {
			w.someStopLocked(a.hash, agents, dice)
			continue
		}
		if err := w.countStepLocked(a); err != nil {
			return err
		}
		if in := w.agreedLocked(a, agents); in != nil {
			w.carryLocked(in, chances.draw(dice), dice)
		}
	}
	for _, a := range agents {
		if dice.IntN(2) == 0 {
			a.onwardLocked()
		}
	}
	for _, a := range agents {
		w.tell("is %d %d %d", a.number, flag(a.phase == tangramv1.Phase_PHASE_PERMITTED), flag(a.latched))
	}
	return nil
}

// Chances of the fates of a step with equal votes, each from 0 to 1, together at most 1. The rest flips.
type Chances struct {
	Tear    float64 // the exchange breaks in the middle: some flipped, the others are stopped
	Decline float64 // KV does not fit, or a fetch failed and all know it: no flip, the next step votes again
	Pull    float64 // a fetch of KV failed, and the exchange breaks before all know it: no flip, some are stopped
}

// Fate of a step with equal votes.
type Fate int

// Fates, in the order of Chances.
const (
	Flipped Fate = iota
	Torn
	Declined
	PullFailed
)

func (c Chances) draw(dice *rand.Rand) Fate {
	switch x := dice.Float64(); {
	case x < c.Tear:
		return Torn
	case x < c.Tear+c.Decline:
		return Declined
	case x < c.Tear+c.Decline+c.Pull:
		return PullFailed
	}
	return Flipped
}

// carryLocked takes the agents that agreed on a flip through its fate.
func (w *World) carryLocked(in []*Agent, fate Fate, dice *rand.Rand) {
	w.fates[fate]++
	w.tellWords(in)
	switch fate {
	case Declined:
		for _, b := range in {
			if b.layout != nil {
				w.tell("decline %d", b.number)
			}
		}
	case PullFailed: // a rank with a failed fetch keeps no vote; the others reported theirs and do not know the outcome
		first := dice.IntN(len(in))
		for i, b := range in {
			if failed := dice.IntN(2) == 0; failed || i == first {
				b.stopLocked()
			} else {
				b.latched = b.layout != nil
			}
		}
	default:
		for _, b := range in {
			if fate == Flipped || dice.IntN(2) == 0 {
				event := "flip"
				if b.layout == nil {
					event = "join"
				}
				w.tell("%s %d %d %d", event, b.number, b.attempt, b.target.Epoch)
				b.flipLocked()
			} else {
				b.latched = b.layout != nil
				b.stopLocked()
			}
		}
	}
}

// Fates counts the steps with equal votes by fate.
func (w *World) Fates() map[Fate]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.fates)
}

func (w *World) inOrderLocked() []*Agent {
	var out []*Agent
	for _, a := range w.agents {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *Agent) int {
		if a.pod.Address < b.pod.Address {
			return -1
		}
		return 1
	})
	return out
}

func (w *World) wordsLocked(a *Agent) bool {
	for _, m := range a.target.Members {
		owner, _ := w.ownerLocked(m.Id)
		if owner == nil || !w.words[fmt.Sprint(a.attempt, " ", owner.pod.Address)] {
			return false
		}
	}
	return true
}

// agreedLocked returns the agents that flip together, or nil: the votes of all members of the active layout are equal.
// Joiners have no vote; those that still exist are included.
func (w *World) agreedLocked(a *Agent, agents []*Agent) []*Agent {
	if a.phase != tangramv1.Phase_PHASE_PERMITTED || agentsCarryWords(a.kind) || w.holdGate {
		return nil
	}
	var in []*Agent
	for _, b := range agents {
		if b.attempt == a.attempt && b.phase == tangramv1.Phase_PHASE_PERMITTED {
			in = append(in, b)
		}
	}
	for _, m := range a.layout.Members {
		if owner, _ := w.ownerLocked(m.Id); owner == nil || !slices.Contains(in, owner) {
			return nil
		}
	}
	return in
}

func (a *Agent) stopLocked() {
	a.endRunLocked("its engine is stopped")
	if a.layout != nil {
		a.w.tell("stop %d %d", a.number, flag(a.latched))
	}
	for device := range a.engines {
		if layout.RankOf(a.layout, a.Member(device)) >= 0 && !a.engines[device].hung {
			a.engines[device].stopped = true
		}
	}
}

// someStopLocked lets engines of a broken layout detect it, one after another. An engine that flipped in a repair waits
// for those that have yet to flip.
func (w *World) someStopLocked(hash []byte, agents []*Agent, dice *rand.Rand) {
	for _, a := range agents {
		if string(a.hash) != string(hash) || dice.IntN(3) == 0 || w.comingLocked(a) {
			continue
		}
		a.stopLocked()
	}
}

// comingLocked says that all members that this agent lacks in its layout are about to flip to it.
func (w *World) comingLocked(a *Agent) bool {
	if a.phase != tangramv1.Phase_PHASE_FLIPPED || !agentsCarryWords(a.kind) {
		return false
	}
	for _, m := range a.layout.Members {
		b, device := w.ownerLocked(m.Id)
		if b == nil || b.engines[device].detached || w.cutLocked(m.Id, a.Member(0)) {
			return false
		}
		if string(b.hash) == string(a.hash) && !b.engines[device].stopped {
			continue
		}
		if b.attempt != a.attempt || b.phase != tangramv1.Phase_PHASE_PERMITTED || b.held {
			return false
		}
	}
	return true
}

func (w *World) countStepLocked(a *Agent) error {
	now := string(a.hash)
	if w.past[now] {
		return fmt.Errorf("two worlds: a step of epoch %d, layout %x, after one of layout %x", a.layout.Epoch, now, w.latest)
	}
	if w.latest != now && w.latest != "" {
		w.past[w.latest] = true
	}
	w.latest, w.stepped[now] = now, true
	return nil
}

// Stepping returns the hash of the layout that took the last step; empty: none.
func (w *World) Stepping() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest
}

// GiveUp stops the engines of the agent, as if they had lost a step.
func (a *Agent) GiveUp() { a.set(a.stopLocked) }

// FlipAlone flips the agent's permitted attempt, as if it saw the last vote just before the others lost it.
func (a *Agent) FlipAlone() { a.set(a.flipLocked) }
