package driver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
)

// One engine that keeps the heads of a request on one rank binds all: in Tensor the experts alone are cut, and users see the mode that they
// asked for.
func TestTensorOfEnginesWithAttentionByDataCutsExpertsAlone(t *testing.T) {
	d, w := setup(t, 3)
	w.agents[2].AttentionDataOnly()
	for _, want := range []Wanted{expert(2), expert(3), tensor(3), expert(3), tensor(3)} {
		_, err := d.Apply(t.Context(), want)
		require.NoError(t, err)
		w.requireRanks(t, want.Ranks)
		require.True(t, layout.Is(w.Layout(), want.Shape.Mode))
		for _, l := range w.Layout().Layers {
			require.EqualValues(t, 1, l.AttentionGroupSize)
		}
	}
	require.Equal(t, "Tensor", layout.ModeOf(w.Layout()))
	again, err := d.Apply(t.Context(), tensor(3))
	require.NoError(t, err)
	require.Empty(t, again.Flips, "a world that is as wanted is left alone")

	// Of the two that are left each splits heads again, but not while the third is in the layout that is left.
	_, err = d.Apply(t.Context(), tensor(2))
	require.NoError(t, err)
	require.EqualValues(t, 1, w.Layout().Layers[0].AttentionGroupSize)
	_, err = d.Apply(t.Context(), tensor(2))
	require.NoError(t, err)
	require.EqualValues(t, 2, w.Layout().Layers[0].AttentionGroupSize)
}

func TestAShapeThatAnEngineDoesNotComputeIsRefusedBeforeAnything(t *testing.T) {
	d, w := setup(t, 2)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	w.agents[1].AttentionDataOnly()
	before := w.Layout().Epoch
	want := expert(2)
	want.Shape.Layers = map[uint32]layout.LayerShape{1: {AttentionGroup: 2}}
	record, err := d.Apply(t.Context(), want)
	require.ErrorContains(t, err, "layer 1: 2 ranks are to share the heads of a request, and the engine of member "+w.agents[1].Member(0))
	require.Empty(t, record.Flips)
	require.Equal(t, before, w.Layout().Epoch)
	require.True(t, w.Idle())
}
