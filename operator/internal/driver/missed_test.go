package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Unknown enumeration values and ranks are dropped: metric labels stay few, and the object can be written.
func TestMissedDropsUnknownValues(t *testing.T) {
	members := []*tangramv1.Member{{Id: "a"}, {Id: "b"}}
	found := missedBy("a", &tangramv1.EngineStatus{Missed: []*tangramv1.Missed{
		{Rank: 1, Cause: tangramv1.Cause_CAUSE_SILENT, Doing: tangramv1.Doing_DOING_DISPATCH, Layer: 3},
		{Rank: 2, Cause: tangramv1.Cause_CAUSE_SILENT, Doing: tangramv1.Doing_DOING_DISPATCH},
		{Rank: 1, Cause: 99, Doing: tangramv1.Doing_DOING_DISPATCH},
		{Rank: 1, Cause: tangramv1.Cause_CAUSE_GONE, Doing: 99},
		{Rank: 1, Doing: tangramv1.Doing_DOING_WORDS},
		{Rank: 1, Cause: tangramv1.Cause_CAUSE_GONE},
		{Rank: 1, Cause: tangramv1.Cause_CAUSE_GONE, Doing: tangramv1.Doing_DOING_WORDS},
	}}, members)
	require.Equal(t, []Missed{{By: "a", Member: "b", Cause: "silent", Doing: "dispatch", Layer: 3}, {By: "a", Member: "b", Cause: "gone", Doing: "words"}}, found)
	require.Equal(t, "b silent in dispatch of layer 3", found[0].String())
	require.Equal(t, "b gone in words", found[1].String())
}

// The first rank to abandon a step is missed by others, too. Reports about lost members come first, to a maximum.
func TestMissedListsLostMembersFirst(t *testing.T) {
	s := scene{newest: []string{"a", "b", "c"}, members: map[string]evidence{
		"a": {id: "a", missed: []Missed{{By: "a", Member: "c", Cause: "gone"}, {By: "a", Member: "b", Cause: "silent"}}},
		"c": {id: "c", missed: make([]Missed, 20)},
	}}
	found := s.missed([]Lost{{Member: "b"}})
	require.Len(t, found, mostMissed)
	require.Equal(t, []Missed{{By: "a", Member: "b", Cause: "silent"}, {By: "a", Member: "c", Cause: "gone"}}, found[:2])
}
