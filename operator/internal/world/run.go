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

// phasePlan is the phase before the first flip of a run.
const phasePlan = "plan"

// lookAfter is the timeout of the query after a run. Agents that do not answer in time are queried later.
const lookAfter = time.Second

// kind of a run.
type kind int

const (
	changing kind = iota // to another number of ranks, mode or members
	repairing
	shifting // experts, to follow the load
)

// run is the running transition or repair.
type run struct {
	kind   kind
	cancel context.CancelFunc
	abort  driver.Abort // of a transition
}

// Begin starts a transition or a repair, unless one runs or the back-off has not passed.
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
		// Query first: the recipient of the end should see the result.
		w.look(context.WithoutCancel(w.ctx), lookAfter)
		tell := func() { goal.Recorder.Ended(context.WithoutCancel(w.ctx), record, err) }
		if goal.Repair || errors.Is(err, driver.ErrNeedsRepair) {
			w.wait.Go(tell) // the next run does not wait for the record
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

// involvedLocked returns the agents, and their pods, that have a member of the active or the desired layout or an open
// attempt; for a repair, all agents.
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

// Abort aborts the running transition: a flip without a permit is aborted, a permitted flip continues and is the last.
// It does not abort a repair.
func (w *World) Abort() {
	w.mu.Lock()
	r := w.run
	w.mu.Unlock()
	if r != nil && r.kind != repairing {
		r.abort.Ask()
	}
}

// progress notifies of a run's first event immediately, then of the newest, at most every tellEvery. Phases of a flip
// last about ten milliseconds each, and the recipient stores each notification.
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
		w.repairs.later(nil) // nothing was to do, or nothing was possible
	case r.kind == repairing:
		w.repairs.reset()
		w.tries.reset() // they failed because of the loss
	case err == nil && r.kind == changing && len(record.Flips) == 0 && w.last.Unfinished:
		w.tries.later(nil) // the left-over attempt cannot be ended now
	case err == nil:
		w.triesOf(r.kind).reset()
	case errors.Is(err, driver.ErrSuperseded), errors.Is(err, driver.ErrAborted):
		w.triesOf(r.kind).failed = nil
	case w.intent == intent: // else it is no longer wanted: no failure, no back-off
		w.triesOf(r.kind).later(err)
	}
}
