package driver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// The caller chooses the remaining members of a scale-down, also from the middle.
func TestApplyKeepsDesiredMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		want := Wanted{Members: []string{w.agents[0].Member(0), w.agents[2].Member(0), w.agents[3].Member(0)}, Shape: layout.Shape{Mode: layout.Expert}}
		record, err := d.Apply(t.Context(), want)
		require.NoError(t, err)
		require.Equal(t, 3, record.Ranks)
		require.False(t, w.agents[1].InWorld(), "the one that was not named has left")
		require.True(t, w.agents[3].InWorld())
		require.Len(t, w.Layout().Members, 3)

		want.Members = []string{w.agents[0].Member(0), "nobody/0/1"}
		_, err = d.Apply(t.Context(), want)
		require.ErrorContains(t, err, "member nobody/0/1 is desired, but no agent has this member")
		want.Members = []string{w.agents[0].Member(0), w.agents[0].Member(0)}
		_, err = d.Apply(t.Context(), want)
		require.ErrorContains(t, err, "listed twice")
	})
}

func TestApply_WhenPlannedHookRejects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		refused := errors.New("no room for the record")
		var planned *Record
		d.Hooks.Planned = func(r *Record) error {
			planned = r
			return refused
		}
		_, err := d.Apply(t.Context(), expert(2))
		require.ErrorIs(t, err, refused)
		require.NotEmpty(t, planned.PlanHash)
		require.NotEmpty(t, planned.TargetHash)
		require.Equal(t, 1, planned.PlannedFlips)
		require.Empty(t, w.agents[0].Calls(), "nothing was begun")
	})
}

// The desired layout changes during a chain of several flips. The running flip completes, and the next Apply plans the
// rest from the current layout.
func TestSupersededBetweenFlips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 4)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		var flips []FlipRecord
		saved := 0
		d.Hooks = Hooks{
			FlipDone: func(f FlipRecord) { flips = append(flips, f) },
			Continue: func() bool { return false },
			Save:     func(context.Context, *Record) error { saved++; return nil },
		}
		record, err := d.Apply(t.Context(), expert(4))
		require.ErrorIs(t, err, ErrSuperseded)
		require.Greater(t, record.PlannedFlips, 1)
		require.Len(t, record.Flips, 1)
		require.Equal(t, record.Flips, flips)
		require.Equal(t, "join", flips[0].Kind)
		require.Equal(t, 1, saved)
		for _, a := range w.agents {
			require.EqualValues(t, 2, a.Epoch(), a.Address())
			require.Equal(t, tangramv1.Phase_PHASE_IDLE, a.Phase(), "the flip was ended, retire and all")
		}
		d.Hooks = Hooks{}
		_, err = d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.requireRanks(t, 2)
	})
}

// A gate opens just as the abort arrives. The members have flipped, and the joiner, which has no vote, has not
// withdrawn from an epoch that contains it.
func TestAbortReachesMembersBeforeJoiners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.OpenAtAbort()
		_, err = d.Apply(t.Context(), expert(3))
		require.NoError(t, err, "forward")
		w.requireRanks(t, 3)
	})
}

// Of the possible joiners, those with an attached engine come first.
func TestApplyPrefersJoinersWithEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		w.agents[0].Detach(true)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		require.False(t, w.agents[0].InWorld())
		require.True(t, w.agents[1].InWorld() && w.agents[2].InWorld())
	})
}

// prepared records the Prepare requests of an agent.
type prepared struct {
	Agent
	asked *[]*tangramv1.PrepareRequest
}

func (p prepared) Prepare(ctx context.Context, q *tangramv1.PrepareRequest) error {
	*p.asked = append(*p.asked, q)
	return p.Agent.Prepare(ctx, q)
}

// Each flip of a chain uses the state at its start, not the state at planning time. Here a peer's address has changed
// meanwhile.
func TestChainUsesWorldStateAtEachFlip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.agents[0].MoveData("10.0.0.1:1")
		var asked []*tangramv1.PrepareRequest
		d.Agents[1] = prepared{d.Agents[1], &asked}
		d.Hooks.Progress = func(e Event) {
			if e.Flip == 1 && e.Phase == "retire" {
				w.agents[0].MoveData("10.0.0.2:1")
				synctest.Wait() // the stream messages have arrived
			}
		}
		record, err := d.Apply(t.Context(), tensor(3))
		require.NoError(t, err)
		require.Greater(t, record.PlannedFlips, 1)
		require.Greater(t, len(asked), 1)
		require.Equal(t, "10.0.0.1:1", asked[0].Peers[0].Data)
		for _, q := range asked[1:] {
			require.Equal(t, "10.0.0.2:1", q.Peers[0].Data)
		}
	})
}

// The latest stream messages are checked as strictly as an answer.
func TestWorldViewChecksStreamReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		before, err := d.observe(t.Context())
		require.NoError(t, err)
		target := proto.CloneOf(before.layout)
		target.Epoch++
		hash, err := layout.Hash(target)
		require.NoError(t, err)
		told := func(agent int, change func(*tangramv1.StatusResponse)) map[int]*tangramv1.StatusResponse {
			out := map[int]*tangramv1.StatusResponse{}
			for i, s := range before.agents {
				out[i] = proto.CloneOf(s)
				out[i].Epoch, out[i].LayoutHash, out[i].Layout = target.Epoch, hash, nil
			}
			change(out[agent])
			return out
		}
		after, err := before.after(target, hash, told(0, func(s *tangramv1.StatusResponse) { s.Address.Data = "x:1" }))
		require.NoError(t, err)
		require.NoError(t, after.trouble())
		require.Equal(t, "x:1", after.peers(target)[0].Data)
		require.Empty(t, before.peers(target)[0].Data, "what was is not touched")

		after, err = before.after(target, hash, told(1, func(s *tangramv1.StatusResponse) { s.Ranks[0].Engine.Stopped = true }))
		require.NoError(t, err)
		require.ErrorIs(t, after.trouble(), ErrNeedsRepair)
		after, err = before.after(target, hash, told(1, func(s *tangramv1.StatusResponse) { s.Ranks[0].Member.Id = "u1/0/2" }))
		require.NoError(t, err)
		require.ErrorContains(t, after.trouble(), "member "+w.agents[1].Member(0), "it came back under another name")
		require.Contains(t, before.ranks, w.agents[1].Member(0), "what was is not touched")
		_, err = before.after(target, hash, told(0, func(s *tangramv1.StatusResponse) { s.Epoch = 1 }))
		require.ErrorContains(t, err, "member u0/0/1 is at epoch 1")
		_, err = before.after(target, hash, told(1, func(s *tangramv1.StatusResponse) { s.Epoch = 1 }))
		require.ErrorContains(t, err, "member u1/0/1 is at epoch 1")
		_, err = before.after(target, hash, told(1, func(s *tangramv1.StatusResponse) { s.LayoutHash = []byte{1} }))
		require.ErrorContains(t, err, "member u1/0/1 is at epoch 2, layout 01")
	})
}

// If a member dies while an Apply waits for a joiner's engine, the wait ends.
func TestWaitForEngines_WhenMemberDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.agents[2].Detach(true)
		d.Limits.Engines = time.Minute
		time.AfterFunc(150*time.Millisecond, func() { w.kill(1) })
		_, err = d.Apply(t.Context(), expert(3))
		require.ErrorIs(t, err, ErrNeedsRepair)
	})
}
