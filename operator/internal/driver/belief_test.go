package driver

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// An agent is believed if one of its ranks has a layout that is not older than the record, and that no fence and no end
// of a world has voided.
func TestMembershipTrustsAgent(t *testing.T) {
	fence := func(from, epoch uint64, survivors ...string) *Fence {
		return &Fence{FromEpoch: from, Epoch: epoch, Survivors: survivors, Lost: []Lost{{Member: "x"}}}
	}
	at := func(epoch uint64, ids ...string) *tangramv1.StatusResponse {
		return says(layoutOf(epoch, ids...), ids...)
	}
	for name, c := range map[string]struct {
		record Membership
		says   *tangramv1.StatusResponse
		want   bool
	}{
		"at the epoch of the record": {Membership{Epoch: 5}, at(5, "a"), true},
		"above it":                   {Membership{Epoch: 5}, at(6, "a"), true},
		"below it":                   {Membership{Epoch: 5}, at(4, "a"), false},
		"in no layout":               {Membership{Epoch: 5}, says(nil, "a"), false},
		"out of its layout":          {Membership{Epoch: 5}, out(at(5, "a")), false},
		"of a world that is over":    {Membership{Epoch: 5, Ended: []string{"a", "b"}}, at(5, "a", "b"), false},
		"one of its ranks is of a world that is over": {Membership{Epoch: 5, Ended: []string{"a"}}, at(5, "a", "b"), true},
		"the other one of its ranks is":               {Membership{Epoch: 5, Ended: []string{"a"}}, at(5, "b", "a"), true},
		"a survivor":                                  {Membership{Epoch: 5, Fence: fence(5, 5, "a")}, at(5, "a"), true},
		"one of its ranks survives":                   {Membership{Epoch: 5, Fence: fence(5, 5, "a")}, at(5, "b", "a"), true},
		"the other one of its ranks survives":         {Membership{Epoch: 5, Fence: fence(5, 5, "a")}, at(5, "a", "b"), true},
		"in a layout that it does not tell":           {Membership{Epoch: 5}, func() *tangramv1.StatusResponse { s := at(5, "a"); s.Layout = nil; return s }(), false},
		"left out":                                    {Membership{Epoch: 5, Fence: fence(5, 5, "a")}, at(5, "x"), false},
		"left out, and flipped alone":                 {Membership{Epoch: 5, Fence: fence(5, 5, "a")}, at(6, "x"), false},
		"joined two flips later":                      {Membership{Epoch: 5, Fence: fence(5, 5, "a")}, at(7, "j"), true},
		"a survivor before the outcome":               {Membership{Epoch: 5, Fence: fence(4, 5, "a")}, at(4, "a"), true},
		"left out, before the outcome":                {Membership{Epoch: 5, Fence: fence(4, 5, "a")}, at(4, "x"), false},
		"the fence is of long ago":                    {Membership{Epoch: 6, Fence: fence(4, 5, "a")}, at(5, "a"), false},
		"the fence before was survived by nobody":     {Membership{Fence: fence(5, 5)}, at(1, "a"), true},
		"ended ranks out of the layout do not count": {Membership{Epoch: 5, Ended: []string{"a"}}, func() *tangramv1.StatusResponse {
			s := at(5, "b", "a")
			s.Ranks[1].InWorld = false
			return s
		}(), true},
		"a survivor out of the layout does not count": {Membership{Epoch: 5, Fence: fence(5, 5, "a")}, func() *tangramv1.StatusResponse {
			s := at(5, "b", "a")
			s.Ranks[1].InWorld = false
			return s
		}(), false},
	} {
		require.Equal(t, c.want, c.record.believed(c.says), name)
	}
}

