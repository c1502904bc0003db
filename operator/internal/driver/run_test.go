package driver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func intentOf(t *testing.T, d *Driver) Intent {
	t.Helper()
	var intent Intent
	_, err := store.Load(t.Context(), d.Store, keyIntent, &intent)
	require.NoError(t, err)
	return intent
}

// A chain of layout flips has one intent, one permit and one round of calls. Each of its flips is in the record.
func TestRunHasOnePermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		before := len(w.agents[0].Calls())
		var events []Event
		d.Hooks.Progress = func(e Event) { events = append(events, e) }
		done := 0
		d.Hooks.FlipDone = func(FlipRecord) { done++ }
		record, err := d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.Equal(t, []string{"prepare", "stage", "permit", "retire"}, w.agents[0].Calls()[before:])
		require.Len(t, record.Flips, 2)
		require.Equal(t, 1, record.Permits)
		require.Equal(t, 2, done)
		require.Equal(t, record.Flips[0].Attempt+1, record.Flips[1].Attempt)
		require.Equal(t, record.Flips[0].Epoch+1, record.Flips[1].Epoch)
		require.EqualValues(t, 3, record.Epoch)
		require.Equal(t, Event{Flip: 2, Flips: 2, Kind: "layout", Epoch: 3, Phase: "retire"}, events[len(events)-1])
		intent := intentOf(t, d)
		require.Equal(t, Intent{Attempt: 2, Last: 3, FromEpoch: 1, TargetHash: record.TargetHash, PlanHash: record.PlanHash, State: Done}, intent)

		// The next attempt has a number that no flip of the run had.
		_, err = d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		require.EqualValues(t, 4, intentOf(t, d).Attempt)
	})
}

func TestRunEndsAtLeaveOrLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		before := len(w.agents[0].Calls())
		record, err := d.Apply(t.Context(), tensor(2)) // layout flips, then a leave
		require.NoError(t, err)
		kinds := map[string]int{}
		for _, f := range record.Flips {
			kinds[f.Kind]++
		}
		require.Greater(t, kinds["layout"], 1)
		require.Equal(t, 1, kinds["leave"])
		require.Len(t, w.agents[0].Calls()[before:], 2*4, "the leave has a permit of its own")

		d.Run = 1
		before = len(w.agents[0].Calls())
		record, err = d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		require.Len(t, w.agents[0].Calls()[before:], 4*len(record.Flips))
	})
}

// half applies a switch of two flips under one permit, of which the second does not begin.
func half(t *testing.T, d *Driver, w *bed) {
	t.Helper()
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	d.Limits.Flip = time.Hour
	w.HoldRuns(1)
}

// An abort in the middle of a run keeps the world as it is: completed flips stay, the others never begin.
func TestAbort_WhenRunInProgress(t *testing.T) {
	for name, superseded := range map[string]bool{"aborted": false, "superseded": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 2)
				half(t, d, w)
				d.Abort = &Abort{}
				wanted := true
				d.Hooks.Continue = func() bool { return wanted }
				d.Hooks.Progress = func(e Event) {
					if e.Flip == 2 {
						if superseded {
							wanted = false
						} else {
							d.Abort.Ask()
						}
					}
				}
				record, err := d.Apply(t.Context(), tensor(2))
				require.ErrorIs(t, err, ErrSuperseded)
				require.ErrorContains(t, err, "after 1 flips of a run of 2, at epoch 2")
				if !superseded {
					require.ErrorIs(t, err, ErrAborted)
				}
				require.Len(t, record.Flips, 1)
				require.True(t, w.Idle())
				require.EqualValues(t, 2, w.Layout().Epoch, "what is flipped stays, and serves on")
				require.Equal(t, Aborted, intentOf(t, d).State)
				w.HoldRuns(0)
				require.EqualValues(t, 2, w.Layout().Epoch, "the rest is burned")
				members, err := d.membership(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, 2, members.Epoch)

				d.Abort, d.Hooks = nil, Hooks{}
				record, err = d.Apply(t.Context(), tensor(2))
				require.NoError(t, err)
				require.Len(t, record.Flips, 1, "the rest, planned again")
				require.EqualValues(t, 4, record.Flips[0].Attempt)
			})
		})
	}
}

