package driver

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// bed is a driver and agents of one rank each.
type bed struct {
	*drivertest.World
	agents []*drivertest.Agent
}

func setup(t *testing.T, n int) (*Driver, *bed) {
	t.Helper()
	agents, err := drivertest.NewWorld("w")
	require.NoError(t, err)
	w := &bed{World: agents}
	s, err := store.OpenFile(filepath.Join(t.TempDir(), "store.json"))
	require.NoError(t, err)
	second := 2 * time.Second
	d := &Driver{World: "w", Store: s, Log: slog.New(slog.DiscardHandler),
		Limits: Limits{Engines: second, Stage: second, Flip: 200 * time.Millisecond, Outcome: second, Retire: second,
			Answer: 200 * time.Millisecond, Stop: second, Reattach: 50 * time.Millisecond}}
	for range n {
		w.add(d)
	}
	return d, w
}

func (w *bed) add(d *Driver) {
	i := len(w.agents)
	a := w.Start(drivertest.Pod{Name: fmt.Sprintf("w-%d", i), UID: fmt.Sprintf("u%d", i), Node: "n", Address: fmt.Sprintf("a%d", i), Ranks: 1})
	w.agents = append(w.agents, a)
	d.Agents = append(d.Agents, a)
}

func (w *bed) kill(i int) { w.Stop(w.agents[i].Address()) }

func expert(ranks int) Wanted { return Wanted{Ranks: ranks, Shape: layout.Shape{Mode: layout.Expert}} }
func tensor(ranks int) Wanted { return Wanted{Ranks: ranks, Shape: layout.Shape{Mode: layout.Tensor}} }

// requireRanks: the first n agents are in the world, and no attempt is open.
func (w *bed) requireRanks(t *testing.T, n int) {
	t.Helper()
	require.True(t, w.Idle())
	require.Len(t, w.Layout().Members, n)
	for i, a := range w.agents {
		require.Equal(t, i < n, a.InWorld(), a.Address())
	}
}

func TestTour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		for _, want := range []Wanted{expert(2), expert(4), tensor(4), expert(4), expert(3), tensor(2)} {
			record, err := d.Apply(t.Context(), want)
			require.NoError(t, err)
			require.NotEmpty(t, record.Flips)
			w.requireRanks(t, want.Ranks)
		}
		again, err := d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.Empty(t, again.Flips, "a world that is as wanted is left alone")
	})
}

func TestFailureBeforePermitAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.agents[1].FailStage("a disk")
		_, err = d.Apply(t.Context(), tensor(2))
		require.ErrorContains(t, err, "the old layout stays active")
		w.requireRanks(t, 2)
		require.EqualValues(t, 1, w.agents[0].Epoch())

		w.agents[0].Refuse(&tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "5 bytes short"})
		_, err = d.Apply(t.Context(), tensor(2))
		require.ErrorContains(t, err, "5 bytes short")
		calls := w.agents[0].Calls()
		require.NotContains(t, calls[len(calls)-1:], "permit")
		w.agents[0].Refuse(nil)

		_, err = d.Apply(t.Context(), tensor(2)) // ids of aborted attempts are not reused
		require.NoError(t, err)
		w.requireRanks(t, 2)
	})
}

func TestFlip_WhenGateDoesNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.HoldGate(true)
		_, err = d.Apply(t.Context(), tensor(2))
		require.ErrorContains(t, err, "aborted after its permit")
		w.requireRanks(t, 2)
		require.EqualValues(t, 1, w.agents[0].Epoch())
	})
}

// An agent restarts before its permit, or while all wait at the gate. The attempt ends without a wait for it.
func TestFlip_WhenAgentForgotAttempt(t *testing.T) {
	for _, permitted := range []bool{false, true} {
		t.Run(fmt.Sprintf("permitted=%t", permitted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 2)
				_, err := d.Apply(t.Context(), expert(2))
				require.NoError(t, err)
				d.Limits.Flip = time.Hour
				w.HoldGate(true)
				d.Hooks.Progress = func(e Event) {
					switch {
					case e.Phase == "flip" && permitted:
						time.AfterFunc(100*time.Millisecond, w.agents[1].Forget)
					case e.Phase == "flip":
						w.agents[1].Deaf(true)
						time.AfterFunc(100*time.Millisecond, func() { w.agents[1].Forget(); w.agents[1].Deaf(false) })
					}
				}
				_, err = d.Apply(t.Context(), tensor(2))
				require.ErrorContains(t, err, "restarted and has no record of attempt 2")
				require.ErrorContains(t, err, "the old layout stays active")
				w.HoldGate(false)
				d.Hooks.Progress = nil
				_, err = d.Apply(t.Context(), tensor(2))
				require.NoError(t, err)
				w.requireRanks(t, 2)
			})
		})
	}
}

// A pod dies after all have flipped and before it retires. The driver does not wait for it.
func TestRetire_WhenMemberDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		d.Limits.Retire = time.Hour
		d.Hooks.Progress = func(e Event) {
			if e.Phase == "retire" {
				w.kill(1)
			}
		}
		_, err = d.Apply(t.Context(), tensor(3))
		require.ErrorIs(t, err, ErrNeedsRepair)
		d.Hooks.Progress = nil
		_, err = d.Repair(t.Context())
		require.NoError(t, err)
		w.members(t, 0, 2)
	})
}

func TestPermit_WhenReplyLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.agents[1].LoseReply()
		record, err := d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.Positive(t, record.Retries)
		w.requireRanks(t, 2)
	})
}

// A driver dies at any point of an attempt; the next one ends the attempt.
func TestNextDriverEndsOpenAttempt(t *testing.T) {
	for _, phase := range []tangramv1.Phase{tangramv1.Phase_PHASE_PREPARED, tangramv1.Phase_PHASE_STAGED,
		tangramv1.Phase_PHASE_PERMITTED, tangramv1.Phase_PHASE_FLIPPED} {
		t.Run(phase.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, w := setup(t, 2)
				_, err := d.Apply(t.Context(), expert(2))
				require.NoError(t, err)
				for _, a := range w.agents {
					a.LeaveIn(9, phase)
				}
				_, err = d.Apply(t.Context(), tensor(2))
				require.NoError(t, err)
				w.requireRanks(t, 2)
				for _, a := range w.agents {
					s, err := a.Status(t.Context(), "w")
					require.NoError(t, err)
					require.Greater(t, s.HighestAttempt, uint64(9))
				}
			})
		})
	}
}

func TestApplyRejectsTooManyRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(3))
		require.ErrorContains(t, err, "3 ranks are desired, but the agents have 2")
		require.Empty(t, w.agents[0].Calls())
	})
}
