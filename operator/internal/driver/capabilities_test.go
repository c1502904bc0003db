package driver

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
)

// One engine that keeps the heads of a request on one rank binds the world: TensorParallel then cuts only the experts.
// Users still see the mode that they requested.
func TestTensorParallel_WhenAttentionIsDataParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		require.Equal(t, "TensorParallel", layout.ModeOf(w.Layout()))
		again, err := d.Apply(t.Context(), tensor(3))
		require.NoError(t, err)
		require.Empty(t, again.Flips, "a world that is as wanted is left alone")

		// Both remaining engines split heads, but not while the third is in the active layout.
		_, err = d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.EqualValues(t, 1, w.Layout().Layers[0].AttentionGroupSize)
		_, err = d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.EqualValues(t, 2, w.Layout().Layers[0].AttentionGroupSize)
	})
}

func TestApplyRejectsShapeUnsupportedByEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 2)
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.agents[1].AttentionDataOnly()
		before := w.Layout().Epoch
		want := expert(2)
		want.Shape.Layers = map[uint32]layout.LayerShape{1: {AttentionGroup: 2}}
		record, err := d.Apply(t.Context(), want)
		require.ErrorContains(t, err, "layer 1: 2 ranks should share the heads of a request, but the engine of member "+w.agents[1].Member(0))
		require.Empty(t, record.Flips)
		require.Equal(t, before, w.Layout().Epoch)
		require.True(t, w.Idle())
	})
}

// An engine with another KV block size does not join, and the world is unaffected. With the same size it joins.
func TestApplyRejectsJoinerWithOtherKVBlockSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		for _, a := range w.agents {
			a.BlockTokens(16)
		}
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		w.agents[2].BlockTokens(32)
		before := w.Layout().Epoch
		record, err := d.Apply(t.Context(), expert(3))
		require.ErrorContains(t, err, "kv_block_tokens is 32 at the engine of member "+w.agents[2].Member(0)+", the future rank 2, but 16 at the engine of rank 0, member "+
			w.agents[0].Member(0))
		require.Empty(t, record.Flips)
		require.Equal(t, before, w.Layout().Epoch)
		require.True(t, w.Idle())
		w.agents[2].BlockTokens(16)
		_, err = d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.requireRanks(t, 3)
	})
}

// Declared settings are compared by name. A setting that one engine does not declare is not compared.
func TestApplyRejectsJoinerWithOtherSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		w.agents[0].Settings(map[string]string{"engine": "vllm", "version": "0.32.0", "max_batch_tokens": "512"})
		w.agents[1].Settings(map[string]string{"engine": "vllm", "version": "0.32.0"})
		_, err := d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
		before := w.Layout().Epoch
		for name, value := range map[string]string{"engine": "tangram-engine", "version": "0.33.0", "max_batch_tokens": "1024"} {
			w.agents[2].Settings(map[string]string{name: value})
			record, err := d.Apply(t.Context(), expert(3))
			require.ErrorContains(t, err, name+" is "+value+" at the engine of member "+w.agents[2].Member(0)+", the future rank 2, but ")
			require.ErrorContains(t, err, " at the engine of rank 0, member "+w.agents[0].Member(0))
			require.Empty(t, record.Flips)
		}
		require.Equal(t, before, w.Layout().Epoch)
		require.True(t, w.Idle())
		w.agents[2].Settings(map[string]string{"engine": "vllm", "version": "0.32.0", "max_batch_tokens": "512", "more": "x"})
		_, err = d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.requireRanks(t, 3)
	})
}

// A killed engine that restarts with other settings is no survivor of a repair. With the same settings it is.
func TestRepair_WhenReattachedEngineHasOtherSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, version := range []string{"1", "2"} {
			for _, who := range []int{0, 2} {
				d, w := setup(t, 3)
				for _, a := range w.agents {
					a.Settings(map[string]string{"version": "1"})
				}
				_, err := d.Apply(t.Context(), expert(3))
				require.NoError(t, err)
				member := w.agents[who].Member(0)
				w.agents[who].Detach(true)
				w.agents[who].Settings(map[string]string{"version": version})
				w.agents[who].Detach(false)
				record, err := d.Repair(t.Context())
				require.NoError(t, err)
				if version == "1" {
					w.members(t, 0, 1, 2)
					continue
				}
				w.members(t, slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == who })...)
				require.Equal(t, member, record.Lost[0].Member)
				require.Contains(t, record.Lost[0].Why, "the engine was restarted with version 2, but member "+w.Layout().Members[0].Id+" has 1")
			}
		}
	})
}
