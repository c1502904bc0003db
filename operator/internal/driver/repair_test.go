package driver

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func (w *bed) members(t *testing.T, want ...int) {
	t.Helper()
	var ids []string
	for _, i := range want {
		ids = append(ids, w.agents[i].Member(0))
	}
	require.Equal(t, ids, idsOf(w.Layout()))
	require.True(t, w.Idle())
}

func TestRepair_WhenWorldIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		record, err := d.Repair(t.Context())
		require.NoError(t, err, "no world yet")
		require.Empty(t, record.Flips)
		_, err = d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		d.Hooks.Save = func(context.Context, *Record) error { return errors.New("there is nothing to keep") }
		record, err = d.Repair(t.Context())
		require.NoError(t, err)
		require.Empty(t, record.Flips)
		require.EqualValues(t, 1, w.Layout().Epoch)
	})
}

// A repair's timeout is longer than its wait for an engine to attach again.
func TestRepairTimeoutExceedsReattachWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		d.Limits.Reattach = 2 * d.Limits.Stop
		w.agents[2].Detach(true)
		_, err = d.Repair(t.Context())
		require.NoError(t, err)
		w.members(t, 0, 1)
	})
}

// slowStore takes some time for each call.
type slowStore struct{ store.Store }

const slowCall = 10 * time.Millisecond

func (s slowStore) Get(ctx context.Context, key string) (store.Record, error) {
	time.Sleep(slowCall)
	return s.Store.Get(ctx, key)
}

func (s slowStore) CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	time.Sleep(slowCall)
	return s.Store.CompareAndSwap(ctx, key, version, value)
}

// A rank dies. The survivors continue without it, the record names it, and a new rank joins the world.
func TestRepair_WhenRankDies(t *testing.T) {
	for _, want := range []Wanted{expert(4), tensor(4)} {
		t.Run(want.Shape.Mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 4)
				_, err := d.Apply(t.Context(), want)
				require.NoError(t, err)
				w.kill(2)
				d.Store = slowStore{d.Store}
				_, err = d.Apply(t.Context(), want)
				require.ErrorIs(t, err, ErrNeedsRepair)
				var saved *Record
				d.Hooks.Save = func(_ context.Context, r *Record) error { saved = r; return nil }
				record, err := d.Repair(t.Context())
				require.NoError(t, err)
				w.members(t, 0, 1, 3)
				require.Same(t, record, saved)
				require.Equal(t, "repair", record.Kind)
				require.Equal(t, []string{"repair"}, []string{record.Flips[0].Kind})
				require.Equal(t, "u2/0/1", record.Lost[0].Member)
				require.Contains(t, record.Lost[0].Why, "connection refused")
				require.GreaterOrEqual(t, record.WaitSeconds, slowCall.Seconds())
				require.GreaterOrEqual(t, record.FenceSeconds, slowCall.Seconds())
				require.Positive(t, record.Bytes.TCP)
				require.Equal(t, 3, record.Ranks)
				require.Empty(t, record.Mode)
				require.Empty(t, record.Error)
				require.False(t, record.Ended.IsZero())

				m, err := d.membership(t.Context())
				require.NoError(t, err)
				require.Equal(t, w.Layout().Epoch, m.Epoch)
				require.Equal(t, idsOf(w.Layout()), m.Members)
				require.Equal(t, m.Members, m.Fence.Survivors)
				require.EqualValues(t, m.Epoch-1, m.Fence.Epoch)

				w.add(d)
				_, err = d.Apply(t.Context(), want)
				require.NoError(t, err)
				w.members(t, 0, 1, 3, 4)
				require.True(t, layout.Is(w.Layout(), want.Shape.Mode))
			})
		})
	}
}

// An engine that attaches again in time costs only an epoch. Otherwise it is removed, and its rank joins again under
// another name.
func TestRepair_WhenEngineDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.agents[1].Detach(true)
		d.Limits.Reattach = 5 * time.Second
		time.AfterFunc(300*time.Millisecond, func() { w.agents[1].Detach(false) })
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Empty(t, record.Lost)
		require.EqualValues(t, 0, record.ExpertBytes)
		w.members(t, 0, 1, 2)
		require.EqualValues(t, 2, w.Layout().Epoch)

		d.Limits.Reattach = 20 * time.Millisecond
		w.agents[1].Detach(true)
		record, err = d.Repair(t.Context())
		require.NoError(t, err)
		require.Equal(t, []Lost{{Member: "u1/0/1", Why: "its engine is not attached"}}, record.Lost)
		w.members(t, 0, 2)
		require.Equal(t, "u1/0/2", w.agents[1].Member(0), "it was released")
		w.agents[1].Detach(false)
		_, err = d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.members(t, 0, 2, 1)
	})
}

