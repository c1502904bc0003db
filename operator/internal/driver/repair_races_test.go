package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// interposed writes the membership record just before the first fence is written.
type interposed struct {
	store.Store
	armed bool
}

func (s *interposed) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	var m Membership
	if s.armed && key == keyMembership && json.Unmarshal(value, &m) == nil && m.Fence != nil {
		s.armed = false
		was, err := s.Get(ctx, key)
		if err == nil {
			_, err = s.Store.CompareAndSwap(ctx, key, was.Version, was.Value)
		}
		if err != nil {
			return 0, err
		}
	}
	return s.Store.CompareAndSwap(ctx, key, version, value)
}

func TestFence_WhenCompareAndSwapLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.kill(0)
		d.Store = &interposed{Store: d.Store, armed: true}
		before := len(w.agents[1].Calls())
		record, err := d.Repair(t.Context())
		require.ErrorIs(t, err, store.ErrConflict)
		require.Empty(t, record.Flips)
		require.Len(t, w.agents[1].Calls(), before)
		_, err = d.Repair(t.Context())
		require.NoError(t, err)
		w.members(t, 1, 2)
	})
}

// A proposal from before the end of a world cannot be permitted after it.
func TestFenceAbortsProposal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		truth, err := d.observe(t.Context())
		require.NoError(t, err)
		intent, err := d.propose(t.Context(), &flipRun{truth: truth, flip: &tangramv1.Flip{}, record: &Record{}})
		require.NoError(t, err)
		w.kill(0)
		w.kill(1)
		w.add(d)
		d.Agents, d.Complete = d.Agents[2:], true
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, record.WorldEnded)
		require.ErrorIs(t, d.permit(t.Context(), intent), store.ErrConflict)
	})
}

// overtaken makes another driver write its fence when a repair records its intent.
type overtaken struct {
	store.Store
	armed bool
}

func (s *overtaken) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	if was, err := s.Get(ctx, keyMembership); s.armed && key == keyIntent && err == nil {
		s.armed = false
		if _, err := s.Store.CompareAndSwap(ctx, keyMembership, was.Version, was.Value); err != nil {
			return 0, err
		}
	}
	return s.Store.CompareAndSwap(ctx, key, version, value)
}

func TestRepair_WhenFenceWasOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.kill(0)
		d.Store = &overtaken{Store: d.Store, armed: true}
		permits := len(w.agents[1].Calls())
		_, err = d.Repair(t.Context())
		require.ErrorIs(t, err, store.ErrConflict)
		require.NotContains(t, w.agents[1].Calls()[permits:], "permit")
		_, err = d.Repair(t.Context())
		require.NoError(t, err)
		w.members(t, 1, 2)
	})
}

// A driver dies between the permit and the flip of a repair: the next one sends a hold before it decides.
func TestRepair_WhenPreviousRepairPermitted(t *testing.T) {
	for _, flipped := range []bool{false, true} {
		t.Run(fmt.Sprintf("flipped=%t", flipped), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				_, err = d.Repair(ctx)
				require.Error(t, err)
				require.Equal(t, tangramv1.Phase_PHASE_PERMITTED, w.agents[1].Phase())
				if flipped {
					w.agents[1].FlipAlone()
					w.agents[1].GiveUp() // the other one did not arrive
				}
				w.OpenAtResolve() // all votes of the repair exist: without a hold it would flip now
				d.Hooks.Progress = nil
				_, err = d.Repair(t.Context())
				require.NoError(t, err)
				require.Contains(t, w.agents[2].Calls(), "hold")
				w.members(t, 1, 2)
				m, err := d.membership(t.Context())
				require.NoError(t, err)
				require.Equal(t, flipped, m.Fence.forward())
			})
		})
	}
}

// A fence that was decided before a repair was permitted fails, because the permit is in the membership record.
func TestRepairPermitIsInMembershipRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.kill(0)
		var late Membership
		d.Hooks.Progress = func(e Event) {
			if e.Phase == "prepare" {
				late, err = d.membership(t.Context())
			}
		}
		_, repairing := d.Repair(t.Context())
		require.NoError(t, repairing)
		require.NoError(t, err)
		_, err = d.fence(t.Context(), late, ruling{fromEpoch: 1, standOn: 1, outcome: tangramv1.Outcome_OUTCOME_ABORT, survivors: late.Members}, 0, late.Hash)
		require.ErrorIs(t, err, store.ErrConflict)
		now, err := d.membership(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, late.version+2, now.version, "the permit, and what came of it")
		require.Zero(t, now.Repair)
	})
}
