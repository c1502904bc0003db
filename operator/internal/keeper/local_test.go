package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/layout"
)

// line is a connection to an agent that stays open.
type line struct{ *drivertest.Agent }

func (line) Close() error { return nil }

// bed is a keeper and agents of one rank each.
type bed struct {
	*drivertest.World
	t       *testing.T
	local   *Local
	wait    sync.WaitGroup
	mu      sync.Mutex
	all     []*drivertest.Agent
	here    []string // addresses
	failing error    // of the list of agents
	did     []string
}

// An apply without work is reported only if it ended another driver's attempt; agents complete runs by themselves.
func TestLocalReportsEndedAttempt(t *testing.T) {
	told := 0
	l := &Local{Store: &store.Memory{}, Log: slog.New(slog.DiscardHandler), Did: func(string, *driver.Record, error) { told++ }}
	recorder := localRecorders{l}.Transition(nil, nil)
	recorder.Ended(t.Context(), &driver.Record{}, nil)
	require.Zero(t, told)
	recorder.Ended(t.Context(), &driver.Record{Retries: 1}, nil)
	require.Equal(t, 1, told)
}

func setup(t *testing.T, n int, want Wanted) *bed {
	t.Helper()
	agents, err := drivertest.NewWorld("w")
	require.NoError(t, err)
	b := &bed{World: agents, t: t}
	want.Limits = driver.DefaultLimits
	b.local = &Local{World: "w", Store: &store.Memory{}, Log: slog.New(slog.DiscardHandler), Wanted: want,
		Dial: func(address string) (world.Agent, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, a := range b.all {
				if a.Address() == address {
					return line{a}, nil
				}
			}
			return nil, errors.New("no such agent")
		},
		Agents: func() ([]string, bool, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.Clone(b.here), true, b.failing
		},
		Did: func(what string, r *driver.Record, err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.did = append(b.did, fmt.Sprintf("%s lost %d, %d ranks, %d flips, error %v", what, len(r.Lost), r.Ranks, len(r.Flips), err != nil))
		}}
	for range n {
		b.add()
	}
	return b
}

func (b *bed) locked(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *bed) add() {
	b.locked(func() {
		i := len(b.all)
		a := b.Start(drivertest.Pod{Name: fmt.Sprint("w-", i), UID: fmt.Sprint("u", i), Node: "n", Address: fmt.Sprint("a", i), Ranks: 1})
		b.all, b.here = append(b.all, a), append(b.here, a.Address())
	})
}

// run starts a keeper; the returned function ends it.
func (b *bed) run() func() {
	ctx, stop := context.WithCancel(b.t.Context())
	b.wait.Go(func() { b.local.Run(ctx) })
	return func() { stop(); b.wait.Wait() }
}

// saw checks the reports since the last call.
func (b *bed) saw(want ...string) {
	b.t.Helper()
	synctest.Wait()
	b.locked(func() { require.Equal(b.t, want, b.did); b.did = nil })
}

func (b *bed) members(want ...int) {
	b.t.Helper()
	var ids, have []string
	for _, i := range want {
		ids = append(ids, b.all[i].Member(0))
	}
	for _, m := range b.Layout().GetMembers() {
		have = append(have, m.Id)
	}
	require.Equal(b.t, ids, have)
	require.True(b.t, b.Idle())
}

// Local starts the world when there are enough ranks, repairs it within a second of a death, adds a new rank, and
// survives all errors.
func TestLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0, Wanted{Pods: 3, Shape: layout.Shape{Mode: layout.Tensor}})
		defer b.run()()
		time.Sleep(time.Second) // no agents at all
		b.add()
		b.add()
		time.Sleep(5 * time.Second)
		b.saw()
		b.add()
		time.Sleep(3 * time.Second)
		b.saw("apply lost 0, 3 ranks, 1 flips, error false")

		b.Stop("a1")
		time.Sleep(time.Second)
		b.saw("repair lost 1, 2 ranks, 1 flips, error false")
		b.locked(func() { b.failing = errors.New("a file is not there") })
		time.Sleep(5 * time.Second)
		b.locked(func() { b.failing = nil })
		b.add()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		b.members(0, 2, 3)
		require.True(t, layout.Is(b.Layout(), layout.Tensor))
		b.locked(func() { require.Len(t, b.did, 1); b.did = nil })
		epoch := b.Layout().Epoch
		time.Sleep(time.Minute)
		b.saw()
		require.Equal(t, epoch, b.Layout().Epoch, "a world that is as wanted is left alone")
	})
}

