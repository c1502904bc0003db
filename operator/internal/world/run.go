package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
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
	kind    kind
	cancel  context.CancelFunc
	permits *permits
	aborted bool
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
	now := &run{kind: what, cancel: cancel, permits: &permits{Store: w.store}}
	d := &driver.Driver{World: w.name, Agents: w.involvedLocked(goal), Complete: true, Store: now.permits, Log: w.log, Limits: goal.Limits,
		Hooks: driver.Hooks{
			Planned:  goal.Recorder.Planned,
			FlipDone: goal.Recorder.FlipDone,
			Continue: func() bool { return w.stillWanted(now, intent) },
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
			record, err = d.Apply(ctx, driver.Wanted{Members: goal.Members, Shape: goal.shape(), SpareBanks: goal.SpareBanks})
		}
		if err == nil {
			w.learn(goal, before, record)
		}
		if err != nil && w.wasAborted(now) {
			err = fmt.Errorf("%w: %w", ErrAborted, err)
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
	s := layout.Shape{Mode: g.Mode}
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

// involvedLocked are the agents with a member of the layout in force or a wanted one; in a repair, all.
func (w *World) involvedLocked(goal Goal) []driver.Agent {
	members := map[string]bool{}
	for _, id := range goal.Members {
		members[id] = true
	}
	for _, m := range w.last.Layout.GetMembers() {
		members[m.Id] = true
	}
	var out []driver.Agent
	for uid, c := range w.agents {
		involved := goal.Repair
		for _, r := range w.last.Statuses[uid].GetRanks() {
			involved = involved || members[r.GetMember().GetId()]
		}
		if involved {
			out = append(out, c.agent)
		}
	}
	return out
}

func (w *World) stillWanted(r *run, intent string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.intent == intent && !r.aborted && w.ctx.Err() == nil
}

func (w *World) wasAborted(r *run) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.aborted
}

// Abort the transition that runs: a flip that has no permit yet is aborted; one that has goes on, and is the last.
// A repair is not aborted.
func (w *World) Abort() {
	w.mu.Lock()
	r := w.run
	if r == nil || r.kind == repairing || r.aborted {
		w.mu.Unlock()
		return
	}
	r.aborted = true
	w.mu.Unlock()
	r.permits.refuse(r.cancel)
}

func (w *World) progress(e driver.Event) {
	w.mu.Lock()
	tell := w.running == nil || w.running.Phase != e.Phase || w.running.Flip != e.Flip || time.Since(w.told) > tellEvery
	w.running = &e
	if tell {
		w.told = time.Now()
	}
	w.mu.Unlock()
	if tell {
		w.notify()
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
	case err == nil:
		w.triesOf(r.kind).reset()
	case errors.Is(err, driver.ErrSuperseded), errors.Is(err, ErrAborted):
		w.triesOf(r.kind).failed = nil
	case w.intent == intent: // else it is not wanted any more: no failure, and no reason to wait
		w.triesOf(r.kind).later(err)
	}
}

// permits stands before the records of a world, so that no flip is permitted any more once a run is aborted: either
// the permit is there before, or it never comes.
type permits struct {
	store.Store
	mu        sync.Mutex
	refused   bool
	permitted bool
}

// Of driver.Intent and the key that it lies under.
const (
	keyIntent      = "intent"
	statePermitted = "permitted"
)

// CompareAndSwap refuses the permit record of an aborted run.
func (p *permits) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	var intent driver.Intent
	if key != keyIntent || json.Unmarshal(value, &intent) != nil {
		return p.Store.CompareAndSwap(ctx, key, version, value)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if intent.State == statePermitted && p.refused {
		return 0, ErrAborted
	}
	now, err := p.Store.CompareAndSwap(ctx, key, version, value)
	if err == nil || intent.State == statePermitted { // after an error it may be written
		p.permitted = intent.State == statePermitted
	}
	return now, err
}

// refuse from now on, and cancel what has no permit.
func (p *permits) refuse(cancel func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = true
	if !p.permitted {
		cancel()
	}
}
