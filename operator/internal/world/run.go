package world

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// phasePlan is before the first flip of a run.
const phasePlan = "plan"

// lookAfter a run: agents that do not answer by then are seen later.
const lookAfter = time.Second

// kind of a run.
type kind int

const (
	changing kind = iota // to another width, mode or members
	repairing
	shifting // experts, after the load
)

// run is the transition or repair that runs.
type run struct {
	kind   kind
	cancel context.CancelFunc
	abort  driver.Abort // of a transition
}

// Begin starts a transition or a repair, unless one runs or the back-off says to wait.
func (w *World) Begin(goal Goal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	what := goal.kind()
	due := w.triesOf(what).next
	if w.run != nil || w.closing || time.Now().Before(due) {
		return false
	}
	intent, before := w.intent, w.last.Layout
	ctx, cancel := context.WithCancel(w.ctx)
	agents, pods := w.involvedLocked(goal)
	now := &run{kind: what, cancel: cancel}
	d := &driver.Driver{World: w.name, Agents: agents, Pods: pods, Complete: w.complete, Store: w.store, Log: w.log, Limits: goal.Limits, Abort: &now.abort,
		Hooks: driver.Hooks{
			Planned:  goal.Recorder.Planned,
			FlipDone: goal.Recorder.FlipDone,
			Continue: func() bool { return w.stillWanted(intent) },
			Progress: func(e driver.Event) { w.progress(e); goal.Recorder.Progress(e) },
		}}
	w.run, w.running = now, &driver.Event{Phase: phasePlan}
	w.wait.Go(func() {
		defer cancel()
		var record *driver.Record
		var err error
		if goal.Repair {
			record, err = d.Repair(ctx)
		} else {
			record, err = d.Apply(ctx, driver.Wanted{Members: goal.Members, Shape: goal.shape(), SpareBanks: goal.SpareBanks, PauseSteps: goal.PauseSteps})
		}
		if err == nil {
			w.learn(goal, before, record)
		}
		// Look first: who is told that it is over shall see what came of it.
		w.look(context.WithoutCancel(w.ctx), lookAfter)
		tell := func() { goal.Recorder.Ended(context.WithoutCancel(w.ctx), record, err) }
		if goal.Repair || errors.Is(err, driver.ErrNeedsRepair) {
			w.wait.Go(tell) // what comes next waits for no writing
		} else {
			tell()
		}
		w.ended(now, intent, record, err)
		w.notify()
	})
	return true
}

func (g Goal) kind() kind {
	switch {
	case g.Repair:
		return repairing
	case g.Rebalance != nil:
		return shifting
	}
	return changing
}

func (g Goal) shape() layout.Shape {
	s := g.Shape
	if g.Rebalance != nil {
		s.Placement = g.Rebalance.Decision.Placement
	}
	return s
}

func (w *World) triesOf(k kind) *tries {
	switch k {
	case repairing:
		return &w.repairs
	case shifting:
		return &w.shifts
	}
	return &w.tries
}

// involvedLocked are the agents with a member of the layout in force or a wanted one, or in the middle of an attempt; in a repair, all. And their pods.
func (w *World) involvedLocked(goal Goal) (agents []driver.Agent, pods []string) {
	members := map[string]bool{}
	for _, id := range goal.Members {
		members[id] = true
	}
	for _, m := range w.last.Layout.GetMembers() {
		members[m.Id] = true
	}
	for _, uid := range slices.Sorted(maps.Keys(w.agents)) {
		c, involved := w.agents[uid], goal.Repair
		for _, r := range w.last.Statuses[uid].GetRanks() {
			involved = involved || members[r.GetMember().GetId()] || r.GetTransition().GetPhase() > tangramv1.Phase_PHASE_IDLE
		}
		if involved {
			agents, pods = append(agents, c.agent), append(pods, c.pod)
		}
	}
	return agents, pods
}

func (w *World) stillWanted(intent string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.intent == intent && w.ctx.Err() == nil
}

// Abort the transition that runs: a flip that has no permit yet is aborted; one that has goes on, and is the last.
// A repair is not aborted.
func (w *World) Abort() {
	w.mu.Lock()
	r := w.run
	w.mu.Unlock()
	if r != nil && r.kind != repairing {
		r.abort.Ask()
	}
}

// progress of the run: who is notified hears of the first at once, then of the newest, tellEvery at most. Phases of flips last some ten
// milliseconds each, and whoever is told writes it down.
func (w *World) progress(e driver.Event) {
	w.mu.Lock()
	first := w.running == nil
	w.running = &e
	later := !first && !w.telling
	pause := tellEvery - time.Since(w.told)
	switch {
	case first:
		w.told = time.Now()
	case later:
		w.telling = true
	}
	w.mu.Unlock()
	switch {
	case first:
		w.notify()
	case later:
		time.AfterFunc(pause, func() {
			w.mu.Lock()
			w.telling, w.told = false, time.Now()
			w.mu.Unlock()
			w.notify()
		})
	}
}

func (w *World) ended(r *run, intent string, record *driver.Record, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run, w.running = nil, nil
	switch {
	case r.kind == repairing && err != nil:
		w.repairs.later(err)
	case r.kind == repairing && len(record.Flips) == 0 && record.WorldEnded == "" && w.last.NeedsRepair():
		w.repairs.later(nil) // nothing was to be done by now, or nothing could be
	case r.kind == repairing:
		w.repairs.reset()
		w.tries.reset() // what failed, failed because of it
	case err == nil && r.kind == changing && len(record.Flips) == 0 && w.last.Unfinished:
		w.tries.later(nil) // what was left is not to be ended now
	case err == nil:
		w.triesOf(r.kind).reset()
	case errors.Is(err, driver.ErrSuperseded), errors.Is(err, driver.ErrAborted):
		w.triesOf(r.kind).failed = nil
	case w.intent == intent: // else it is not wanted any more: no failure, and no reason to wait
		w.triesOf(r.kind).later(err)
	}
}
