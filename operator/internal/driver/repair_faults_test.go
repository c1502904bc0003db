package driver

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Faults at each point of a repair.

// watched stores report each write before it is done, and fail while broken.
type watched struct {
	store.Store
	writes func(key string, value json.RawMessage)
	broken atomic.Bool
}

func (s *watched) Get(ctx context.Context, key string) (store.Record, error) {
	if s.broken.Load() {
		return store.Record{}, errUnreadable
	}
	return s.Store.Get(ctx, key)
}

func (s *watched) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	if s.writes != nil {
		s.writes(key, value)
	}
	if s.broken.Load() {
		return 0, errUnreadable
	}
	return s.Store.CompareAndSwap(ctx, key, version, value)
}

// onFence calls do once, when the first fence is written.
func (s *watched) onFence(do func()) {
	s.writes = func(key string, value json.RawMessage) {
		var m Membership
		if key == keyMembership && json.Unmarshal(value, &m) == nil && m.Fence != nil {
			s.writes = nil
			do()
		}
	}
}

// broken runs a test on a world of n expert ranks whose last one has died, in fake time.
func broken(t *testing.T, n int, do func(t *testing.T, d *Driver, w *bed, s *watched)) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, n)
		_, err := d.Apply(t.Context(), expert(n))
		require.NoError(t, err)
		s := &watched{Store: &store.Memory{}}
		d.Store = s
		truth, err := d.observe(t.Context())
		require.NoError(t, err)
		require.NoError(t, d.saveMembership(t.Context(), truth))
		w.kill(n - 1)
		do(t, d, w, s)
	})
}

func propose(t *testing.T, d *Driver) {
	_, err := store.Save(t.Context(), d.Store, keyIntent, 0, Intent{Attempt: 1, State: Proposed})
	require.NoError(t, err)
}

func TestRepair_WhenRecordsUnavailable(t *testing.T) {
	broken(t, 3, func(t *testing.T, d *Driver, _ *bed, s *watched) {
		s.broken.Store(true)
		record, err := d.Repair(t.Context())
		require.ErrorIs(t, err, errUnreadable)
		require.ErrorContains(t, err, record.Error)
		require.Zero(t, record.Retries)
	})
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, s *watched) { // an open proposal might still be permitted
		propose(t, d)
		d.Store = failing{d.Store, Aborted}
		_, err := d.Repair(t.Context())
		require.ErrorIs(t, err, errUnreadable)
		m, err := d.membership(t.Context())
		require.NoError(t, err)
		require.Nil(t, m.Fence)
		require.EqualValues(t, 1, w.agents[0].Epoch())
	})
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, s *watched) { // the store fails once the proposal is aborted
		propose(t, d)
		d.Store = &onRead{Store: s, key: keyIntent, do: func() { d.Agents[0] = breaks{d.Agents[0], s} }}
		_, err := d.Repair(t.Context())
		require.ErrorIs(t, err, errUnreadable)
		require.EqualValues(t, 1, w.agents[0].Epoch())
	})
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, s *watched) { // done, but not visible immediately
		d.Hooks.FlipDone = func(FlipRecord) {
			s.broken.Store(true)
			time.AfterFunc(firstRetry/2, func() { s.broken.Store(false) })
		}
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, record.Retries)
		require.Len(t, record.Flips, 1)
		w.members(t, 0, 1)
	})
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, s *watched) { // done, but not recorded
		d.Hooks.FlipDone = func(FlipRecord) {
			s.writes = func(string, json.RawMessage) { s.broken.Store(true) }
		}
		record, err := d.Repair(t.Context())
		require.ErrorIs(t, err, errUnreadable)
		require.Zero(t, record.Retries)
	})
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, _ *watched) {
		full := errors.New("the disk is full")
		d.Hooks.Save = func(context.Context, *Record) error { return full }
		_, err := d.Repair(t.Context())
		require.ErrorIs(t, err, full)
		require.ErrorContains(t, err, "save the record: ")
		w.members(t, 0, 1)
	})
}

// breaks makes the store fail when its status is queried.
type breaks struct {
	Agent
	s *watched
}

func (b breaks) Status(ctx context.Context, world string) (*tangramv1.StatusResponse, error) {
	b.s.broken.Store(true)
	return nil, errors.New("reset")
}

// A ruling whose layout no agent reports is not written.
func TestFence_WhenLayoutHashUnknown(t *testing.T) {
	l := layoutOf(4, "a", "b")
	d, _ := speakers(says(l, "a"), says(l, "b"))
	_, err := d.fenceAndResolve(t.Context(), truthOf(t, Membership{}, says(l, "a"), says(l, "b")), ruling{fromEpoch: 6, standOn: 6, survivors: []string{"a"}})
	require.EqualError(t, err, "no agent reports the layout of epoch 6")
	m, err := d.membership(t.Context())
	require.NoError(t, err)
	require.Nil(t, m.Fence)
}

