package agentclient

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// told is a complete status: a layout, and members with the versions of their inventories.
func told(hash string, versions map[string]uint64) *tangramv1.StatusResponse {
	s := &tangramv1.StatusResponse{World: "w", Epoch: 1}
	if hash != "" {
		s.LayoutHash, s.Layout = []byte(hash), &tangramv1.Layout{Epoch: 1, Revision: hash}
	}
	for _, member := range []string{"a", "b"} {
		if version, ok := versions[member]; ok {
			s.Ranks = append(s.Ranks, &tangramv1.RankStatus{Member: &tangramv1.Member{Id: member}, InventoryVersion: version,
				Inventory: &tangramv1.Inventory{Expert: []uint32{uint32(version)}}})
		}
	}
	return s
}

// without omits known data from a status, like an agent (agent/transition: OmitsKnownLayoutAndInventoriesFromStatus).
func without(s *tangramv1.StatusResponse, q *tangramv1.StatusRequest) *tangramv1.StatusResponse {
	s = proto.Clone(s).(*tangramv1.StatusResponse)
	if string(s.LayoutHash) == string(q.KnownLayout) {
		s.Layout = nil
	}
	for _, r := range s.Ranks {
		if version, ok := q.KnownInventories[r.Member.Id]; ok && version == r.InventoryVersion {
			r.Inventory = nil
		}
	}
	return s
}

func TestKnownCompletesStatus(t *testing.T) {
	var now *known
	for i, all := range []*tangramv1.StatusResponse{
		told("", nil),
		told("", map[string]uint64{"a": 1, "b": 2}),
		told("x", map[string]uint64{"a": 1, "b": 2}),
		told("x", map[string]uint64{"a": 1, "b": 3}),
		told("y", map[string]uint64{"b": 3}), // a is no longer a member
		told("y", map[string]uint64{"a": 7, "b": 3}),
		told("", map[string]uint64{"a": 8}), // the agent restarted
	} {
		for range 2 { // the second reply has no news
			s := without(all, now.request("w"))
			next, err := now.complete(s)
			require.NoError(t, err, "%d", i)
			require.True(t, proto.Equal(all, s), "%d: %v", i, s)
			now = next
		}
		q := now.request("w")
		require.Equal(t, "w", q.World)
		require.Nil(t, without(all, q).Layout)
		for _, r := range without(all, q).Ranks {
			require.Nil(t, r.Inventory, "%d: all is known", i)
		}
	}
}

// TestKnown_WhenRepliesAreReordered sends two calls with the same request; the agent changes between its two answers.
func TestKnown_WhenRepliesAreReordered(t *testing.T) {
	var none *known
	before, after := told("x", map[string]uint64{"a": 1}), told("y", map[string]uint64{"a": 2})
	first, err := none.complete(proto.Clone(before).(*tangramv1.StatusResponse))
	require.NoError(t, err)
	slow, quick := without(before, first.request("w")), without(after, first.request("w"))
	_, err = first.complete(quick)
	require.NoError(t, err)
	_, err = first.complete(slow)
	require.NoError(t, err)
	require.True(t, proto.Equal(before, slow))
	require.True(t, proto.Equal(after, quick))
}

func TestKnown_WhenOmittedDataIsUnknown(t *testing.T) {
	known, err := (*known)(nil).complete(told("x", map[string]uint64{"a": 1}))
	require.NoError(t, err)
	for _, test := range []struct {
		said string
		s    *tangramv1.StatusResponse
	}{
		{"the layout of epoch 1", told("y", nil)},
		{"the inventory of member a", told("x", map[string]uint64{"a": 2})},
		{"the inventory of member b", told("x", map[string]uint64{"b": 1})},
	} {
		test.s.Layout = nil
		for _, r := range test.s.Ranks {
			r.Inventory = nil
		}
		_, err := known.complete(test.s)
		require.ErrorContains(t, err, test.said)
	}
}
