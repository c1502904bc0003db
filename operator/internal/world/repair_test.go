package world

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// repair begins a repair, waits for its end and returns the result.
func (b *bench) repair() (Snapshot, *kept) {
	b.t.Helper()
	n := &kept{}
	require.True(b.t, b.Begin(Goal{Repair: true, Limits: b.limits, Recorder: n}))
	s := b.until(func(s Snapshot) bool { return s.Running == nil })
	require.Eventually(b.t, func() bool { return len(n.ended()) == 1 }, soon, tick)
	return s, n
}

// kept is a Recorder that keeps the record.
type kept struct {
	notes
	record *driver.Record
}

func (k *kept) Ended(ctx context.Context, record *driver.Record, err error) {
	k.record = record
	k.notes.Ended(ctx, record, err)
}

// wide extends the world of setup to 3 ranks.
func (b *bench) wide() {
	b.t.Helper()
	require.True(b.t, b.Begin(b.goal(&notes{}, layout.Expert, 3)))
	b.until(func(s Snapshot) bool { return s.Running == nil && len(s.Layout.GetMembers()) == 3 })
}

func TestRepair_WhenAgentDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setupWith(t, 3, time.Hour) // only the streams report
		b.wide()
		b.agents.Stop("a1")
		s := b.until(func(s Snapshot) bool { return s.Broken != nil })
		require.ErrorIs(t, s.Broken, driver.ErrNeedsRepair)
		require.True(t, s.NeedsRepair())
		s, n := b.repair()
		require.NoError(t, n.ended()[0])
		require.NoError(t, s.Broken)
		require.Len(t, s.Layout.Members, 2)
		require.Len(t, n.record.Lost, 1)
		require.Equal(t, 1, n.flips)
		require.Zero(t, s.NextRepair)
	})
}

func TestRepair_WhenEngineReattaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		b.agents.Find("a1").Detach(true)
		// Its peer is stopped too, and may be noticed first.
		b.until(func(s Snapshot) bool { return s.Broken != nil && strings.Contains(s.Broken.Error(), "u1/0/1") })
		b.agents.Find("a1").Detach(false) // it attaches again in time
		s, n := b.repair()
		require.NoError(t, s.Broken)
		require.Len(t, s.Layout.Members, 2, "it attached again")
		require.Empty(t, n.record.Lost)
		require.Zero(t, n.record.CheckpointBytes)
	})
}

// A missing answer is no reason to remove a member while the others serve.
func TestUnresponsiveAgentIsNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		b.agents.Find("a1").Deaf(true)
		s := b.until(func(s Snapshot) bool { return s.Errors["u1"] != nil })
		require.NoError(t, s.Broken)
		require.Len(t, s.Layout.Members, 2)
	})
}

func TestRepair_WhenAgentUnresponsiveAndPeersStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		b.wide()
		b.limits.Answer = 200 * time.Millisecond
		b.agents.Find("a2").Deaf(true)
		b.agents.Cut("u0/0/1", "u2/0/1", true)
		b.agents.Cut("u1/0/1", "u2/0/1", true)
		b.until(func(s Snapshot) bool { return s.Broken != nil })
		s, n := b.repair()
		require.NoError(t, n.ended()[0])
		require.Len(t, s.Layout.Members, 2)

		// The zombie answers again: it is an outcast, and is released.
		b.agents.Find("a2").Deaf(false)
		s = b.until(func(s Snapshot) bool { return len(s.Outcasts) > 0 })
		require.Contains(t, s.Outcasts, "u2/0/1")
		require.NoError(t, s.Broken)
		s, n = b.repair()
		require.NoError(t, n.ended()[0])
		require.Zero(t, n.flips)
		require.Empty(t, s.Outcasts)
		require.Equal(t, "u2/0/2", s.Statuses["u2"].Ranks[0].Member.Id)
	})
}

func TestRepair_WhenNoMemberSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		for _, a := range []string{"a0", "a1"} {
			b.agents.Stop(a)
		}
		b.SetEndpoints([]Endpoint{{"u2", "a2"}}, true) // their pods are gone
		b.until(func(s Snapshot) bool { return s.Looked && s.Broken != nil })
		s, n := b.repair()
		require.NoError(t, n.ended()[0])
		require.NotEmpty(t, n.record.WorldEnded)
		require.NoError(t, s.Broken)
		require.Nil(t, s.Layout)
		g := b.goal(&notes{}, layout.Expert, 1)
		g.Members = []string{"u2/0/1"}
		require.True(t, b.Begin(g), "and it may start again")
		b.until(func(s Snapshot) bool { return s.Running == nil && len(s.Layout.GetMembers()) == 1 })
	})
}

