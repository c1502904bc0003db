package driver

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// After a fence all survivors must have its layout and no open attempt, and the record must still be that of the fence.
func TestAfterFenceVerifiesSurvivors(t *testing.T) {
	four, five := layoutOf(4, "a", "b", "x"), layoutOf(5, "a", "b", "x")
	hash, err := layout.Hash(five)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		b      *tangramv1.StatusResponse // nil: it does not answer
		change func(d *Driver, fence *Membership)
		want   string // of the error; empty: none
		again  bool   // another try may succeed
	}{
		"all is well":              {stopped(says(five, "b")), nil, "", false},
		"one was lost":             {nil, nil, "survivor b was lost too", true},
		"an engine was lost":       {func() *tangramv1.StatusResponse { s := says(five, "b"); s.Ranks[0].Engine.Attached = false; return s }(), nil, "survivor b was lost too", true},
		"one is behind":            {stopped(says(four, "b")), nil, "survivor b is at epoch 4, PHASE_IDLE, but the fence is at epoch 5", true},
		"one is still at it":       {in(stopped(says(five, "b")), 9, 6, tangramv1.Phase_PHASE_STAGED), nil, "survivor b is at epoch 5, PHASE_STAGED", true},
		"one flipped":              {in(stopped(says(five, "b")), 9, 5, tangramv1.Phase_PHASE_FLIPPED), nil, "", false},
		"it is another layout":     {stopped(says(five, "b")), func(_ *Driver, f *Membership) { f.Fence.Hash = "beef" }, "the fence has layout beef", true},
		"another fence was made":   {stopped(says(five, "b")), func(_ *Driver, f *Membership) { f.version++ }, "membership is at version 1, but the fence was at version 2", false},
		"the record is unreadable": {stopped(says(five, "b")), func(d *Driver, _ *Membership) { d.Store = unreadable{} }, errUnreadable.Error(), false},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := speakers(stopped(says(five, "a")), c.b)
			fence := Membership{Epoch: 5, Fence: &Fence{FromEpoch: 4, Epoch: 5, Outcome: "forward", Hash: short(hash), Survivors: []string{"a", "b"}, Lost: []Lost{{Member: "x"}}}}
			var err error
			fence.version, err = store.Save(t.Context(), d.Store, keyMembership, 0, fence)
			require.NoError(t, err)
			if c.change != nil {
				c.change(d, &fence)
			}
			truth, err := d.afterFence(t.Context(), fence)
			if c.want == "" {
				require.NoError(t, err)
				require.Same(t, five, truth.layout)
				return
			}
			require.Nil(t, truth)
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.again, errors.Is(err, errAgain))
		})
	}
}

// A repair aborts a proposal. A permitted or completed intent stays as it is.
func TestRepairAbortsProposal(t *testing.T) {
	d, _ := speakers()
	require.NoError(t, d.burnProposal(t.Context()))
	var version uint64
	for _, state := range []IntentState{Proposed, Permitted, Done, Aborted} {
		was := Intent{Attempt: 9, FromEpoch: 4, TargetHash: "t", PlanHash: "p", State: state}
		var err error
		version, err = store.Save(t.Context(), d.Store, keyIntent, version, was)
		require.NoError(t, err)
		require.NoError(t, d.burnProposal(t.Context()))
		var now Intent
		is, err := store.Load(t.Context(), d.Store, keyIntent, &now)
		require.NoError(t, err)
		if state == Proposed {
			was.State, version = Aborted, version+1
		}
		require.Equal(t, was, now)
		require.Equal(t, version, is)
	}
	garbage := json.RawMessage(`{"state":"proposed","attempt":"x"}`)
	_, err := d.Store.CompareAndSwap(t.Context(), keyIntent, version, garbage)
	require.NoError(t, err)
	require.Error(t, d.burnProposal(t.Context()))
	now, err := d.Store.Get(t.Context(), keyIntent)
	require.NoError(t, err)
	require.JSONEq(t, string(garbage), string(now.Value))
	d.Store = unreadable{}
	require.ErrorIs(t, d.burnProposal(t.Context()), errUnreadable)
}

// If agents contradict each other, they are queried again only if the membership record changed meanwhile. Otherwise
// there is no ruling.
func TestObserveRetries_WhenAgentsContradict(t *testing.T) {
	four := layoutOf(4, "a", "b")
	other := func() *tangramv1.StatusResponse {
		s := says(four, "b")
		s.LayoutHash = []byte("other")
		return s
	}
	world := func(b *tangramv1.StatusResponse, writes bool) (*Driver, *writing) {
		d, all := speakers(says(four, "a"), b)
		_, err := store.Save(t.Context(), d.Store, keyMembership, 0, Membership{Epoch: 4})
		require.NoError(t, err)
		w := &writing{speaker: all[0], write: func() {}}
		if writes {
			w.write = func() {
				_, err := store.Save(t.Context(), d.Store, keyMembership, 1,
					Membership{Epoch: 4, Fence: &Fence{FromEpoch: 4, Epoch: 4, Survivors: []string{"a"}, Lost: []Lost{{Member: "b"}}}})
				require.NoError(t, err)
			}
		}
		d.Agents[0] = w
		return d, w
	}
	d, w := world(other(), true)
	truth, err := d.observe(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, truth.record.version)
	require.Equal(t, 2, w.asked)
	d, w = world(says(four, "b"), true)
	truth, err = d.observe(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, truth.record.version, "nothing was at odds")
	require.Equal(t, 1, w.asked)
	d, w = world(other(), false)
	_, err = d.observe(t.Context())
	require.ErrorContains(t, err, "a world has only one layout")
	require.Equal(t, 1, w.asked)
	_, err = d.Repair(t.Context())
	require.ErrorContains(t, err, "a world has only one layout")
	require.Equal(t, 2, w.asked)
	d, w = world(other(), false)
	w.write = func() { d.Store = unreadable{} }
	_, err = d.observe(t.Context())
	require.ErrorContains(t, err, "a world has only one layout")
	require.Equal(t, 1, w.asked, "nothing is read against a record that is not known")
}

// writing agents cause a write when they are queried first.
type writing struct {
	*speaker
	asked int
	write func()
}

func (w *writing) Status(ctx context.Context, world string) (*tangramv1.StatusResponse, error) {
	if w.asked++; w.asked == 1 {
		w.write()
	}
	return w.speaker.Status(ctx, world)
}