// A rank that cannot fetch the pieces of the next flip ends the run at the current flip.
func TestRun_WhenLaterFlipFails(t *testing.T) {
	for name, fail := range map[string]func(*bed){
		"stage": func(w *bed) { w.agents[1].FailStage("a disk") },
		"prepare": func(w *bed) {
			w.agents[1].Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "a disk"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 2)
				half(t, d, w)
				d.Hooks.Progress = func(e Event) {
					if e.Flip == 2 {
						fail(w)
						w.HoldRuns(0)
					}
				}
				record, err := d.Apply(t.Context(), tensor(2))
				require.ErrorContains(t, err, "the run ended at epoch 2, which stays active")
				require.ErrorContains(t, err, "a disk")
				require.Len(t, record.Flips, 1)
				require.True(t, w.Idle())
				w.agents[1].Refuse(nil)
				d.Hooks.Progress = nil
				_, err = d.Apply(t.Context(), tensor(2))
				require.NoError(t, err)
			})
		})
	}
}

// A dead driver leaves the run to the agents. The next one stops it at the current flip, and plans again.
func TestRun_WhenDriverReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		half(t, d, w)
		other := &Driver{World: d.World, Agents: d.Agents, Store: d.Store, Log: d.Log, Limits: d.Limits}
		var failed error
		done := make(chan struct{})
		ctx, die := context.WithCancel(t.Context())
		go func() {
			defer close(done)
			_, failed = d.Apply(ctx, tensor(2))
		}()
		time.Sleep(time.Second)
		die()
		<-done
		require.EqualValues(t, 2, w.Layout().Epoch)
		record, err := other.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.EqualValues(t, 3, w.Layout().Epoch)
		require.Len(t, record.Flips, 1)
		require.ErrorContains(t, failed, "the agents continue, so run again to learn the outcome")
	})
}

// last makes a driver die after its last permit call.
type last struct {
	Agent
	die func()
}

func (l last) Permit(ctx context.Context, h *tangramv1.Header) error {
	time.Sleep(20 * time.Millisecond) // after the other agent's permit
	_ = l.Agent.Permit(ctx, h)
	l.die()
	return ctx.Err()
}

// Without a driver the agents complete the run. The next driver finds all flips retired except the last.
func TestRunCompletesWithoutDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		ctx, die := context.WithCancel(t.Context())
		d.Agents[1] = last{d.Agents[1], die}
		_, err = d.Apply(ctx, tensor(2))
		require.Error(t, err)
		require.EqualValues(t, 3, w.Layout().Epoch)
		d.Agents[1] = w.agents[1]
		record, err := d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.Empty(t, record.Flips)
		require.Equal(t, 1, record.Retries)
		require.True(t, w.Idle())
	})
}

// After a death in the middle of a run, the repair starts from the survivors' layout, and the run does not continue.
func TestRun_WhenMemberDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.HoldRuns(1)
		d.Hooks.Progress = func(e Event) {
			if e.Flip == 2 {
				w.kill(2)
			}
		}
		_, err = d.Apply(t.Context(), tensor(3))
		require.ErrorIs(t, err, ErrNeedsRepair)
		d.Hooks.Progress = nil
		d.Complete = true
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Len(t, record.Flips, 1)
		require.Greater(t, record.Flips[0].Attempt, intentOf(t, d).Attempt-1)
		w.HoldRuns(0)
		require.EqualValues(t, 3, w.Layout().Epoch)
		require.True(t, w.Idle())
		require.Len(t, w.Layout().Members, 2)
	})
}