// moody is a store that fails for a while.
type moody struct {
	store.Store
	fail func() error
}

func (m moody) Get(ctx context.Context, key string) (store.Record, error) {
	if err := m.fail(); err != nil {
		return store.Record{}, err
	}
	return m.Store.Get(ctx, key)
}

// keepIn changes the store.
func (b *bench) keepIn(s store.Store) {
	b.judging <- struct{}{}
	defer func() { <-b.judging }()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.store = s
}

func TestRepairBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		b.wide()
		b.agents.Stop("a1")
		b.until(func(s Snapshot) bool { return s.Broken != nil })
		whole := b.store
		b.keepIn(moody{whole, func() error { return errors.New("no such volume") }})
		s, n := b.repair()
		require.ErrorContains(t, n.ended()[0], "no such volume")
		require.ErrorContains(t, s.RepairFailed, "no such volume")
		require.Greater(t, time.Until(s.NextRepair), time.Millisecond)
		require.NoError(t, s.Failed, "no transition failed")
		require.False(t, b.Begin(Goal{Repair: true, Limits: b.limits, Recorder: &notes{}}), "not before the pause is over")
		b.Intend("something else")
		require.Error(t, b.Snapshot().RepairFailed, "what is wanted changes nothing about it")
		b.keepIn(whole)
		b.until(func(s Snapshot) bool { return time.Now().After(s.NextRepair) })
		s, _ = b.repair()
		require.NoError(t, s.RepairFailed)
		require.NoError(t, s.Broken)
	})
}

// A member dies in the middle of a transition. The transition ends immediately, without a back-off after the repair.
func TestTransition_WhenMemberDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		b.wide()
		b.agents.HoldStage(true)
		n := &notes{}
		require.True(t, b.Begin(b.goal(n, layout.Tensor, 3)))
		b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "stage" })
		require.False(t, b.Begin(Goal{Repair: true, Limits: b.limits, Recorder: &notes{}}), "one at a time")
		b.agents.Stop("a2")
		b.until(func(s Snapshot) bool { return s.Running == nil && s.Broken != nil })
		b.agents.HoldStage(false)
		s, k := b.repair()
		require.NoError(t, k.ended()[0])
		require.NoError(t, s.Failed)
		require.Zero(t, s.NextTry)
		require.Len(t, s.Layout.Members, 2)
		require.ErrorIs(t, n.ended()[0], driver.ErrNeedsRepair)
	})
}

// During a transition, a status from before a flip next to statuses from after it is no loss. After the transition all
// agents are queried again, and then it is a loss.
func TestMixedStatusesDuringFlipAreNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setupWith(t, 3, time.Hour) // queries only at the start and the end of a transition
		outside := b.Snapshot().Statuses["u2"]
		require.False(t, outside.Ranks[0].InWorld)
		b.wide()
		b.agents.HoldStage(true)
		require.True(t, b.Begin(b.goal(&notes{}, layout.Tensor, 3)))
		b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "stage" })
		b.mu.Lock()
		late := b.World.agents["u2"]
		late.status, late.mark = outside, markOfAgent(outside)
		b.mu.Unlock()
		b.judge(false)
		require.NoError(t, b.Snapshot().Broken)
		b.judge(true)
		require.ErrorContains(t, b.Snapshot().Broken, "member u2/0/1 is at epoch 0, but others are at epoch")
		b.agents.HoldStage(false)
	})
}

// The record names the members of a first layout before they flip to it. So agents report no layout for a moment, or
// for longer if their statuses are late. Neither is a loss during the transition.
func TestFirstLayoutInProgressIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outside(t, 2, time.Hour)
		before := b.Snapshot().Statuses
		b.agents.HoldGate(true)
		require.True(t, b.Begin(b.goal(&notes{}, layout.Expert, 2)))
		b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == "flip" })
		time.Sleep(b.limits.Flip / 2) // the permits are sent
		judge := func() {
			b.mu.Lock()
			b.heard = "" // from before the record was written
			b.mu.Unlock()
			b.judge(false)
		}
		judge()
		require.NoError(t, b.Snapshot().Broken, "all are permitted")
		b.mu.Lock()
		for uid, status := range before {
			b.World.agents[uid].status, b.World.agents[uid].mark = status, markOfAgent(status)
		}
		b.mu.Unlock()
		judge()
		require.NoError(t, b.Snapshot().Broken, "statuses of before the transition")
		b.judge(true)
		require.ErrorContains(t, b.Snapshot().Broken, "the record has epoch 1 with 2 members")
		b.agents.HoldGate(false)
		b.until(func(s Snapshot) bool { return s.Running == nil && len(s.Layout.GetMembers()) == 2 && s.Broken == nil })
	})
}

