package placement

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListsRoundTrip(t *testing.T) {
	lists := [][][]int32{{{2, 0}, {1}, {}}, {{1}, {0, 2, 1}, {2}}}
	p, err := FromLists(lists, 3, 2)
	require.NoError(t, err)
	require.NoError(t, p.Valid())
	require.Equal(t, []int32{0, 2, 5, 7}, p.Start)
	require.Equal(t, []int32{2, 0}, p.Rank(0, 0))
	require.Equal(t, []int32{1, Empty, Empty}, p.Rank(0, 1))
	require.Equal(t, [][][]int32{{{2, 0}, {1, Empty, Empty}, {Empty, Empty}}, {{1, Empty}, {0, 2, 1}, {2, Empty}}}, p.Lists())
}

func TestFromListsRejectsInvalidLists(t *testing.T) {
	for want, lists := range map[string][][][]int32{
		"no layers":                      nil,
		"no ranks":                       {{}},
		"layer 1 of the placement is on": {{{0}, {1}}, {{0, 1}}},
		"rank 1 of the placement holds expert 2; experts are 0 to 1": {{{0}, {2}}},
		"holds expert -2": {{{0}, {-2}}},
	} {
		_, err := FromLists(lists, 2, 0)
		require.ErrorIs(t, err, ErrInput)
		require.ErrorContains(t, err, want)
	}
}
