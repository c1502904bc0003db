package walk

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/operator/pkg/layout"
)

// Under load from ExpertParallel to Hybrid, to TensorParallel, to another Hybrid, to more ranks in it; then a pod is
// killed and replaced. Every token equals that of a world without transitions (end), and after each step every layer
// has the requested groups.
func TestHybridWorld(t *testing.T) {
	first, second := layout.Ranges{{First: 0, Last: 1, ExpertGroup: 2, AttentionGroup: 1}, {First: 2, Last: 2, ExpertGroup: 1, AttentionGroup: 2}},
		layout.Ranges{{First: 0, Last: 0, ExpertGroup: 1, AttentionGroup: 1}, {First: 1, Last: 2, ExpertGroup: 2, AttentionGroup: 2}}
	a := startAlive(t, []int{1, 1, 1, 1}, 4, "ExpertParallel")
	now := func() layout.Ranges {
		for _, s := range status(t, a.World) {
			if s.Layout != nil {
				return layout.RangesOf(s.Layout)
			}
		}
		return nil
	}
	moved := func(what string) harness.Did {
		t.Helper()
		return a.await(t, what, func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" && d.Record.FromEpoch > 0 })
	}
	hybrid := func(ranks int, ranges layout.Ranges) {
		t.Helper()
		a.keeper.Kill()
		var layers []string
		for _, x := range ranges {
			layers = append(layers, x.String())
		}
		keeper, err := a.KeepHybrid(ranks, layers, tell(t))
		require.NoError(t, err)
		a.keeper = keeper
		d := moved("a hybrid")
		require.Zero(t, d.Record.Bytes.Checkpoint, "ranks have it all")
		require.Equal(t, ranges, now())
		audit(t, a.World, ranks)
	}
	hybrid(4, first)
	a.keeper.Kill()
	a.keep(t, 4, "TensorParallel")
	moved("TensorParallel")
	require.Equal(t, layout.Ranges{{First: 0, Last: 2, ExpertGroup: 4, AttentionGroup: 4}}, now())
	hybrid(4, second)
	for range 2 {
		_, err := a.AddPod(t.Context(), 1)
		require.NoError(t, err)
	}
	hybrid(6, second)

	a.KillPod(1)
	d := a.await(t, "a repair", repaired)
	require.Len(t, d.Record.Lost, 1)
	_, err := a.AddPod(t.Context(), 1)
	require.NoError(t, err)
	a.await(t, "the layout again", func(again harness.Did) bool {
		return again.Did == "apply" && again.Error == "" && again.Record.FromEpoch >= d.Record.Epoch
	})
	require.Equal(t, second, now())
	a.end(t, 6)
}