// Ranks that left with a flip report the layout of that flip.
func TestMembershipDetectsLeaver(t *testing.T) {
	left := func() *tangramv1.StatusResponse {
		return in(out(says(layoutOf(6, "b"), "a")), 9, 6, tangramv1.Phase_PHASE_FLIPPED)
	}
	for name, c := range map[string]struct {
		record Membership
		says   *tangramv1.StatusResponse
		want   bool
	}{
		"left":                      {Membership{Epoch: 5}, left(), true},
		"known by the record":       {Membership{Epoch: 6}, left(), false},
		"of a world that is over":   {Membership{Epoch: 5, Ended: []string{"a"}}, left(), false},
		"left out by a fence":       {Membership{Epoch: 5, Fence: &Fence{Lost: []Lost{{Member: "a"}}}}, left(), false},
		"a fence that lost another": {Membership{Epoch: 5, Fence: &Fence{Lost: []Lost{{Member: "b"}}}}, left(), true},
		"in its layout":             {Membership{Epoch: 5}, in(says(layoutOf(6, "a"), "a"), 9, 6, tangramv1.Phase_PHASE_FLIPPED), false},
		"not flipped":               {Membership{Epoch: 5}, in(left(), 9, 6, tangramv1.Phase_PHASE_PERMITTED), false},
		"flipped to another epoch":  {Membership{Epoch: 5}, in(left(), 9, 7, tangramv1.Phase_PHASE_FLIPPED), false},
		"the other rank knows nothing of it": {Membership{Epoch: 5}, func() *tangramv1.StatusResponse {
			s := left()
			s.Ranks = append(s.Ranks, says(nil, "s").Ranks...)
			return s
		}(), true},
		"to another epoch, of the same hash": {Membership{Epoch: 5}, func() *tangramv1.StatusResponse {
			s := left()
			s.Ranks[0].Transition.TargetEpoch = 7
			return s
		}(), false},
		"to another layout": {Membership{Epoch: 5}, func() *tangramv1.StatusResponse {
			s := left()
			s.LayoutHash = []byte("other")
			return s
		}(), false},
		"without a layout": {Membership{Epoch: 5}, func() *tangramv1.StatusResponse { s := left(); s.Layout = nil; return s }(), false},
		"no ranks":         {Membership{Epoch: 5}, &tangramv1.StatusResponse{Epoch: 6, Layout: layoutOf(6)}, false},
	} {
		require.Equal(t, c.want, c.record.leftBy(c.says), name)
	}
}

// A fence belongs to the epoch that it was decided from and to the epoch of its outcome.
func TestFenceAppliesToItsEpochs(t *testing.T) {
	f := &Fence{FromEpoch: 4, Epoch: 5, Outcome: "forward", Lost: []Lost{{Member: "x"}}}
	require.True(t, f.of(4) && f.of(5) && f.forward() && f.lost("x"))
	require.False(t, f.of(3) || f.of(6) || f.lost("y"))
	require.False(t, (&Fence{Outcome: "stay"}).forward())
	f = nil
	require.False(t, f.of(0) || f.lost("x"))
}

