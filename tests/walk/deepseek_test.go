package walk

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// Clients of a world with a DeepSeek checkpoint get transformers' tokens: with latents as KV, which every rank keeps
// whole in mode Tensor, and with V3's block FP8 experts, which are split and joined with their scales. Meanwhile the
// world grows, switches there and back, and loses a pod, whose experts are read from the checkpoint again.
func TestDeepSeek(t *testing.T) {
	for _, of := range worlds.Cases(1, []harness.Options{
		{Checkpoint: "deepseek-v3", Granule: 128},
		{Checkpoint: "deepseek-v2", Granule: 8, SlabFormat: "row-major"},
		{Checkpoint: "deepseek-v3", Granule: 128, SlabFormat: "row-major"},
	}) {
		t.Run(of.Checkpoint+of.SlabFormat, func(t *testing.T) {
			g := readGolden(t, of.Checkpoint)
			var err error
			of.Checkpoint, err = harness.Checkpoint(t.Context(), worlds.Root, of.Checkpoint)
			require.NoError(t, err)
			g.requireGiven(t, of.Checkpoint)
			of.Pods, of.Restart, of.Memory, of.KV = []int{1, 1, 1}, true, 64<<20, 16<<20
			a := &alive{World: start(t, of)}
			apply(t, a.World, 1, "ExpertParallel")
			require.NoError(t, g.ask(t.Context(), a.World))
			for _, s := range []stop{
				{3, "ExpertParallel", nil},
				{3, "TensorParallel", nil},
				{3, "ExpertParallel", nil},
				{2, "TensorParallel", nil},
				{3, "TensorParallel", nil},
			} {
				t.Run(fmt.Sprint(s.ranks, s.mode), func(t *testing.T) {
					g.askUntil(t, a.World, func() { requireBound(t, apply(t, a.World, s.ranks, s.mode)) })
					audit(t, a.World, s.ranks)
					require.NoError(t, g.ask(t.Context(), a.World))
				})
			}
			a.keep(t, 3, "TensorParallel")
			t.Cleanup(func() { a.keeper.Kill() })
			g.askUntil(t, a.World, func() {
				time.Sleep(time.Second) // so that requests are in every phase
				a.KillPod(1)
				d := a.await(t, "a repair", repaired)
				require.Len(t, d.Record.Lost, 1)
				require.NotZero(t, d.Record.Bytes.Checkpoint, "a third of each expert was there alone")
			})
			audit(t, a.World, 2)
			require.NoError(t, g.ask(t.Context(), a.World))
		})
	}
}
