package driver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver/drivertest"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Two parts that do not reach each other: the larger one continues, the other is removed permanently.
func TestRepair_WhenNetworkPartitioned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 5)
		_, err := d.Apply(t.Context(), expert(5))
		require.NoError(t, err)
		for _, a := range []int{0, 1} {
			for _, b := range []int{2, 3, 4} {
				w.Cut(w.agents[a].Member(0), w.agents[b].Member(0), true)
			}
		}
		_, err = d.Repair(t.Context())
		require.NoError(t, err)
		w.members(t, 2, 3, 4)
		require.Equal(t, "u0/0/2", w.agents[0].Member(0))
	})
}

// An engine is unresponsive while its agent reports that it runs. The others continue without it. After it wakes up it
// takes part in nothing, and joins again under another name.
func TestRepair_WhenEngineUnresponsive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		_, err := d.Apply(t.Context(), expert(4))
		require.NoError(t, err)
		began := time.Now()
		w.agents[1].Hang(0, true)
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(began), time.Second)
		require.Equal(t, []Lost{{Member: "u1/0/1", Why: "its engine is unresponsive: its agent responds, but no other engine receives its heartbeats"}}, record.Lost)
		require.Len(t, record.Missed, 3)
		require.Equal(t, Missed{By: "u0/0/1", Member: "u1/0/1", Cause: "gave_up", Doing: "combine", Layer: 1}, record.Missed[0])
		require.Equal(t, "u1/0/1 gave up in combine of layer 1", record.Missed[0].String())
		w.members(t, 0, 2, 3)
		w.agents[1].Hang(0, false)
		require.Equal(t, "u1/0/2", w.agents[1].Member(0), "it was released")
		_, err = d.Apply(t.Context(), expert(4))
		require.NoError(t, err)
		w.members(t, 0, 2, 3, 1)
	})
}

// Its pod has a surviving rank. The agent learns which ranks are removed, also in the middle of an attempt.
func TestRepair_WhenPodHasUnresponsiveAndSurvivingRank(t *testing.T) {
	for _, phase := range []tangramv1.Phase{tangramv1.Phase_PHASE_IDLE, tangramv1.Phase_PHASE_STAGED, tangramv1.Phase_PHASE_PERMITTED} {
		t.Run(phase.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 2)
				pair := w.Start(drivertest.Pod{Name: "w-2", UID: "u2", Node: "n", Address: "a2", Ranks: 2})
				w.agents, d.Agents = append(w.agents, pair), append(d.Agents, pair)
				_, err := d.Apply(t.Context(), expert(4))
				require.NoError(t, err)
				pair.Hang(1, true)
				if phase != tangramv1.Phase_PHASE_IDLE {
					for _, a := range w.agents {
						a.LeaveIn(9, phase)
					}
				}
				record, err := d.Repair(t.Context())
				require.NoError(t, err)
				require.Len(t, record.Lost, 1)
				w.members(t, 0, 1, 2)
				require.Equal(t, "u2/1/2", pair.Member(1))
			})
		})
	}
}

// A suspected engine that continues before the decision costs only a pause.
func TestRepair_WhenUnresponsiveEngineRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		_, err := d.Apply(t.Context(), expert(4))
		require.NoError(t, err)
		w.agents[1].Hang(0, true)
		go func() {
			time.Sleep(hangSettle / 2)
			w.agents[1].Hang(0, false)
		}()
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Empty(t, record.Lost)
		require.Len(t, record.Flips, 1)
		w.members(t, 0, 1, 2, 3)
	})
}

// A node is cut off, and its agent does not answer. It is waited for once, and for a shorter time if its peers miss it.
func TestRepairWaitsOnceForUnresponsiveAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		_, err := d.Apply(t.Context(), expert(4))
		require.NoError(t, err)
		for _, other := range []int{0, 2, 3} {
			w.Cut(w.agents[1].Member(0), w.agents[other].Member(0), true)
		}
		w.agents[1].Hang(0, true) // its peers receive nothing from it either
		d.Limits.Answer = 2 * time.Second
		d.Agents[1] = mute{d.Agents[1]}
		began := time.Now()
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(began), d.Limits.answer())
		require.Equal(t, "u1/0/1", record.Lost[0].Member)
		w.members(t, 0, 2, 3)
	})
}

// An agent stops answering during a query, before its peers notice. The peers are queried again meanwhile.
func TestLookQueriesPeersOfUnresponsiveAgentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		_, err := d.Apply(t.Context(), expert(4))
		require.NoError(t, err)
		d.Limits.Answer = 5 * time.Second
		d.Agents[1] = mute{d.Agents[1]}
		go func() {
			time.Sleep(time.Second)
			for _, other := range []int{0, 2, 3} {
				w.Cut(w.agents[1].Member(0), w.agents[other].Member(0), true)
			}
		}()
		began := time.Now()
		look, err := d.Look(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, look.Trouble, ErrNeedsRepair)
		require.ErrorContains(t, look.Trouble, "is stopped")
		require.Less(t, time.Since(began), 2500*time.Millisecond)
	})
}

// mute agents accept calls and never answer.
type mute struct{ Agent }

func (mute) Status(ctx context.Context, _ string) (*tangramv1.StatusResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// No member is fenced while the world may be running: an agent is away, and the engines still serve.
func TestRepairDoesNotFence_WhenEnginesServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		d.Limits.Stop = 300 * time.Millisecond
		w.agents[1].Deaf(true)
		_, err = d.Repair(t.Context())
		require.ErrorIs(t, err, ErrNeedsRepair)
		require.ErrorContains(t, err, "these members have not stopped: u0/0/1, u2/0/1")
		m, err := d.membership(t.Context())
		require.NoError(t, err)
		require.Nil(t, m.Fence)
		w.agents[1].Deaf(false)
		record, err := d.Repair(t.Context())
		require.NoError(t, err)
		require.Empty(t, record.Flips)
	})
}

// A member that was cut off flipped alone. The others stayed and repaired themselves at the same epoch. Its report is
// not believed, and it is released.
func TestRepair_WhenPartitionedMemberFlippedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		zombie := w.agents[0]
		zombie.LeaveIn(9, tangramv1.Phase_PHASE_PERMITTED)
		zombie.FlipAlone()
		zombie.Deaf(true)
		w.Cut(zombie.Member(0), w.agents[1].Member(0), true)
		_, err = d.Repair(t.Context())
		require.NoError(t, err)
		for _, a := range w.agents {
			require.EqualValues(t, 2, a.Epoch(), "the zombie, too: another epoch 2")
		}
		zombie.Deaf(false)
		look, err := d.Look(t.Context())
		require.NoError(t, err)
		require.NoError(t, look.Trouble)
		require.Equal(t, []string{"u0/0/1"}, look.Outcasts)
		_, err = d.Repair(t.Context())
		require.NoError(t, err)
		require.False(t, zombie.InWorld())
		_, err = d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.members(t, 1, 2, 0)
	})
}