// The open attempt when a rank died: aborted if no survivor flipped, else rolled forward, and never stuck.
func TestRepairEndsOpenAttempt(t *testing.T) {
	for _, phase := range []tangramv1.Phase{tangramv1.Phase_PHASE_PREPARED, tangramv1.Phase_PHASE_STAGED,
		tangramv1.Phase_PHASE_PERMITTED, tangramv1.Phase_PHASE_FLIPPED} {
		t.Run(phase.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 4)
				_, err := d.Apply(t.Context(), expert(4))
				require.NoError(t, err)
				for _, a := range w.agents {
					a.LeaveIn(9, phase)
				}
				w.kill(3)
				record, err := d.Repair(t.Context())
				require.NoError(t, err)
				w.members(t, 0, 1, 2)
				require.NotContains(t, w.agents[0].Calls(), "abort", "before the fence nobody may end it")
				require.Greater(t, record.Flips[0].Attempt, uint64(9))
				if phase < tangramv1.Phase_PHASE_FLIPPED {
					require.Contains(t, w.agents[0].Calls(), "resolve")
				}
				_, err = d.Apply(t.Context(), tensor(3))
				require.NoError(t, err)
			})
		})
	}
}

// Another member dies in the middle of the repair.
func TestRepair_WhenAnotherMemberDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 5)
		_, err := d.Apply(t.Context(), expert(5))
		require.NoError(t, err)
		w.kill(4)
		w.HoldStage(true)
		time.AfterFunc(800*time.Millisecond, func() { w.kill(3); w.HoldStage(false) })
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		w.members(t, 0, 1, 2)
		require.Positive(t, record.Retries)
		m, err := d.membership(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"u0/0/1", "u1/0/1", "u2/0/1"}, m.Fence.Survivors)
	})
}

// No member survives, or the survivors cannot hold the model: the next Apply starts from the checkpoint.
func TestRepairEndsUnrecoverableWorld(t *testing.T) {
	t.Run("nobody is left", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, w := setup(t, 2)
			_, err := d.Apply(t.Context(), expert(2))
			require.NoError(t, err)
			w.kill(0)
			w.kill(1)
			w.add(d)
			w.add(d)
			d.Limits.Stop = 100 * time.Millisecond
			_, err = d.Apply(t.Context(), expert(2))
			require.ErrorIs(t, err, ErrNeedsRepair, "the two may be at work where nobody sees them")
			_, err = d.Repair(t.Context())
			require.ErrorContains(t, err, "the state of these members is unknown")
			d.Agents = d.Agents[2:]
			_, err = d.Repair(t.Context())
			require.ErrorContains(t, err, "the state of these members is unknown", "nor is it said that these are all")
			d.Complete = true
			record, err := d.Repair(t.Context())
			require.NoError(t, err)
			require.Equal(t, "no member survives", record.WorldEnded)
			_, err = d.Apply(t.Context(), expert(2))
			require.NoError(t, err)
			w.members(t, 2, 3)
			require.EqualValues(t, 1, w.Layout().Epoch)
		})
	})
	t.Run("one comes back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, w := setup(t, 2)
			for _, want := range []Wanted{expert(2), tensor(2), expert(2)} {
				_, err := d.Apply(t.Context(), want)
				require.NoError(t, err)
			}
			old := d.Agents
			w.agents[0].Deaf(true)
			w.kill(1)
			d.Agents, d.Complete = nil, true
			w.add(d)
			w.add(d)
			_, err := d.Repair(t.Context())
			require.NoError(t, err)
			_, err = d.Apply(t.Context(), expert(2))
			require.NoError(t, err)
			w.agents[0].Deaf(false) // at an epoch above that of the current world
			require.Greater(t, w.agents[0].Epoch(), w.agents[2].Epoch())
			d.Agents = append(d.Agents, old[0])
			_, err = d.Apply(t.Context(), tensor(2))
			require.NoError(t, err)
			require.True(t, layout.Is(w.agents[2].Layout(), layout.Tensor))
			_, err = d.Repair(t.Context())
			require.NoError(t, err)
			require.False(t, w.agents[0].InWorld(), "released")
			_, err = d.Apply(t.Context(), expert(3))
			require.NoError(t, err)
			w.members(t, 2, 3, 0)
		})
	})
	t.Run("no room", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, w := setup(t, 3)
			_, err := d.Apply(t.Context(), expert(3))
			require.NoError(t, err)
			w.kill(2)
			w.SetMemory(4096)
			kept := 0
			d.Hooks.Save = func(context.Context, *Record) error { kept++; return nil }
			record, err := d.Repair(t.Context())
			require.NoError(t, err)
			require.Contains(t, record.WorldEnded, "the survivors cannot hold the model: ")
			require.False(t, w.agents[0].InWorld() || w.agents[1].InWorld(), "released")
			require.Equal(t, 1, kept)
			w.SetMemory(1 << 30)
			w.add(d)
			_, err = d.Apply(t.Context(), expert(3))
			require.NoError(t, err)
			w.members(t, 0, 1, 3)
			m, err := d.membership(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1, m.Worlds)
		})
	})
}

