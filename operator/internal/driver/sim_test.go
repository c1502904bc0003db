package driver_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/keeper"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/internal/testkit"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/member"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// The simulation has keepers (the real keeper, world and driver), agents with the real ones' rules, and random faults:
// kills, cuts, delays and lost messages, in the fake time of synctest. Each delay depends only on the seed, the actor
// and the (fake) time of its call, so a seed replays: go test ./internal/driver -run TestSimulation -sim.seed N -v
var (
	simSeed  = flag.Uint64("sim.seed", 0, "replay this seed of the simulation, and log what happens")
	simSeeds = flag.Int("sim.seeds", 0, "so many seeds; 0: 200 (with TIER=nightly 2000, with -short 60 that are always the same)")
)

// errCut is the error of a call over a broken connection.
var errCut = errors.New("sim: connection refused")

func sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}

type sim struct {
	seed   uint64
	world  *drivertest.World
	store  *simStore
	log    *slog.Logger
	faulty bool // connections lose calls

	mu      sync.Mutex
	present []*drivertest.Agent
	pods    int
	per     int             // ranks of a pod
	forgot  map[string]bool // UIDs of pods whose agent restarted without memory of an attempt
	wrong   []string        // violated invariants
	worked  map[string]int
}

func (s *sim) violate(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// draw returns the random source of one event, a pure function of its name.
func (s *sim) draw(event ...any) *rand.Rand {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, s.seed)
	_, _ = fmt.Fprint(h, event...)
	return rand.New(rand.NewPCG(h.Sum64(), s.seed))
}

func (s *sim) add() {
	s.mu.Lock()
	i := s.pods
	s.pods++
	s.mu.Unlock()
	a := s.world.Start(drivertest.Pod{Name: fmt.Sprint("w-", i), UID: fmt.Sprint("u", i), Node: "n", Address: fmt.Sprintf("a%02d", i), Ranks: s.per})
	s.mu.Lock()
	s.present = append(s.present, a)
	s.mu.Unlock()
}

func (s *sim) agents() []*drivertest.Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.present)
}

// simDriver is one keeper's process. After its death its actions have no effect.
type simDriver struct {
	s      *sim
	name   string
	mu     sync.Mutex
	dead   bool
	cancel context.CancelFunc
}

// pass waits for a call's delay and decides its fate: lost before it arrives, or its reply is lost.
func (d *simDriver) pass(ctx context.Context, to, call string) (lostReply bool, err error) {
	d.mu.Lock()
	dice := d.s.draw(d.name, to, call, time.Now().UnixNano()) // concurrent calls fare alike, in any order
	dead := d.dead
	d.mu.Unlock()
	pause := time.Duration(dice.Int64N(int64(10 * time.Millisecond)))
	if dice.IntN(40) == 0 {
		pause = time.Duration(dice.Int64N(int64(700 * time.Millisecond)))
	}
	if err := sleep(ctx, pause); err != nil {
		return false, err
	}
	d.mu.Lock()
	dead = dead || d.dead
	d.mu.Unlock()
	if dead {
		return false, errCut
	}
	d.s.mu.Lock()
	faulty := d.s.faulty
	d.s.mu.Unlock()
	if !faulty {
		return false, nil
	}
	switch dice.IntN(60) {
	case 0:
		return false, errCut
	case 1:
		return true, nil
	}
	return false, nil
}

// simLine is a driver's connection to an agent.
type simLine struct {
	d *simDriver
	a *drivertest.Agent
}

func (l simLine) Address() string { return l.a.Address() }

func (simLine) Close() error { return nil }

func (l simLine) do(ctx context.Context, call string, f func() error) error {
	lost, err := l.d.pass(ctx, l.a.Address(), call)
	if err != nil {
		return err
	}
	if err := f(); err != nil || !lost {
		return err
	}
	return errCut
}

