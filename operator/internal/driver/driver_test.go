package driver

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func setup(t *testing.T, n int) (*Driver, *fakeWorld) {
	t.Helper()
	w := newFakeWorld(n)
	s, err := store.OpenFile(filepath.Join(t.TempDir(), "store.json"))
	require.NoError(t, err)
	second := 2 * time.Second
	d := &Driver{World: "w", Store: s, Log: slog.New(slog.DiscardHandler),
		Limits: Limits{Engines: second, Stage: second, Flip: 200 * time.Millisecond, Outcome: second, Retire: second}}
	for _, a := range w.agents {
		d.Agents = append(d.Agents, a)
	}
	return d, w
}

func expert(ranks int) Wanted { return Wanted{Ranks: ranks, Shape: layout.Shape{Mode: layout.Expert}} }
func tensor(ranks int) Wanted { return Wanted{Ranks: ranks, Shape: layout.Shape{Mode: layout.Tensor}} }

func (w *fakeWorld) requireRanks(t *testing.T, n int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, a := range w.agents {
		require.Equal(t, tangramv1.Phase_PHASE_IDLE, a.phase, a.name)
		require.Equal(t, i < n, a.layout != nil, a.name)
		if i < n {
			require.Len(t, a.layout.Members, n)
		}
	}
}

func TestTour(t *testing.T) {
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
}

func TestFailureBeforeThePermitAborts(t *testing.T) {
	d, w := setup(t, 3)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	w.agents[1].failStage = true
	_, err = d.Apply(t.Context(), tensor(2))
	require.ErrorContains(t, err, "the old layout serves on")
	w.requireRanks(t, 2)
	require.EqualValues(t, 1, w.agents[0].layout.Epoch)

	w.agents[0].refuse = &tangramv1.Refusal{Code: tangramv1.Refusal_CODE_NO_MEMORY, Message: "5 bytes short"}
	_, err = d.Apply(t.Context(), tensor(2))
	require.ErrorContains(t, err, "5 bytes short")
	require.NotContains(t, w.agents[0].calls[len(w.agents[0].calls)-1:], "permit")

	_, err = d.Apply(t.Context(), tensor(2)) // ids of burned attempts are not used again
	require.NoError(t, err)
	w.requireRanks(t, 2)
}

func TestGateThatDoesNotOpenIsAborted(t *testing.T) {
	d, w := setup(t, 2)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	w.hold = true
	_, err = d.Apply(t.Context(), tensor(2))
	require.ErrorContains(t, err, "aborted after its permit")
	w.requireRanks(t, 2)
	require.EqualValues(t, 1, w.agents[0].layout.Epoch)
}

func TestLostReplyOfThePermitGoesForward(t *testing.T) {
	d, w := setup(t, 2)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	w.agents[1].lostReply = true
	record, err := d.Apply(t.Context(), tensor(2))
	require.NoError(t, err)
	require.Positive(t, record.Retries)
	w.requireRanks(t, 2)
}

// A driver dies at any point of an attempt; the next one ends what it left.
func TestNextDriverEndsWhatWasLeft(t *testing.T) {
	for _, phase := range []tangramv1.Phase{tangramv1.Phase_PHASE_PREPARED, tangramv1.Phase_PHASE_STAGED,
		tangramv1.Phase_PHASE_PERMITTED, tangramv1.Phase_PHASE_FLIPPED} {
		t.Run(phase.String(), func(t *testing.T) {
			d, w := setup(t, 2)
			_, err := d.Apply(t.Context(), expert(2))
			require.NoError(t, err)
			w.mu.Lock()
			for _, a := range w.agents {
				a.attempt, a.highest, a.phase, a.target = 9, 9, phase, a.layout
			}
			w.mu.Unlock()
			_, err = d.Apply(t.Context(), tensor(2))
			require.NoError(t, err)
			w.requireRanks(t, 2)
			for _, a := range w.agents {
				require.Greater(t, a.attempt, uint64(9))
			}
		})
	}
}

func TestTooManyRanksIsRefusedBeforeAnything(t *testing.T) {
	d, w := setup(t, 2)
	_, err := d.Apply(t.Context(), expert(3))
	require.ErrorContains(t, err, "3 ranks wanted, the agents have 2")
	require.Empty(t, w.agents[0].calls)
}