// The membership record only moves forward. It keeps a limited number of members of ended worlds, newest first.
func TestMembershipRecord(t *testing.T) {
	s, err := store.OpenFile(filepath.Join(t.TempDir(), "store.json"))
	require.NoError(t, err)
	d := &Driver{World: "w", Store: s, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	m, err := d.membership(t.Context())
	require.NoError(t, err)
	flip := &tangramv1.Flip{Epoch: 1, TargetHash: []byte("a hash that is long enough to be cut")}
	require.NoError(t, d.found(t.Context(), m, flip, layoutOf(1, "a", "b")))
	require.ErrorIs(t, d.found(t.Context(), m, flip, layoutOf(1, "a", "b")), store.ErrConflict)
	m, err = d.membership(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, m.Epoch)
	require.Equal(t, []string{"a", "b"}, m.Members)
	require.Equal(t, short(flip.TargetHash), m.Hash)
	_, err = store.Save(t.Context(), d.Store, keyIntent, 0, Intent{Attempt: 8, State: Permitted})
	require.NoError(t, err)
	require.NoError(t, d.unfound(t.Context(), 7, flip))
	now, err := d.membership(t.Context())
	require.NoError(t, err)
	require.Equal(t, m, now, "nor does an attempt before this one, to the same layout")
	for _, other := range []*tangramv1.Flip{{Epoch: 2, TargetHash: flip.TargetHash}, {Epoch: 1, TargetHash: []byte("another")}} {
		require.NoError(t, d.unfound(t.Context(), 8, other))
		now, err := d.membership(t.Context())
		require.NoError(t, err)
		require.Equal(t, m, now, "another flip takes nothing back")
	}
	require.NoError(t, d.unfound(t.Context(), 8, flip))
	was, err := d.membership(t.Context())
	require.NoError(t, err)
	require.Zero(t, was.Epoch)
	require.Empty(t, was.Hash)
	require.Empty(t, was.Members)

	r := ruling{fromEpoch: 4, standOn: 5, outcome: tangramv1.Outcome_OUTCOME_ROLL_FORWARD, survivors: []string{"a"}, lost: []Lost{{"b", "it died"}}}
	f, err := d.fence(t.Context(), was, r, 9, "h")
	require.NoError(t, err)
	want := &Fence{FromEpoch: 4, Attempt: 9, Outcome: "forward", Epoch: 5, Hash: "h", Survivors: []string{"a"}, Lost: []Lost{{"b", "it died"}}}
	require.Equal(t, want, f.Fence)
	m, err = d.membership(t.Context())
	require.NoError(t, err)
	require.Equal(t, f, m)
	_, err = d.fence(t.Context(), was, r, 9, "h")
	require.ErrorContains(t, err, "fence attempt 9 from epoch 4: ")
	require.ErrorIs(t, err, store.ErrConflict)
	_, err = d.fence(t.Context(), m, ruling{fromEpoch: 4, standOn: 4, outcome: tangramv1.Outcome_OUTCOME_ABORT}, 9, "h")
	require.EqualError(t, err, "the store is at epoch 5, so a fence at epoch 4 would move backwards")
	m, err = d.fence(t.Context(), m, ruling{fromEpoch: 5, standOn: 5, outcome: tangramv1.Outcome_OUTCOME_ABORT, survivors: []string{"a"}}, 0, "h")
	require.NoError(t, err, "the same epoch once more")
	require.Equal(t, "stay", m.Fence.Outcome)

	m, err = d.ended(t.Context(), m, []string{"a"}, nil, 5)
	require.NoError(t, err)
	require.EqualValues(t, 1, m.Worlds)
	require.Empty(t, m.Fence.Survivors)
	var many []string
	for i := range endedKept - 1 {
		many = append(many, fmt.Sprint("m", i))
	}
	m, err = d.ended(t.Context(), m, many, nil, 6)
	require.NoError(t, err)
	require.Len(t, m.Ended, endedKept)
	require.Equal(t, "a", m.Ended[endedKept-1])
	m, err = d.ended(t.Context(), m, []string{"z"}, nil, 7)
	require.NoError(t, err)
	require.Len(t, m.Ended, endedKept)
	require.Equal(t, []string{"z", "m0"}, m.Ended[:2])
	require.NotContains(t, m.Ended, "a")
	require.EqualValues(t, 3, m.Worlds)
	_, err = d.ended(t.Context(), was, nil, nil, 7)
	require.ErrorContains(t, err, "record the end of the world of epoch 7: ")
}

// A record that cannot be parsed completely is not changed, whatever its readable part says.
func TestMembershipRecord_WhenUnparsable(t *testing.T) {
	d := &Driver{World: "w", Store: &store.Memory{}, Log: slog.New(slog.DiscardHandler)}
	flip := &tangramv1.Flip{Epoch: 1, TargetHash: []byte{0xab}}
	garbage := json.RawMessage(`{"epoch":1,"hash":"ab","members":5}`)
	_, err := d.Store.CompareAndSwap(t.Context(), keyMembership, 0, garbage)
	require.NoError(t, err)
	require.Error(t, d.unfound(t.Context(), 0, flip))
	now, err := d.Store.Get(t.Context(), keyMembership)
	require.NoError(t, err)
	require.JSONEq(t, string(garbage), string(now.Value))
}