func (l simLine) Status(ctx context.Context, world string) (out *tangramv1.StatusResponse, err error) {
	err = l.do(ctx, "Status", func() (err error) { out, err = l.a.Status(ctx, world); return err })
	if err != nil {
		out = nil
	}
	return out, err
}
func (l simLine) Prepare(ctx context.Context, q *tangramv1.PrepareRequest) error {
	return l.do(ctx, "Prepare", func() error { return l.a.Prepare(ctx, q) })
}
func (l simLine) Stage(ctx context.Context, h *tangramv1.Header) error {
	return l.do(ctx, "Stage", func() error { return l.a.Stage(ctx, h) })
}
func (l simLine) Permit(ctx context.Context, h *tangramv1.Header) error {
	return l.do(ctx, "Permit", func() error { return l.a.Permit(ctx, h) })
}
func (l simLine) Abort(ctx context.Context, h *tangramv1.Header, reason string) (flipped bool, err error) {
	err = l.do(ctx, "Abort", func() (err error) { flipped, err = l.a.Abort(ctx, h, reason); return err })
	return flipped, err
}
func (l simLine) Retire(ctx context.Context, h *tangramv1.Header) error {
	return l.do(ctx, "Retire", func() error { return l.a.Retire(ctx, h) })
}
func (l simLine) Resolve(ctx context.Context, h *tangramv1.Header, o tangramv1.Outcome, reason string, lost ...string) error {
	return l.do(ctx, "Resolve", func() error { return l.a.Resolve(ctx, h, o, reason, lost...) })
}
func (l simLine) Release(ctx context.Context, h *tangramv1.Header, m []string, ends bool, reason string) error {
	return l.do(ctx, "Release", func() error { return l.a.Release(ctx, h, m, ends, reason) })
}
func (l simLine) Load(ctx context.Context, world string) (out *tangramv1.ExpertLoadResponse, err error) {
	err = l.do(ctx, "Load", func() (err error) { out, err = l.a.Load(ctx, world); return err })
	return out, err
}
func (l simLine) Watch(ctx context.Context, world string, each func(*tangramv1.StatusResponse)) error {
	if _, err := l.d.pass(ctx, l.a.Address(), "Watch"); err != nil {
		return err
	}
	return l.a.Watch(ctx, world, each)
}

// simStore is the API server. It checks that the records only move forward.
type simStore struct {
	s       *sim
	mu      sync.Mutex
	records map[string]store.Record
}

func (m *simStore) get(key string) store.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[key]
}

func (m *simStore) swap(key string, version uint64, value json.RawMessage) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.records[key]
	if was.Version != version {
		return 0, fmt.Errorf("record %q is at version %d, expected %d: %w", key, was.Version, version, store.ErrConflict)
	}
	switch key {
	case driver.KeyMembership:
		m.check(was.Value, value)
	case driver.KeyIntent:
		var a, b driver.Intent
		if was.Version > 0 {
			_ = json.Unmarshal(was.Value, &a)
		}
		_ = json.Unmarshal(value, &b)
		if b.Attempt < a.Attempt || b.Attempt == a.Attempt && b.State == driver.Permitted && a.State != driver.Proposed {
			m.s.violate("intent goes back: %s after %s", value, was.Value)
		}
	}
	m.records[key] = store.Record{Version: version + 1, Value: slices.Clone(value)}
	return version + 1, nil
}

func (m *simStore) check(was, now json.RawMessage) {
	var a, b driver.Membership
	if len(was) > 0 {
		_ = json.Unmarshal(was, &a)
	}
	_ = json.Unmarshal(now, &b)
	unfounded := a.Epoch == 1 && b.Epoch == 0
	if b.Worlds < a.Worlds || b.Worlds == a.Worlds && b.Epoch < a.Epoch && !unfounded {
		m.s.violate("membership goes back: %s after %s", now, was)
	}
	if a.Worlds != b.Worlds || a.Fence == nil || len(a.Fence.Survivors) == 0 || b.Fence == nil || !a.Fence.Of(b.Fence.FromEpoch) { // one without survivors is of the world before
		return
	}
	for _, id := range b.Fence.Survivors {
		if !slices.Contains(a.Fence.Survivors, id) {
			m.s.violate("a later fence has more survivors: %s after %s", now, was)
		}
	}
}

func newRecords() map[string]store.Record { return map[string]store.Record{} }

// simClient is a driver's connection to the store.
type simClient struct {
	d *simDriver
	m *simStore
}

func (c simClient) Get(ctx context.Context, key string) (store.Record, error) {
	if _, err := c.d.pass(ctx, "store", "get"); err != nil {
		return store.Record{}, err
	}
	return c.m.get(key), nil
}

func (c simClient) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	lost, err := c.d.pass(ctx, "store", "swap")
	if err != nil {
		return 0, err
	}
	next, err := c.m.swap(key, version, value)
	if err == nil && lost {
		return 0, errCut
	}
	return next, err
}