// Engines that keep the heads of a request on one rank reach Tensor with cut experts only. Then nothing changes.
func TestTensorParallel_WhenAttentionIsDataParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2, Wanted{Pods: 2, Shape: layout.Shape{Mode: layout.Tensor}})
		b.all[1].AttentionDataOnly()
		defer b.run()()
		time.Sleep(time.Minute)
		b.saw("apply lost 0, 2 ranks, 1 flips, error false")
		require.True(t, layout.Has(b.Layout(), layout.Shape{Mode: layout.Tensor, AttentionByData: true}))
	})
}

// A world with desired replicas starts without them: its first layout reads each byte once.
func TestFirstLayoutHasNoReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		layer := [][]uint32{{0, 1, 2, 3, 4, 5, 11}, {4, 6, 7, 8, 9, 10, 11}}
		want := Wanted{Pods: 2, Shape: layout.Shape{Mode: layout.Expert, Placement: [][][]uint32{layer, layer}}}
		b := setup(t, 2, want)
		end := b.run()
		time.Sleep(5 * time.Second)
		b.saw("apply lost 0, 2 ranks, 1 flips, error false", "apply lost 0, 2 ranks, 1 flips, error false")
		require.Equal(t, want.Shape.Placement, layout.PlacementOf(b.Layout()))
		end()
		b.local.Wanted.Shape.Placement = nil // replicas go when they are no longer desired
		defer b.run()()
		time.Sleep(3 * time.Second)
		b.saw("apply lost 0, 2 ranks, 1 flips, error false")
		require.True(t, layout.Has(b.Layout(), layout.Shape{Mode: layout.Expert}))
	})
}

// An earlier keeper's open attempt is ended, also if the layout is as desired, so that its memory is freed.
func TestLocalEndsOpenAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2, Wanted{Pods: 2, Shape: layout.Shape{Mode: layout.Expert}})
		end := b.run()
		time.Sleep(3 * time.Second)
		b.members(0, 1)
		end()
		b.all[0].Leave(7)
		require.False(t, b.Idle())
		defer b.run()()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		b.members(0, 1)
	})
}

// An agent that never answered a keeper may have any member. Its possible world is neither ended nor started again.
func TestNewKeeper_WhenAgentsUnresponsive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3, Wanted{Pods: 2, Shape: layout.Shape{Mode: layout.Expert}})
		end := b.run()
		time.Sleep(3 * time.Second)
		b.members(0, 1)
		end()
		b.locked(func() { b.did = nil })
		b.all[0].Deaf(true)
		b.all[1].Deaf(true)
		defer b.run()()
		time.Sleep(time.Minute)
		b.saw()
		require.EqualValues(t, 1, b.Layout().Epoch)
		b.all[1].Deaf(false)
		time.Sleep(time.Minute)
		b.locked(func() { b.did = nil }) // a repair may be tried without success
		require.EqualValues(t, 1, b.Layout().Epoch)
		b.locked(func() { b.here = []string{"a1", "a2"} }) // the list says that the other is dead
		b.Stop("a0")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		b.members(1, 2)
	})
}

// A process of several ranks may join with only some of them, if fewer are desired.
func TestLocalCountsRanksNotPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0, Wanted{Pods: 3, Shape: layout.Shape{Mode: layout.Expert}})
		b.locked(func() {
			for i := range 2 {
				a := b.Start(drivertest.Pod{Name: "w", UID: fmt.Sprint("u", i), Node: "n", Address: fmt.Sprint("a", i), Ranks: 2})
				b.all, b.here = append(b.all, a), append(b.here, a.Address())
			}
		})
		defer b.run()()
		time.Sleep(3 * time.Second)
		require.Len(t, b.Layout().GetMembers(), 3)
	})
}
