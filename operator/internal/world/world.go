// Package world keeps the operator's side of running worlds: connections to agents, what
// they say, and the one transition or repair that runs. The controller says what to do; this
// package does it in goroutines of its own, so that a reconcile never waits.
package world

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"tangram.dev/operator/internal/balance"
	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Agent of a pod, and how to hang up.
type Agent interface {
	driver.Agent
	io.Closer
	// Load is what was routed to the experts so far.
	Load(ctx context.Context, world string) (*tangramv1.ExpertLoadResponse, error)
}

// Dialer connects to an agent's address; it does not wait for it.
type Dialer func(address string) (Agent, error)

// Endpoint is where a pod's agent listens.
type Endpoint struct {
	UID     string // of the pod; empty: not known before the agent answers
	Address string
}

// key under which a pod is known: its UID, or else its address.
func (e Endpoint) key() string { return cmp.Or(e.UID, e.Address) }

// Recorder keeps what becomes of one transition or repair. Its methods are called one after another.
type Recorder interface {
	// Planned is not called for a repair, which waits for nobody.
	Planned(*driver.Record) error
	Progress(driver.Event)
	FlipDone(driver.FlipRecord)
	// Ended is called after every run, also of one that failed before it had a plan.
	Ended(context.Context, *driver.Record, error)
}

// Goal of a transition, or of a repair: then only Limits and Recorder count.
type Goal struct {
	Repair bool
	// Rebalance is the report whose placement shall be in force; nil: experts are not placed.
	Rebalance  *balance.Report
	Members    []string
	Shape      layout.Shape // of a rebalance: its mode
	SpareBanks uint32
	PauseSteps bool // strategy Fast (driver.Wanted)
	Limits     driver.Limits
	Recorder   Recorder
}

// Snapshot of what is known. Maps are by pod UID, or by address where an Endpoint has none.
type Snapshot struct {
	// Looked is false until the agents were asked once.
	Looked   bool
	Epoch    uint64
	Hash     []byte
	Layout   *tangramv1.Layout // in force; nil: none, or nobody answers who is in it
	Unseen   bool              // the records tell of a layout, and nobody answers who is in it: it may well serve
	Statuses map[string]*tangramv1.StatusResponse
	Errors   map[string]error
	// Broken says why nothing but a repair can change the world; nil: it is whole, or what is known does not
	// show that it is not: one agent that does not answer says nothing while the others serve.
	Broken error
	// Unfinished: ranks are in the middle of an attempt, of the run that is under way, or of one that was left.
	Unfinished bool
	// Outcasts are members, by id, that answer and were left out of the world for good, and since when that is
	// seen: a repair releases them.
	Outcasts map[string]time.Time
	// Headroom of the layout in force for the loss of a member; nil: not known (HeadroomError).
	Headroom      *planner.HeadroomResult
	HeadroomError error
	// Running is the event of the transition or repair that runs; nil: none runs.
	Running   *driver.Event
	Repairing bool // it is a repair
	// Failed is why the last transition failed; nil if it succeeded, was superseded or is not wanted any more.
	Failed error
	// NextTry: none is begun before; zero: now.
	NextTry time.Time
	// RepairFailed and NextRepair are the same for repairs.
	RepairFailed error
	NextRepair   time.Time
	// Balance is what was measured and decided last; nil: experts do not follow the load, or nothing is known yet.
	Balance *balance.Report
	// Rebalancing: what runs is a rebalance. RebalanceFailed and NextRebalance are as for transitions.
	Rebalancing     bool
	RebalanceFailed error
	NextRebalance   time.Time
}

// NeedsRepair says that one should be begun: members are lost or stand still, or outcasts are to be released.
func (s *Snapshot) NeedsRepair() bool { return s.Broken != nil || len(s.Outcasts) > 0 }

