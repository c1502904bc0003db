package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/store"
)

// A world that lives long keeps the newest records, and its store does not grow with its age.
func TestTheStoreKeepsTheNewestTransitions(t *testing.T) {
	s := &store.Memory{}
	save := SaveTo(s)
	for i := range 3 * keptTransitions {
		require.NoError(t, save(t.Context(), &Record{World: "w", Epoch: uint64(i)}))
	}
	var kept []*Record
	_, err := store.Load(t.Context(), s, keyTransitions, &kept)
	require.NoError(t, err)
	require.Len(t, kept, keptTransitions)
	require.EqualValues(t, 2*keptTransitions, kept[0].Epoch)
	require.EqualValues(t, 3*keptTransitions-1, kept[keptTransitions-1].Epoch)
}
