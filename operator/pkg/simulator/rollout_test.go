package simulator

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A rollout's sequences are all present at the start. Half of the outputs are longer than the median, few are very
// long, none exceeds the maximum.
func TestRollout(t *testing.T) {
	tail := Tail()
	all := Rollout(2048, tail, 7)
	require.Equal(t, all, Rollout(2048, tail, 7))
	require.NotEqual(t, all, Rollout(2048, tail, 8))
	var lengths []int
	for _, q := range all {
		require.Zero(t, q.At)
		require.NoError(t, q.check())
		require.True(t, q.Prompt >= 256 && q.Prompt < 768)
		lengths = append(lengths, q.Output)
	}
	slices.Sort(lengths)
	require.InEpsilon(t, tail.Median, lengths[len(lengths)/2], .1)
	require.InEpsilon(t, 3.32*tail.Median, lengths[int(.8413*float64(len(lengths)))], .15, "one sigma above")
	require.LessOrEqual(t, lengths[len(lengths)-1], tail.Most)
	require.Greater(t, lengths[len(lengths)-1], tail.Most/2)
}