// Only a leaver flipped, and it is in no layout. All votes were equal, so the others roll forward.
func TestRepair_WhenOnlyLeaverFlipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		d.Hooks.Progress = func(e Event) {
			if e.Kind == "leave" && e.Phase == "flip" {
				time.AfterFunc(50*time.Millisecond, func() {
					w.agents[2].FlipAlone()
					w.kill(1)
					w.agents[0].GiveUp()
				})
			}
			if e.Kind == "leave" && e.Phase == "prepare" {
				w.HoldGate(true)
			}
		}
		_, err = d.Apply(t.Context(), expert(2))
		require.ErrorIs(t, err, ErrNeedsRepair)
		w.HoldGate(false)
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Empty(t, record.WorldEnded)
		m, err := d.membership(t.Context())
		require.NoError(t, err)
		require.True(t, m.Fence.forward(), "%+v", m.Fence)
		require.Equal(t, []string{w.agents[0].Member(0)}, idsOf(w.Layout()))
		_, err = d.Apply(t.Context(), expert(2)) // and the leaver may come back
		require.NoError(t, err)
		w.members(t, 0, 2)
	})
}

// An agent restarted without its record of the attempt that the others are in.
func TestApply_WhenAgentForgotAttempt(t *testing.T) {
	for _, phase := range []tangramv1.Phase{tangramv1.Phase_PHASE_PREPARED, tangramv1.Phase_PHASE_STAGED, tangramv1.Phase_PHASE_PERMITTED} {
		t.Run(phase.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 3)
				_, err := d.Apply(t.Context(), expert(3))
				require.NoError(t, err)
				for _, a := range w.agents {
					a.LeaveIn(9, phase)
				}
				w.agents[2].Forget()
				_, err = d.Apply(t.Context(), tensor(3))
				require.NoError(t, err)
				w.requireRanks(t, 3)
			})
		})
	}
}

// A joiner dies in the middle of its join: the members continue to serve, without a wait for it.
func TestJoin_WhenJoinerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.HoldStage(true)
		time.AfterFunc(100*time.Millisecond, func() { w.kill(2) })
		began := time.Now()
		_, err = d.Apply(t.Context(), expert(3))
		require.ErrorContains(t, err, "connection refused")
		require.Less(t, time.Since(began), 1500*time.Millisecond)
		w.HoldStage(false)
		w.add(d)
		_, err = d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.members(t, 0, 1, 3)
	})
}

// The engine of a joiner is lost before its agent, at the permit: the permit is not retried until the limit.
func TestJoin_WhenJoinerDiesAtPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		d.Limits.Flip = time.Hour
		d.Hooks.Progress = func(e Event) {
			if e.Phase == "flip" && e.Kind == "join" {
				w.agents[2].Detach(true)
				time.Sleep(10 * time.Millisecond) // its loss is reported
				w.kill(2)
			}
		}
		began := time.Now()
		_, err = d.Apply(t.Context(), expert(3))
		require.ErrorContains(t, err, "the engine of joining member ")
		require.Less(t, time.Since(began), time.Minute)
		d.Hooks, d.Agents = Hooks{}, d.Agents[:2]
		_, err = d.Apply(t.Context(), tensor(2))
		require.NoError(t, err, "the attempt is ended by the next one")
	})
}

func TestTensorParallelRequiresReadableCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.agents[1].BreakCheckpoint("model-00003.safetensors: no such file")
		_, err = d.Apply(t.Context(), tensor(2))
		require.ErrorContains(t, err, "agent a1 cannot read the checkpoint")
		require.ErrorContains(t, err, "model-00003.safetensors")
		_, err = d.Apply(t.Context(), expert(1))
		require.NoError(t, err)
	})
}

// A first layout was permitted, and its driver and all members died: no second world is started.
func TestFirstLayoutIsRecordedBeforePermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		w.HoldGate(true)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(150*time.Millisecond, cancel)
		_, err := d.Apply(ctx, expert(2))
		require.Error(t, err)
		m, err := d.membership(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, m.Epoch)
		w.agents[0].Deaf(true)
		w.agents[1].Deaf(true)
		w.add(d)
		_, err = d.Apply(t.Context(), expert(1))
		require.True(t, errors.Is(err, ErrNeedsRepair), "%v", err)
		w.agents[0].Deaf(false)
		w.agents[1].Deaf(false)
		w.HoldGate(false)
		_, err = d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.members(t, 0, 1)
	})
}
