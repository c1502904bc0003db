package bench

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// From any state of a walk, in pools with no byte to spare, the moved bytes equal the bound. One fetch less would be
// detected.
func TestResizeWalkMovesMinimumBytes(t *testing.T) {
	views, err := publicViews()
	require.NoError(t, err)
	v, err := firstLayers(views[0], 3)
	require.NoError(t, err)
	w, some := &walker{v: v, random: rand.New(rand.NewPCG(7, 7))}, 0
	for range 25 {
		name, moved, least, err := w.step()
		require.NoError(t, err, name)
		require.Equal(t, least, moved, name)
		if moved > 0 {
			some++
		}
	}
	require.Greater(t, some, 10)
}