// keeper starts a keeper's process.
func (s *sim) keeper(ctx context.Context, wait *sync.WaitGroup, name string, want keeper.Wanted) *simDriver {
	d := &simDriver{s: s, name: name}
	ctx, d.cancel = context.WithCancel(ctx)
	log := s.log.With("driver", name)
	want.Limits = driver.Limits{Engines: 2 * time.Second, Stage: 2 * time.Second, Flip: 2 * time.Second, Outcome: 2 * time.Second,
		Retire: 2 * time.Second, Answer: time.Second, Stop: 5 * time.Second, Reattach: 500 * time.Millisecond}
	k := &keeper.Local{World: "w", Store: simClient{d, s.store}, Log: log, Wanted: want, Dial: func(address string) (world.Agent, error) {
		for _, a := range s.agents() {
			if a.Address() == address {
				return simLine{d, a}, nil
			}
		}
		return nil, fmt.Errorf("sim: no agent at %s", address)
	}, Agents: func() (addresses []string, complete bool, err error) {
		for _, a := range s.agents() {
			addresses = append(addresses, a.Address())
		}
		return addresses, true, nil
	}, Did: func(what string, record *driver.Record, err error) {
		log.Info("did", "what", what, "flips", len(record.Flips), "lost", record.Lost, "ended", record.WorldEnded, "error", err)
		if err != nil && strings.Contains(err.Error(), "a world has only one layout") {
			s.violate("%v", err)
		}
		for _, lost := range record.Lost {
			s.justified(lost)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case err != nil:
			s.worked[what+" failed"]++
		case record.WorldEnded != "":
			s.worked["world ended"]++
		default:
			s.worked[what]++
		}
	}}
	wait.Go(func() { k.Run(ctx) })
	return d
}

// justified checks why an answering member with a running, connected engine was removed. The only valid reason is that
// its agent forgot the attempt by which the others rolled forward. A joiner (at epoch 0) may also lose its attempt to a
// second driver, which does not know of the flip.
func (s *sim) justified(lost driver.Lost) {
	behind := strings.Contains(lost.Why, "has no attempt that leads to") || strings.Contains(lost.Why, "where the others stay")
	if !behind || strings.HasPrefix(lost.Why, "the member is at epoch 0 ") {
		return
	}
	m, err := member.Parse(lost.Member)
	if err != nil {
		s.violate("left out: %v", err)
		return
	}
	s.mu.Lock()
	forgot := s.forgot[m.PodUID]
	s.mu.Unlock()
	if !forgot {
		s.violate("member %s was left out without a reason: %s", lost.Member, lost.Why)
	}
}

func (d *simDriver) kill() {
	d.mu.Lock()
	d.dead = true
	d.mu.Unlock()
	d.cancel()
}

// fault causes one fault, and heals it after a while.
func (s *sim) fault(ctx context.Context, wait *sync.WaitGroup, n int) {
	dice := s.draw("fault", n)
	agents := s.agents()
	if len(agents) == 0 {
		return
	}
	a, b := agents[dice.IntN(len(agents))], agents[dice.IntN(len(agents))]
	short := time.Duration(dice.Int64N(int64(3 * time.Second)))
	later := func(f func()) { wait.Go(func() { _ = sleep(ctx, short); f() }) }
	kind := dice.IntN(5)
	s.log.Info("fault", "kind", []string{"kill", "engine", "cut", "agent alone", "deaf"}[kind], "agent", a.Address(), "and", b.Address(), "for", short)
	switch kind {
	case 0: // agent and engine die; the pods' owner creates another
		s.world.Stop(a.Address())
		later(func() {
			s.mu.Lock()
			s.present = slices.DeleteFunc(s.present, func(x *drivertest.Agent) bool { return x == a })
			s.mu.Unlock()
			s.add()
		})
	case 1:
		a.Detach(true)
		later(func() { a.Detach(false) })
	case 2:
		x, y := a.Member(0), b.Member(0)
		s.world.Cut(x, y, a != b)
		later(func() { s.world.Cut(x, y, false) })
	case 3: // its engine still serves, and the next agent has no record of an attempt
		a.Deaf(true)
		pod := member.PodOf(a.Member(0))
		s.mu.Lock()
		s.forgot[pod] = true
		s.mu.Unlock()
		later(func() { a.Forget(); a.Deaf(false) })
	case 4:
		a.Deaf(true)
		later(func() { a.Deaf(false) })
	}
}

