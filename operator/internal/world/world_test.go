package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	soon = 10 * time.Second
	tick = 5 * time.Millisecond
)

// notes is a Recorder that counts.
type notes struct {
	mu     sync.Mutex
	refuse error
	ends   []error
	flips  int
}

func (n *notes) Planned(*driver.Record) error { return n.refuse }
func (n *notes) Progress(driver.Event)        {}
func (n *notes) FlipDone(driver.FlipRecord) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.flips++
}

func (n *notes) Ended(_ context.Context, _ *driver.Record, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends = append(n.ends, err)
}

func (n *notes) ended() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]error{}, n.ends...)
}

type dialled struct {
	*drivertest.Agent
	hung  chan struct{}
	stuck *atomic.Pointer[chan struct{}] // blocks answers until closed, beyond the caller's limits; nil: no block
}

func (d dialled) Status(ctx context.Context, world string) (*tangramv1.StatusResponse, error) {
	if until := d.stuck.Load(); until != nil {
		<-*until
	}
	return d.Agent.Status(ctx, world)
}

func (d dialled) Close() error { close(d.hung); return nil }

type bench struct {
	*World
	t      *testing.T
	worlds *Worlds
	agents *drivertest.World
	told   chan struct{}
	hung   []chan struct{}
	stuck  atomic.Pointer[chan struct{}]
	limits driver.Limits
}

// setup creates a world of n agents, the first two of which are in its layout.
func setup(t *testing.T, n int) *bench {
	t.Helper()
	return setupWith(t, n, 20*time.Millisecond)
}

func setupWith(t *testing.T, n int, lookEvery time.Duration) *bench {
	t.Helper()
	b := outside(t, n, lookEvery)
	require.True(t, b.Begin(b.goal(&notes{}, layout.Expert, 2)))
	b.until(func(s Snapshot) bool { return s.Running == nil && len(s.Layout.GetMembers()) == 2 })
	return b
}

// outside creates n agents without a layout.
func outside(t *testing.T, n int, lookEvery time.Duration) *bench {
	t.Helper()
	agents, err := drivertest.NewWorld("w")
	require.NoError(t, err)
	s, err := store.OpenFile(filepath.Join(t.TempDir(), "store.json"))
	require.NoError(t, err)
	b := &bench{t: t, agents: agents, told: make(chan struct{}, 1), worlds: &Worlds{Log: slog.New(slog.DiscardHandler), LookEvery: lookEvery},
		limits: driver.Limits{Engines: time.Second, Stage: time.Minute, Flip: time.Second, Outcome: time.Second, Retire: time.Second}}
	var mu sync.Mutex
	dial := func(address string) (Agent, error) {
		mu.Lock()
		defer mu.Unlock()
		d := dialled{agents.Find(address), make(chan struct{}), &b.stuck}
		b.hung = append(b.hung, d.hung)
		return d, nil
	}
	b.World = b.worlds.Open("uid", "w", dial, s, func() {
		select {
		case b.told <- struct{}{}:
		default:
		}
	})
	t.Cleanup(func() { b.worlds.CloseAll(context.Background()) })
	var endpoints []Endpoint
	for i := range n {
		p := drivertest.Pod{Name: fmt.Sprintf("w-%d", i), UID: fmt.Sprintf("u%d", i), Address: fmt.Sprintf("a%d", i), Ranks: 1}
		agents.Start(p)
		endpoints = append(endpoints, Endpoint{p.UID, p.Address})
	}
	b.SetEndpoints(endpoints, true)
	b.until(func(s Snapshot) bool { return s.Looked && len(s.Statuses) == n })
	b.Intend("start")
	return b
}

func (b *bench) goal(n *notes, mode layout.Mode, ranks int) Goal {
	g := Goal{Shape: layout.Shape{Mode: mode}, SpareBanks: 1, Limits: b.limits, Recorder: n}
	for i := range ranks {
		g.Members = append(g.Members, fmt.Sprintf("u%d/0/1", i))
	}
	return g
}

func (b *bench) until(is func(Snapshot) bool) Snapshot {
	b.t.Helper()
	var s Snapshot
	require.Eventually(b.t, func() bool { s = b.Snapshot(); return is(s) }, soon, tick)
	return s
}

func TestSnapshotReportsAgentStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		s := b.Snapshot()
		require.EqualValues(t, 1, s.Epoch)
		require.NotEmpty(t, s.Hash)
		require.Len(t, s.Statuses, 3)
		b.agents.Find("a2").Deaf(true)
		s = b.until(func(s Snapshot) bool { return s.Errors["u2"] != nil })
		require.Len(t, s.Statuses, 2)
		require.NoError(t, s.Failed)
	})
}

// The controller is notified of changes, and of nothing else.
func TestNotifiesOfChangesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		drain := func() {
			for quiet := false; !quiet; {
				select {
				case <-b.told:
				case <-time.After(100 * time.Millisecond):
					quiet = true
				}
			}
		}
		drain() // ends only if the notifications end
		b.agents.Find("a1").Detach(true)
		select {
		case <-b.told:
		case <-time.After(soon):
			t.Fatal("the controller was not told of an engine that went")
		}
	})
}

func TestOneTransitionAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		b.agents.HoldStage(true)
		first, second := &notes{}, &notes{}
		require.True(t, b.Begin(b.goal(first, layout.Tensor, 2)))
		b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "stage" })
		require.False(t, b.Begin(b.goal(second, layout.Expert, 1)))
		b.agents.HoldStage(false)
		b.until(func(s Snapshot) bool { return s.Running == nil && layout.Is(s.Layout, layout.Tensor) })
		require.Equal(t, []error{nil}, first.ended())
		require.Empty(t, second.ended())
	})
}

func TestBackOffAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		b.Intend("tensor")
		b.agents.Find("a0").Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_BAD_PLAN, Message: "no such expert"})
		n := &notes{}
		require.True(t, b.Begin(b.goal(n, layout.Tensor, 2)))
		s := b.until(func(s Snapshot) bool { return s.Failed != nil })
		require.ErrorContains(t, s.Failed, "no such expert")
		require.Len(t, n.ended(), 1)
		pause := time.Until(s.NextTry)
		require.Greater(t, pause, 300*time.Millisecond)
		require.Less(t, pause, 1600*time.Millisecond)
		require.False(t, b.Begin(b.goal(n, layout.Tensor, 2)), "not before the pause is over")
		b.Intend("tensor")
		require.False(t, b.Begin(b.goal(n, layout.Tensor, 2)), "the same intent again changes nothing")

		// The back-off grows: after three more failures in a row it is longer than the first one can be.
		for range 3 {
			b.mu.Lock()
			b.tries.next = time.Time{}
			b.mu.Unlock()
			require.True(t, b.Begin(b.goal(n, layout.Tensor, 2)))
			s = b.until(func(s Snapshot) bool { return s.Running == nil && !s.NextTry.IsZero() })
		}
		require.Greater(t, time.Until(s.NextTry), 3*time.Second)

		b.Intend("something else")
		s = b.Snapshot()
		require.Zero(t, s.NextTry)
		require.NoError(t, s.Failed, "what is not wanted any more did not fail")
		b.agents.Find("a0").Refuse(nil)
		require.True(t, b.Begin(b.goal(n, layout.Tensor, 2)))
		b.until(func(s Snapshot) bool { return layout.Is(s.Layout, layout.Tensor) && s.Running == nil })
	})
}

func TestTransition_WhenIntentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 4)
		b.agents.HoldStage(true)
		n := &notes{}
		b.Intend("four")
		require.True(t, b.Begin(b.goal(n, layout.Expert, 4)))
		b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "stage" })
		b.Intend("two")
		b.agents.HoldStage(false)
		s := b.until(func(s Snapshot) bool { return s.Running == nil })
		require.Len(t, n.ended(), 1)
		require.ErrorIs(t, n.ended()[0], driver.ErrSuperseded)
		require.Equal(t, 1, n.flips)
		require.NoError(t, s.Failed)
		require.Zero(t, s.NextTry)
		require.EqualValues(t, 2, s.Epoch, "who is told that it ended sees what came of it")
		require.True(t, b.agents.Idle())
	})
}

// A transition that fails after the intent changed is no failure of the new intent.
func TestTransition_WhenSupersededIntentFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		b.Intend("tensor")
		b.agents.HoldStage(true)
		b.limits.Stage = 300 * time.Millisecond
		n := &notes{}
		require.True(t, b.Begin(b.goal(n, layout.Tensor, 2)))
		b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "stage" })
		b.Intend("expert")
		s := b.until(func(s Snapshot) bool { return s.Running == nil })
		require.Error(t, n.ended()[0])
		require.NoError(t, s.Failed)
		require.Zero(t, s.NextTry)
	})
}

func TestTransition_WhenRecordCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		n := &notes{refuse: errors.New("no room for the record")}
		require.True(t, b.Begin(b.goal(n, layout.Tensor, 2)))
		s := b.until(func(s Snapshot) bool { return s.Failed != nil })
		require.ErrorContains(t, s.Failed, "no room for the record")
		require.EqualValues(t, 1, s.Epoch)
		require.NotContains(t, b.agents.Find("a0").Calls()[3:], "prepare")
	})
}

func TestCloseAbortsTransitionAndDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		b.agents.HoldStage(true)
		n := &notes{}
		require.True(t, b.Begin(b.goal(n, layout.Tensor, 2)))
		b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "stage" })
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		require.NoError(t, b.worlds.Close(ctx, "uid"))
		require.True(t, b.agents.Idle(), "nothing is left half done")
		require.Len(t, n.ended(), 1)
		require.Error(t, n.ended()[0])
		for _, h := range b.hung {
			select {
			case <-h:
			case <-time.After(soon):
				t.Fatal("a connection is left open")
			}
		}
		require.Nil(t, b.worlds.Find("uid"))
		require.NoError(t, b.worlds.Close(ctx, "uid"), "again: nothing to do")
		require.False(t, b.Begin(b.goal(n, layout.Tensor, 2)), "a closed world does nothing")
	})
}

// Close returns at its timeout if agents block the end.
func TestCloseReturnsAtTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		b.limits.Outcome = 5 * time.Second
		b.agents.HoldStage(true)
		require.True(t, b.Begin(b.goal(&notes{}, layout.Tensor, 2)))
		b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "stage" })
		b.agents.Find("a1").Deaf(true) // it does not get the abort
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		require.ErrorContains(t, b.worlds.Close(ctx, "uid"), "end the transition of world w")
		require.Less(t, time.Since(began), 3*time.Second)
		require.NotNil(t, b.worlds.Find("uid"), "it is still ending")
		b.agents.Find("a1").Deaf(false)
		long, over := context.WithTimeout(t.Context(), soon)
		defer over()
		require.NoError(t, b.worlds.Close(long, "uid"))
		require.True(t, b.agents.Idle())
	})
}

func TestRemovedEndpointsAreDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		b.SetEndpoints([]Endpoint{{"u0", "a0"}, {"u1", "a1"}}, true)
		require.Eventually(t, func() bool {
			closed := 0
			for _, h := range b.hung {
				select {
				case <-h:
					closed++
				default:
				}
			}
			return closed == 1
		}, soon, tick)
		s := b.until(func(s Snapshot) bool { return s.Looked && len(s.Statuses) == 2 })
		require.Nil(t, s.Statuses["u2"])
	})
}