// World of one MoEDeployment.
type World struct {
	name                    string
	dial                    Dialer
	store                   store.Store
	log                     *slog.Logger
	notify                  func()
	lookEvery, answerWithin time.Duration

	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup
	poke   chan struct{} // something was heard
	// judging is full while a judgement is made, one at a time. It is no mutex because records are read meanwhile, which
	// takes time, and fake time stands still while somebody waits for a mutex.
	judging chan struct{}
	// dissolving, under Worlds.mu: it ends, and is not there any more once it has.
	dissolving bool

	mu       sync.Mutex
	closing  bool
	intent   string
	agents   map[string]*connection // by Endpoint.key
	complete bool                   // no pod of the world is outside agents
	asked    uint64                 // number of the last question to an agent
	last     Snapshot
	heard    string // mark of what agents said at the last judgement
	mark     string // of the last snapshot that the controller was told of
	judgedAt time.Time
	room     headroom
	run      *run // nil: none
	running  *driver.Event
	told     time.Time // of the run's progress
	telling  bool      // will be told of it in a moment
	tries    tries     // of transitions
	repairs  tries
	shifts   tries // of rebalances
	load     balancing
}

// tries is the back-off of one kind of run.
type tries struct {
	failed error
	next   time.Time
	pause  *backoff.ExponentialBackOff
}

func newTries(first, longest time.Duration) tries {
	pause := backoff.NewExponentialBackOff()
	// Not drawn at random: each world has agents of its own, and a simulated schedule replays.
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier, pause.RandomizationFactor = first, longest, 2, 0
	pause.Reset()
	return tries{pause: pause}
}

func (t *tries) reset() {
	t.failed, t.next = nil, time.Time{}
	t.pause.Reset()
}

// later: the next one waits. err is nil where nothing failed and nothing was done.
func (t *tries) later(err error) { t.failed, t.next = err, time.Now().Add(t.pause.NextBackOff()) }

const (
	tellEvery     = time.Second // of a run's progress
	firstPause    = time.Second
	longestPause  = 2 * time.Minute
	firstRepair   = 250 * time.Millisecond // pause after a repair that failed: nobody is served meanwhile
	longestRepair = 15 * time.Second
	firstShift    = 5 * time.Second // pause after a rebalance that failed: what serves is only less even
	longestShift  = 10 * time.Minute
)

func open(name string, dial Dialer, s store.Store, log *slog.Logger, lookEvery, answerWithin time.Duration, notify func()) *World {
	w := &World{name: name, dial: dial, store: s, log: log, notify: notify, lookEvery: lookEvery, answerWithin: answerWithin, poke: make(chan struct{}, 1), judging: make(chan struct{}, 1),
		agents: map[string]*connection{}, tries: newTries(firstPause, longestPause), repairs: newTries(firstRepair, longestRepair),
		shifts: newTries(firstShift, longestShift), load: balancing{changed: make(chan struct{}, 1)}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.wait.Go(w.watch)
	w.wait.Go(w.balance)
	return w
}

// close ends what runs (the running flip is aborted, or its outcome is left to the agents) and
// hangs up. It waits at most until ctx ends.
func (w *World) close(ctx context.Context) error {
	if err := w.halt(ctx); err != nil {
		return err
	}
	w.SetEndpoints(nil, true)
	return nil
}

func (w *World) halt(ctx context.Context) error {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	w.cancel()
	done := make(chan struct{})
	go func() { w.wait.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// Intend says what is wanted now, as a text: a transition that was begun under another one
// ends after its running flip, and the back-off begins anew.
func (w *World) Intend(intent string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.intent != intent {
		w.intent = intent
		w.tries.reset()
		w.shifts.reset()
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
		s.Repairing = w.run != nil && w.run.kind == repairing
		s.Rebalancing = w.run != nil && w.run.kind == shifting
	}
	s.Failed, s.NextTry = w.tries.failed, w.tries.next
	s.RepairFailed, s.NextRepair = w.repairs.failed, w.repairs.next
	s.Balance, s.RebalanceFailed, s.NextRebalance = w.proposalLocked(), w.shifts.failed, w.shifts.next
	s.Headroom, s.HeadroomError = w.room.of(s.Hash)
	return s
}