// Another survivor dies while the fence that includes it is written: the repair starts again.
func TestRepair_WhenSurvivorDiesDuringFence(t *testing.T) {
	broken(t, 4, func(t *testing.T, d *Driver, w *bed, s *watched) {
		s.onFence(func() { w.kill(2) })
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, record.Retries)
		w.members(t, 0, 1)
	})
}

// Another driver has repaired the world between two queries of this one: nothing ends.
func TestRepair_WhenOtherDriverRepairedWorld(t *testing.T) {
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, s *watched) {
		propose(t, d)
		other := *d
		other.Store = s.Store
		var err error
		s.writes = func(string, json.RawMessage) { // when it aborts the proposal
			s.writes = nil
			_, err = other.Repair(t.Context())
		}
		record, mine := d.Repair(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, mine, store.ErrConflict)
		require.Empty(t, record.WorldEnded)
		w.members(t, 0, 1)
	})
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, s *watched) {
		other := *d
		var err error
		d.Store = &onRead{Store: s, key: keyIntent, do: func() { _, err = other.Repair(t.Context()) }}
		record, mine := d.Repair(t.Context())
		require.NoError(t, err)
		require.NoError(t, mine)
		require.Equal(t, 1, record.Retries)
		require.Empty(t, record.WorldEnded)
		require.Empty(t, record.Flips)
		w.members(t, 0, 1)
	})
}

// onRead calls do once, before a key is read.
type onRead struct {
	store.Store
	key string
	do  func()
}

func (s *onRead) Get(ctx context.Context, key string) (store.Record, error) {
	if do := s.do; do != nil && key == s.key {
		s.do = nil
		do()
	}
	return s.Store.Get(ctx, key)
}

// stubborn agents reject the outcome.
type stubborn struct{ *drivertest.Agent }

func (s stubborn) Resolve(ctx context.Context, h *tangramv1.Header, o tangramv1.Outcome, reason string, lost ...string) error {
	if o == tangramv1.Outcome_OUTCOME_HOLD {
		return s.Agent.Resolve(ctx, h, o, reason, lost...)
	}
	return refusal(tangramv1.Refusal_CODE_ENGINE)
}

// A survivor that rejects the outcome is not relied on, although it seems to have applied it.
func TestRepair_WhenSurvivorRejectsOutcome(t *testing.T) {
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, _ *watched) {
		for _, a := range w.agents {
			a.LeaveIn(9, tangramv1.Phase_PHASE_STAGED)
		}
		d.Agents[0] = grudging{w.agents[0]}
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, record.Retries)
		w.members(t, 0, 1)
	})
}

// grudging agents apply the outcome and reject it.
type grudging struct{ *drivertest.Agent }

func (g grudging) Resolve(ctx context.Context, h *tangramv1.Header, o tangramv1.Outcome, reason string, lost ...string) error {
	if err := g.Agent.Resolve(ctx, h, o, reason, lost...); err != nil || o == tangramv1.Outcome_OUTCOME_HOLD {
		return err
	}
	return refusal(tangramv1.Refusal_CODE_ENGINE)
}

// An agent flips just before it gets the hold. It is queried again, and the others follow it.
func TestRepair_WhenAgentFlipsBeforeHold(t *testing.T) {
	d, w := setup(t, 3)
	_, err := d.Apply(t.Context(), expert(3))
	require.NoError(t, err)
	w.kill(0)
	ctx, dies := context.WithCancel(t.Context())
	w.HoldGate(true)
	d.Hooks.Progress = func(e Event) {
		if e.Phase == "flip" {
			time.AfterFunc(50*time.Millisecond, dies)
		}
	}
	record, err := d.Repair(ctx)
	require.Error(t, err)
	require.Zero(t, record.Retries, "who asked has gone")
	d.Hooks.Progress = nil
	w.OpenAtResolve()
	d.Agents[1] = &flipsBefore{Agent: w.agents[1]}
	record, err = d.Repair(t.Context())
	require.NoError(t, err)
	require.Zero(t, record.Retries)
	w.members(t, 1, 2)
	m, err := d.membership(t.Context())
	require.NoError(t, err)
	require.True(t, m.Fence.forward())
}

// flipsBefore flips before its first hold.
type flipsBefore struct {
	*drivertest.Agent
	done bool
}

func (f *flipsBefore) Resolve(ctx context.Context, h *tangramv1.Header, o tangramv1.Outcome, reason string, lost ...string) error {
	if o == tangramv1.Outcome_OUTCOME_HOLD && !f.done {
		f.done = true
		f.FlipAlone()
		f.GiveUp()
	}
	return f.Agent.Resolve(ctx, h, o, reason, lost...)
}