// simulate runs one seed and returns the violations; none: success. It writes the gates' events to trace, if not nil.
func simulate(t *testing.T, seed uint64, log *slog.Logger, trace io.Writer) (wrong []string, worked map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		world, err := drivertest.NewWorld("w")
		if err != nil {
			t.Fatal(err)
		}
		world.Manual()
		if trace != nil {
			world.Trace(trace)
		}
		s := &sim{seed: seed, world: world, log: log, worked: map[string]int{}, forgot: map[string]bool{}, faulty: true}
		s.store = &simStore{s: s, records: newRecords()}
		dice := s.draw("shape")
		ranks := 2 + dice.IntN(3)
		s.per = 1 + dice.IntN(5)/4
		for range ranks + dice.IntN(2) {
			s.add()
		}
		ranks *= s.per
		ranks = min(ranks, 6) // limit of the model's heads
		want := keeper.Wanted{Pods: ranks, Shape: layout.Shape{Mode: []layout.Mode{layout.Expert, layout.Tensor}[dice.IntN(2)]}, SpareBanks: 1}
		began := want
		began.Shape.Mode = []layout.Mode{layout.Expert, layout.Tensor}[dice.IntN(2)]
		began.Pods = 1 + dice.IntN(ranks)
		ctx, stop := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() { // the engines
			for i := 0; ctx.Err() == nil; i++ {
				dice := s.draw("step", i)
				if err := world.Step(dice, drivertest.Chances{Tear: 0.15, Decline: 0.15, Pull: 0.05}); err != nil {
					s.violate("%v", err)
					return
				}
				_ = sleep(ctx, 10*time.Millisecond+time.Duration(dice.Int64N(int64(3*time.Millisecond))))
			}
		})
		pause := func(limit time.Duration) { _ = sleep(ctx, 1+time.Duration(dice.Int64N(int64(limit)))) }
		first := s.keeper(ctx, &wait, "d0", began)
		pause(4 * time.Second)
		drivers := 1
		running := []*simDriver{first}
		for n := range 1 + dice.IntN(6) {
			switch dice.IntN(4) {
			case 0: // a driver dies
				running[0].kill()
				running = running[1:]
			case 1: // two run
			default:
				s.fault(ctx, &wait, n)
			}
			if len(running) < 1+dice.IntN(2) {
				running = append(running, s.keeper(ctx, &wait, fmt.Sprint("d", drivers), want))
				drivers++
			}
			pause(3 * time.Second)
		}
		for _, d := range running { // a last one starts below
			d.kill()
		}
		_ = sleep(ctx, 4*time.Second) // all faults are healed by then
		s.mu.Lock()
		s.faulty = false
		s.mu.Unlock()
		s.keeper(ctx, &wait, "last", want)
		if why := s.settles(ctx, want); why != "" {
			s.violate("wedged: %s", why)
		}
		stop()
		wait.Wait()
		wrong, worked = s.wrong, s.worked
		fates := world.Fates()
		worked["flip"], worked["flip torn"], worked["flip declined"], worked["KV not pulled"] = fates[drivertest.Flipped], fates[drivertest.Torn],
			fates[drivertest.Declined], fates[drivertest.PullFailed]
	})
	return wrong, worked
}

// settles waits until the world is in the desired state and steps. After two minutes it returns what is wrong.
func (s *sim) settles(ctx context.Context, want keeper.Wanted) string {
	why := ""
	for range 1200 {
		_ = sleep(ctx, 100*time.Millisecond)
		l := s.world.Layout()
		hash, err := layout.Hash(l)
		switch {
		case l == nil || err != nil:
			why = "no layout"
		case len(l.Members) != want.Pods || !layout.Is(l, want.Shape.Mode):
			why = fmt.Sprintf("%d members of %d wanted, %v: %v", len(l.Members), want.Pods, want.Shape.Mode, layout.Is(l, want.Shape.Mode))
		case !s.world.Idle():
			why = "an attempt is unfinished"
		case s.world.Stepping() != string(hash):
			why = fmt.Sprintf("epoch %d does not step", l.Epoch)
		default:
			return ""
		}
	}
	return why
}

func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		wrong, worked := simulate(t, *simSeed, log, nil)
		if len(wrong) > 0 {
			t.Fatalf("seed %d: %s", *simSeed, strings.Join(wrong, "\n"))
		}
		t.Logf("seed %d: %v", *simSeed, worked)
		return
	}
	first, seeds, total := testkit.Seed(t)<<20, 200, map[string]int{} // different seeds for each SEED
	switch {
	case *simSeeds > 0:
		seeds = *simSeeds
	case testing.Short():
		first, seeds = 0, 60
	case testkit.Nightly():
		seeds = 2000
	}
	for n := range seeds {
		seed := first + uint64(n) + 1
		wrong, worked := simulate(t, seed, slog.New(slog.DiscardHandler), nil)
		if len(wrong) > 0 {
			t.Fatalf("seed %d (replay: go test ./internal/driver -run TestSimulation -sim.seed %d -v): %s", seed, seed, strings.Join(wrong, "\n"))
		}
		for what, n := range worked {
			total[what] += n
		}
	}
	t.Logf("%d seeds after %d: %v", seeds, first, total)
	for _, what := range []string{"repair", "apply", "flip", "flip torn", "flip declined", "KV not pulled"} {
		if total[what] == 0 && (seeds >= 200 || what == "repair" || what == "apply") {
			t.Fatalf("%d seeds, and no %s: %v", seeds, what, total)
		}
	}
}