// An abort by the user, in each phase.
func TestAbort(t *testing.T) {
	for phase, hold := range map[string]func(*bench){
		"plan":  func(b *bench) { b.agents.Find("a2").Detach(true) },
		"stage": func(b *bench) { b.agents.HoldStage(true) },
		"flip":  func(b *bench) { b.agents.HoldGate(true) },
	} {
		t.Run(phase, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, 3)
				b.limits.Flip, b.limits.Engines = time.Minute, time.Minute
				hold(b)
				n := &notes{}
				b.Intend("three")
				require.True(t, b.Begin(b.goal(n, layout.Expert, 3)))
				b.until(func(s Snapshot) bool { return s.Running != nil && s.Running.Phase == phase })
				b.Abort()
				b.Abort()
				if phase == "flip" { // it has a permit: an agent may have flipped
					time.Sleep(50 * time.Millisecond)
					require.Empty(t, n.ended())
					b.agents.HoldGate(false)
				}
				s := b.until(func(s Snapshot) bool { return s.Running == nil })
				require.Len(t, n.ended(), 1)
				require.ErrorIs(t, n.ended()[0], driver.ErrAborted)
				require.NoError(t, s.Failed)
				require.True(t, b.agents.Idle(), "nothing is left half done")
				if phase == "flip" {
					require.EqualValues(t, 2, s.Epoch, "the flip that was permitted is the last")
				} else {
					require.EqualValues(t, 1, s.Epoch)
				}
			})
		})
	}
}

// An earlier operator's open attempt, in an agent outside the layout, is detected and ended.
func TestUnfinishedAttemptIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		b.agents.Find("a2").LeaveIn(7, tangramv1.Phase_PHASE_STAGED)
		b.until(func(s Snapshot) bool { return s.Unfinished })
		require.True(t, b.Begin(b.goal(&notes{}, layout.Expert, 2)))
		b.until(func(s Snapshot) bool { return s.Running == nil && !s.Unfinished })
		require.True(t, b.agents.Idle())
		require.EqualValues(t, 1, b.agents.Layout().Epoch)
	})
}

func TestHeadroomOfActiveLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		s := b.until(func(s Snapshot) bool { return s.Headroom != nil })
		require.True(t, s.Headroom.Enough)
		b.wide()
		b.until(func(s Snapshot) bool { return s.Headroom != nil && len(s.Headroom.Worst.Survivors) == 2 })
	})
}

func TestDissolveReleasesReachableAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3)
		b.agents.Find("a1").Deaf(true) // an unresponsive agent does not delay the others
		require.False(t, b.worlds.Dissolve("uid", "it is over"), "beside us")
		require.Eventually(t, func() bool { return b.worlds.Dissolve("uid", "it is over") }, soon, tick)
		require.False(t, b.agents.Find("a0").InWorld())
		require.Contains(t, b.agents.Find("a2").Calls(), "release")
		require.True(t, b.agents.Find("a1").InWorld())
		require.Nil(t, b.worlds.Find("uid"))
	})
}

// An unreadable checkpoint is news.
func TestMarkIncludesCheckpointError(t *testing.T) {
	one := &tangramv1.StatusResponse{World: "w"}
	two := &tangramv1.StatusResponse{World: "w", CheckpointError: "I/O error"}
	require.NotEqual(t, markOfAgent(one), markOfAgent(two))
}

// Dissolve does not wait for the agents, not even for one that never answers.
func TestDissolveNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 2)
		answer := make(chan struct{})
		b.stuck.Store(&answer)
		require.False(t, b.worlds.Dissolve("uid", "it is over"))
		require.NotNil(t, b.worlds.Find("uid"), "it ends beside us")
		close(answer)
		b.stuck.Store(nil)
		require.Eventually(t, func() bool { return b.worlds.Find("uid") == nil }, soon, tick)
	})
}