// Another driver's attempt is permitted just before this one aborts proposals, and an agent flips before it gets the
// hold. It is queried again before any ruling.
func TestRepair_WhenOtherAttemptFlipsBeforeHold(t *testing.T) {
	broken(t, 3, func(t *testing.T, d *Driver, w *bed, s *watched) {
		d.Agents[0] = &flipsBefore{Agent: w.agents[0]}
		d.Store = &onRead{Store: s, key: keyIntent, do: func() {
			w.HoldGate(true)
			for _, a := range w.agents {
				a.LeaveIn(9, tangramv1.Phase_PHASE_PERMITTED)
			}
			w.OpenAtResolve()
		}}
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Zero(t, record.Retries)
		w.members(t, 0, 1)
		m, err := d.membership(t.Context())
		require.NoError(t, err)
		require.True(t, m.Fence.forward())
	})
}

// A repair that may succeed later is retried a few times, with pauses, but not after the caller has gone.
func TestRepairRetryLimits(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		broken(t, 3, func(t *testing.T, d *Driver, w *bed, _ *watched) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			for _, a := range w.agents {
				a.LeaveIn(9, tangramv1.Phase_PHASE_STAGED)
			}
			d.Agents[0] = stubborn{w.agents[0]}
			if leaves {
				d.Agents[0] = leaving{stubborn{w.agents[0]}, leave}
			}
			record, err := d.Repair(ctx)
			require.ErrorIs(t, err, errAgain)
			if leaves {
				require.Equal(t, 1, record.Retries, "it went in the first pause")
			} else {
				require.Equal(t, repairTries, record.Retries)
			}
			d.Agents[0] = w.agents[0]
			_, err = d.Repair(t.Context())
			require.NoError(t, err)
			w.members(t, 0, 1)
		})
	}
}

type leaving struct {
	stubborn
	leave func()
}

func (l leaving) Resolve(ctx context.Context, h *tangramv1.Header, o tangramv1.Outcome, reason string, lost ...string) error {
	time.AfterFunc(firstRetry/2, l.leave)
	return l.stubborn.Resolve(ctx, h, o, reason, lost...)
}

// The wait for unstable connections is as long as that for members that do not stop. Then the ruling is made from the
// current reports, unless an attempt is open that could still flip.
func TestRepair_WhenConnectionsNeverSettle(t *testing.T) {
	for _, open := range []bool{false, true} {
		broken(t, 5, func(t *testing.T, d *Driver, w *bed, _ *watched) {
			if open {
				for _, a := range w.agents {
					a.LeaveIn(9, tangramv1.Phase_PHASE_STAGED)
				}
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			down := func(odd int) { // one of two connections, or both for a moment
				w.Cut(w.agents[0].Member(0), w.agents[1+odd].Member(0), true)
				w.Cut(w.agents[0].Member(0), w.agents[2-odd].Member(0), false)
			}
			down(0)
			go func() {
				for odd := 1; sleep(ctx, cutsSettle/2) == nil; odd = 1 - odd {
					down(odd)
				}
			}()
			began := time.Now()
			record, err := d.Repair(t.Context())
			if open {
				require.ErrorIs(t, err, ErrNeedsRepair)
				require.ErrorContains(t, err, "timed out after 2s because the connections between engines changed a moment ago; nothing was changed")
				require.Equal(t, d.Limits.Stop+lookEvery, time.Since(began))
				return
			}
			require.Greater(t, time.Since(began), d.Limits.Stop)
			require.True(t, slices.ContainsFunc(record.Lost, func(l Lost) bool { return l.Member == w.agents[4].Member(0) }))
		})
	}
}

// The driver and a member of a first layout died. No agent is in that layout, so its attempt is ended without a trace.
func TestRepair_WhenNoAgentReachedFirstLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		w.HoldGate(true)
		ctx, leave := context.WithCancel(t.Context())
		d.Hooks.Progress = func(e Event) {
			if e.Phase == "flip" {
				time.AfterFunc(50*time.Millisecond, leave)
			}
		}
		_, err := d.Apply(ctx, expert(2))
		require.ErrorIs(t, err, context.Canceled)
		w.kill(1)
		d.Hooks = Hooks{}
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Empty(t, record.Flips)
		require.Empty(t, record.WorldEnded, "it had not begun")
		require.Equal(t, tangramv1.Phase_PHASE_IDLE, w.agents[0].Phase())
		m, err := d.membership(t.Context())
		require.NoError(t, err)
		require.Zero(t, m.Epoch)
	})
}
