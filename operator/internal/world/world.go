// Package world keeps the operator's side of running worlds: connections to agents, their reports, and the one
// transition or repair that runs. The controller decides; this package acts in its own goroutines, so that a reconcile
// never waits.
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

// Agent is the connection to a pod's agent.
type Agent interface {
	driver.Agent
	io.Closer
	// Load returns the tokens that were routed to the experts so far.
	Load(ctx context.Context, world string) (*tangramv1.ExpertLoadResponse, error)
}

// Dialer connects to an agent's address. It does not wait for the connection.
type Dialer func(address string) (Agent, error)

// Endpoint is where a pod's agent listens.
type Endpoint struct {
	UID     string // of the pod; empty: not known before the agent answers
	Address string
}

// key identifies the pod: its UID, or else its address.
func (e Endpoint) key() string { return cmp.Or(e.UID, e.Address) }

// Recorder receives the events of one transition or repair. Its methods are called one after another.
type Recorder interface {
	// Planned is not called for a repair, which waits for no approval.
	Planned(*driver.Record) error
	Progress(driver.Event)
	FlipDone(driver.FlipRecord)
	// Ended is called after every run, also if it failed before it had a plan.
	Ended(context.Context, *driver.Record, error)
}

// Goal is the goal of a run. Of a repair only Limits and Recorder count.
type Goal struct {
	Repair bool
	// Rebalance is the report with the desired placement; nil: experts are not placed.
	Rebalance  *balance.Report
	Members    []string
	Shape      layout.Shape // of a rebalance: its mode
	SpareBanks uint32
	PauseSteps bool // strategy Fast (driver.Wanted)
	Limits     driver.Limits
	Recorder   Recorder
}

// Snapshot is the known state of a world. Maps are by pod UID, or by address if an Endpoint has no UID.
type Snapshot struct {
	// Looked is false until all agents were queried once.
	Looked   bool
	Epoch    uint64
	Hash     []byte
	Layout   *tangramv1.Layout // active; nil: none, or no member of it answers
	Unseen   bool              // the record has a layout, but no member of it answers: it may well serve
	Statuses map[string]*tangramv1.StatusResponse
	Errors   map[string]error
	// Broken says why only a repair can change the world; nil: it is healthy, or no loss is proven. An agent that does
	// not answer proves nothing while the others serve.
	Broken error
	// Unfinished: ranks have an open attempt, of the current run or left over.
	Unfinished bool
	// Outcasts are answering members, by id, that were removed permanently, and since when this is known. A repair
	// releases them.
	Outcasts map[string]time.Time
	// Headroom of the active layout for the loss of a member; nil: not known (HeadroomError).
	Headroom      *planner.HeadroomResult
	HeadroomError error
	// Running is the latest event of the running transition or repair; nil: none runs.
	Running   *driver.Event
	Repairing bool // it is a repair
	// Failed is the error of the last transition; nil if it succeeded, was superseded or is no longer wanted.
	Failed error
	// NextTry is the earliest time of the next transition; zero: now.
	NextTry time.Time
	// RepairFailed and NextRepair are the same for repairs.
	RepairFailed error
	NextRepair   time.Time
	// Balance is the latest report of the load; nil: experts do not follow the load, or nothing is known yet.
	Balance *balance.Report
	// Rebalancing: the current run is a rebalance. RebalanceFailed and NextRebalance are as for transitions.
	Rebalancing     bool
	RebalanceFailed error
	NextRebalance   time.Time
}

// NeedsRepair says that a repair is due: members are lost or stopped, or outcasts must be released.
func (s *Snapshot) NeedsRepair() bool { return s.Broken != nil || len(s.Outcasts) > 0 }

// World is the world of one MoEDeployment.
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
	poke   chan struct{} // there is news
	// judging is full during a judgement; only one runs at a time. It is no mutex, because a judgement reads records,
	// which takes time, and fake time does not pass while a goroutine waits for a mutex.
	judging chan struct{}
	// dissolving, under Worlds.mu: the world is ending and will be removed.
	dissolving bool

	mu       sync.Mutex
	closing  bool
	intent   string
	agents   map[string]*connection // by Endpoint.key
	complete bool                   // no pod of the world is outside agents
	asked    uint64                 // number of the last query to an agent
	last     Snapshot
	heard    string // mark of the agents' reports at the last judgement
	mark     string // of the last snapshot that the controller was notified of
	judgedAt time.Time
	room     headroom
	run      *run // nil: none
	running  *driver.Event
	told     time.Time // last notification of the run's progress
	telling  bool      // a notification of it is scheduled
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
	// Not random: worlds have separate agents, and a simulated schedule must replay.
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier, pause.RandomizationFactor = first, longest, 2, 0
	pause.Reset()
	return tries{pause: pause}
}

func (t *tries) reset() {
	t.failed, t.next = nil, time.Time{}
	t.pause.Reset()
}

// later starts a back-off. err is nil if the run did not fail and did nothing.
func (t *tries) later(err error) { t.failed, t.next = err, time.Now().Add(t.pause.NextBackOff()) }

const (
	tellEvery     = time.Second // notifications of a run's progress
	firstPause    = time.Second
	longestPause  = 2 * time.Minute
	firstRepair   = 250 * time.Millisecond // back-off after a failed repair: the world does not serve meanwhile
	longestRepair = 15 * time.Second
	firstShift    = 5 * time.Second // back-off after a failed rebalance: serving is only less even
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

// close ends the current run (the running flip is aborted, or its outcome is left to the agents) and disconnects. It
// returns an error if that takes longer than ctx.
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

// Intend sets the desired state, as a text. A transition that was begun under another one ends after its running flip,
// and the back-off restarts.
func (w *World) Intend(intent string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.intent != intent {
		w.intent = intent
		w.tries.reset()
		w.shifts.reset()
	}
}

// Snapshot returns the current state.
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
