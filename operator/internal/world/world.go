// Package world keeps the operator's side of running worlds: connections to agents, what
// they say, and the one transition that runs. The controller says what to do; this package
// does it in goroutines of its own, so that a reconcile never waits.
package world

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Agent of a pod, and how to hang up.
type Agent interface {
	driver.Agent
	io.Closer
}

// Dialer connects to an agent's address; it does not wait for it.
type Dialer func(address string) (Agent, error)

// Endpoint is where a pod's agent listens.
type Endpoint struct{ UID, Address string }

// Recorder keeps what becomes of one transition. Its methods are called one after another.
type Recorder interface {
	Planned(*driver.Record) error
	Progress(driver.Event)
	FlipDone(driver.FlipRecord)
	// Ended is called after every Apply, also of one that failed before it had a plan.
	Ended(context.Context, *driver.Record, error)
}

// Goal of a transition.
type Goal struct {
	Members    []string
	Mode       layout.Mode
	SpareBanks uint32
	Limits     driver.Limits
	Recorder   Recorder
}

// Snapshot of what is known. Maps are by pod UID.
type Snapshot struct {
	// Looked is false until the agents were asked once.
	Looked   bool
	Epoch    uint64
	Hash     []byte
	Layout   *tangramv1.Layout
	Statuses map[string]*tangramv1.StatusResponse
	Errors   map[string]error
	// Running is the event of the transition that runs; nil: none runs.
	Running *driver.Event
	// Failed is why the last transition failed; nil if it succeeded, was superseded or is not wanted any more.
	Failed error
	// NextTry: none is begun before; zero: now.
	NextTry time.Time
}

// World of one MoEDeployment.
type World struct {
	name   string
	dial   Dialer
	store  store.Store
	log    *slog.Logger
	notify func()

	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup
	poke   chan struct{}

	mu      sync.Mutex
	intent  string
	agents  map[string]*connection // by pod UID
	last    Snapshot
	mark    string // of the last snapshot that the controller was told of
	running *driver.Event
	failed  error
	nextTry time.Time
	pause   *backoff.ExponentialBackOff
	told    time.Time
}

type connection struct {
	address string
	agent   Agent
}

const (
	lookWithin  = 3 * time.Second
	tellEvery   = 300 * time.Millisecond // of a transition's progress
	firstPause  = time.Second
	longestWait = 2 * time.Minute
)

func open(name string, dial Dialer, s store.Store, log *slog.Logger, lookEvery time.Duration, notify func()) *World {
	w := &World{name: name, dial: dial, store: s, log: log, notify: notify, poke: make(chan struct{}, 1), agents: map[string]*connection{}}
	w.pause = backoff.NewExponentialBackOff()
	w.pause.InitialInterval, w.pause.MaxInterval, w.pause.Multiplier = firstPause, longestWait, 2
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.wait.Go(func() { w.watch(lookEvery) })
	return w
}

// close ends a running transition (the running flip is aborted, or its outcome is left to
// the agents) and hangs up. It waits at most until ctx ends.
func (w *World) close(ctx context.Context) error {
	w.cancel()
	done := make(chan struct{})
	go func() { w.wait.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	w.SetEndpoints(nil)
	return nil
}

// SetEndpoints connects to new agents and hangs up on those that are gone.
func (w *World) SetEndpoints(endpoints []Endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	here := map[string]string{}
	for _, e := range endpoints {
		here[e.UID] = e.Address
	}
	changed := false
	for uid, c := range w.agents {
		if here[uid] != c.address {
			_ = c.agent.Close() // a pod that is gone
			delete(w.agents, uid)
			changed = true
		}
	}
	for uid, address := range here {
		if w.agents[uid] != nil {
			continue
		}
		agent, err := w.dial(address)
		if err != nil {
			w.log.Error("cannot dial an agent", "address", address, "error", err)
			continue
		}
		w.agents[uid] = &connection{address: address, agent: agent}
		changed = true
	}
	if changed {
		w.last.Looked = false
		w.pokeLocked()
	}
}

func (w *World) pokeLocked() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// Intend says what is wanted now, as a text: a transition that was begun under another one
// ends after its running flip, and the back-off begins anew.
func (w *World) Intend(intent string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.intent != intent {
		w.intent, w.nextTry, w.failed = intent, time.Time{}, nil
		w.pause.Reset()
	}
}

// Snapshot of now.
func (w *World) Snapshot() Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.last
	if w.running != nil {
		event := *w.running
		s.Running = &event
	}
	s.Failed, s.NextTry = w.failed, w.nextTry
	return s
}

