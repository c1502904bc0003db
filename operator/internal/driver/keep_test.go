package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/pkg/layout"
)

// A keeper brings the world up when there are ranks enough, repairs it within a second of a death, widens it when a
// rank comes, and survives whatever errors it gets. In fake time.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agents, err := drivertest.NewWorld("w")
		require.NoError(t, err)
		w := &bed{World: agents}
		s := &sim{}
		d := &Driver{World: "w", Store: &plainStore{simStore{s: s, records: newRecords()}}, Log: slog.New(slog.DiscardHandler), Limits: DefaultLimits}
		var mu sync.Mutex
		var did []string
		var failing error
		k := &Keeper{Want: Wanted{Ranks: 3, Shape: layout.Shape{Mode: layout.Tensor}}, Log: d.Log,
			Driver: func(context.Context) (*Driver, error) {
				mu.Lock()
				defer mu.Unlock()
				now := *d
				return &now, failing
			},
			Did: func(what string, r *Record, err error) {
				mu.Lock()
				defer mu.Unlock()
				did = append(did, fmt.Sprintf("%s lost %d, %d ranks, error %v", what, len(r.Lost), r.Ranks, err != nil))
			}}
		ctx, stop := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() { k.Run(ctx) })
		locked := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }
		saw := func(want ...string) {
			t.Helper()
			synctest.Wait()
			locked(func() { require.Equal(t, want, did); did = nil })
		}
		time.Sleep(time.Second) // no agents at all
		locked(func() { w.add(d); w.add(d) })
		time.Sleep(5 * time.Second)
		saw()
		locked(func() { w.add(d) })
		time.Sleep(3 * time.Second)
		saw("apply lost 0, 3 ranks, error false")

		w.kill(1)
		time.Sleep(time.Second)
		saw("repair lost 1, 2 ranks, error false")
		locked(func() { failing = errors.New("a file is not there") })
		time.Sleep(5 * time.Second)
		locked(func() { failing = nil; w.add(d) })
		time.Sleep(4 * time.Second) // at most 2 s until it looks again
		saw("apply lost 0, 3 ranks, error false")
		w.members(t, 0, 2, 3)
		require.True(t, layout.Is(w.Layout(), layout.Tensor))
		epoch := w.Layout().Epoch
		time.Sleep(time.Minute)
		saw()
		require.Equal(t, epoch, w.Layout().Epoch, "a world that is as wanted is left alone")
		stop()
		wait.Wait()
	})
}

// A world that starts with copies starts without them: its first layout reads each byte once.
func TestKeeperReplicatesAfterTheFirstLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		layer := [][]uint32{{0, 1, 2, 3, 4, 5, 11}, {4, 6, 7, 8, 9, 10, 11}}
		want := Wanted{Ranks: 2, Shape: layout.Shape{Mode: layout.Expert, Placement: [][][]uint32{layer, layer}}}
		_, err := d.Apply(t.Context(), want)
		require.ErrorContains(t, err, "start with one of each, replicate then")
		var did []string
		k := &Keeper{Want: want, Log: d.Log, Driver: func(context.Context) (*Driver, error) { return d, nil },
			Did: func(what string, r *Record, err error) {
				did = append(did, fmt.Sprintf("%s, %d flips, error %v", what, len(r.Flips), err != nil))
			}}
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		k.Run(ctx)
		require.Equal(t, []string{"apply, 1 flips, error false", "apply, 1 flips, error false"}, did)
		require.Equal(t, want.Shape.Placement, layout.PlacementOf(w.Layout()))
	})
}
