package driver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// The members of a scale-down are chosen by the caller, also from the middle.
func TestWantedMembers(t *testing.T) {
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
	require.ErrorContains(t, err, "member nobody/0/1 is wanted and no agent has it")
	want.Members = []string{w.agents[0].Member(0), w.agents[0].Member(0)}
	_, err = d.Apply(t.Context(), want)
	require.ErrorContains(t, err, "wanted twice")
}

func TestPlannedMayRefuse(t *testing.T) {
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
}

// What is wanted changes while a chain of several flips runs: the running flip ends, the next
// Apply plans the rest from where the world is.
func TestSupersededBetweenFlips(t *testing.T) {
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
}

type deaf struct{ Agent }

func (deaf) Status(context.Context, string) (*tangramv1.StatusResponse, error) {
	return nil, errors.New("no answer")
}

func TestObserveMakesDoWithSome(t *testing.T) {
	d, w := setup(t, 2)
	v := Observe(t.Context(), "w", d.Agents)
	require.Nil(t, v.Layout)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	v = Observe(t.Context(), "w", []Agent{deaf{d.Agents[0]}, d.Agents[1]})
	require.EqualValues(t, 1, v.Epoch)
	require.Len(t, v.Layout.Members, 2)
	require.NotEmpty(t, v.Hash)
	require.ErrorContains(t, v.Errors[0], "no answer")
	require.Nil(t, v.Statuses[0])
	require.Equal(t, w.agents[1].Member(0), v.Statuses[1].Ranks[0].Member.Id)
	v = Observe(t.Context(), "another", d.Agents)
	require.ErrorContains(t, v.Errors[0], `is of world "w", not "another"`)
}

// A gate that opens just as the abort arrives: the members flipped, and the joiner, which has
// no word to give, has not withdrawn from an epoch that it is in.
func TestAbortAsksMembersBeforeJoiners(t *testing.T) {
	d, w := setup(t, 3)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	w.OpenAtAbort()
	_, err = d.Apply(t.Context(), expert(3))
	require.NoError(t, err, "forward")
	w.requireRanks(t, 3)
}

// Of ranks that could join, those whose engine is there are taken first.
func TestJoinersWithAnEngineComeFirst(t *testing.T) {
	d, w := setup(t, 3)
	w.agents[0].Detach(true)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	require.False(t, w.agents[0].InWorld())
	require.True(t, w.agents[1].InWorld() && w.agents[2].InWorld())
}

// A member that dies while an Apply waits for a joiner's engine is not waited for.
func TestADeathEndsTheWaitForEngines(t *testing.T) {
	d, w := setup(t, 3)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	w.agents[2].Detach(true)
	d.Limits.Engines = time.Minute
	time.AfterFunc(150*time.Millisecond, func() { w.kill(1) })
	_, err = d.Apply(t.Context(), expert(3))
	require.ErrorIs(t, err, ErrNeedsRepair)
}