// watch looks at the agents and tells the controller of changes.
func (w *World) watch(lookEvery time.Duration) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-tick.C:
		case <-w.poke:
		}
		w.look()
	}
}

func (w *World) look() {
	w.mu.Lock()
	uids := make([]string, 0, len(w.agents))
	agents := make([]driver.Agent, 0, len(w.agents))
	for uid, c := range w.agents {
		uids, agents = append(uids, uid), append(agents, c.agent)
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.ctx, lookWithin)
	defer cancel()
	view := driver.Observe(ctx, w.name, agents)
	if w.ctx.Err() != nil {
		return
	}
	next := Snapshot{Looked: true, Epoch: view.Epoch, Hash: view.Hash, Layout: view.Layout,
		Statuses: map[string]*tangramv1.StatusResponse{}, Errors: map[string]error{}}
	for i, uid := range uids {
		if view.Errors[i] != nil {
			next.Errors[uid] = view.Errors[i]
		} else {
			next.Statuses[uid] = view.Statuses[i]
		}
	}
	mark := markOf(&next)
	w.mu.Lock()
	for uid := range next.Errors { // a pod that went while we looked is no error
		if w.agents[uid] == nil {
			delete(next.Errors, uid)
		}
	}
	next.Looked = len(w.agents) == len(next.Statuses)+len(next.Errors)
	changed := mark != w.mark || !w.last.Looked
	w.last, w.mark = next, mark
	w.mu.Unlock()
	if changed {
		w.notify()
	}
}

// Begin starts a transition, unless one runs or the back-off says to wait.
func (w *World) Begin(goal Goal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running != nil || w.ctx.Err() != nil || time.Now().Before(w.nextTry) {
		return false
	}
	intent := w.intent
	d := &driver.Driver{World: w.name, Agents: w.involvedLocked(goal), Store: w.store, Log: w.log, Limits: goal.Limits,
		Hooks: driver.Hooks{
			Planned:  goal.Recorder.Planned,
			FlipDone: goal.Recorder.FlipDone,
			Continue: func() bool { return w.stillWanted(intent) },
			Progress: func(e driver.Event) { w.progress(e); goal.Recorder.Progress(e) },
		}}
	w.running = &driver.Event{Phase: "plan"}
	w.wait.Go(func() {
		record, err := d.Apply(w.ctx, driver.Wanted{Members: goal.Members, Shape: layout.Shape{Mode: goal.Mode}, SpareBanks: goal.SpareBanks})
		goal.Recorder.Ended(context.WithoutCancel(w.ctx), record, err)
		w.ended(intent, err)
	})
	return true
}

// involvedLocked are the agents with a member of the layout in force or a wanted one.
func (w *World) involvedLocked(goal Goal) []driver.Agent {
	members := map[string]bool{}
	for _, id := range goal.Members {
		members[id] = true
	}
	for _, m := range w.last.Layout.GetMembers() {
		members[m.Id] = true
	}
	var out []driver.Agent
	for uid, s := range w.last.Statuses {
		for _, r := range s.Ranks {
			if c := w.agents[uid]; c != nil && members[r.GetMember().GetId()] {
				out = append(out, c.agent)
				break
			}
		}
	}
	return out
}

func (w *World) stillWanted(intent string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.intent == intent && w.ctx.Err() == nil
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

func (w *World) ended(intent string, err error) {
	// Look first: who is told that it is over shall see what came of it.
	w.look()
	w.mu.Lock()
	w.running, w.failed = nil, nil
	switch {
	case err == nil:
		w.pause.Reset()
		w.nextTry = time.Time{}
	case errors.Is(err, driver.ErrSuperseded):
	default:
		if w.intent == intent { // else it is not wanted any more: no failure, and no reason to wait
			w.failed, w.nextTry = err, time.Now().Add(w.pause.NextBackOff())
		}
	}
	w.mu.Unlock()
	w.notify()
}
