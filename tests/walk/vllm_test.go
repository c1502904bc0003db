package walk

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// vllmEngines has worlds of agent/vllm: one EngineCore of vLLM for each rank.
func vllmEngines(t *testing.T, o harness.Options) harness.Options {
	t.Helper()
	return pythonEnginesOf(t, o, "vllm", []string{"agent/vllm"}, "-m", "tangram_vllm.main")
}

// What clients get from a world of vLLM's engines is what transformers computes in fp32 on the same checkpoint: at rest in each layout, and from
// requests that run while it moves there.
func TestVllm(t *testing.T) {
	g := readGolden(t, "demo")
	checkpoint, err := harness.Checkpoint(t.Context(), worlds.Root, "demo-f32")
	require.NoError(t, err)
	w := start(t, vllmEngines(t, harness.Options{Granule: 16, Checkpoint: checkpoint, Pods: harness.Pods(3), MaxTokens: 512, EngineFlags: []string{"--max-batch-tokens", "64"}}))
	apply(t, w, 1, "Expert")
	require.NoError(t, g.ask(t.Context(), w))
	for _, s := range []stop{
		{2, "Expert", nil},
		{3, "Expert", nil},
		{3, "Expert", []string{"0-5=3/1"}},
		{2, "Expert", nil},
	} {
		t.Run(fmt.Sprint(s.ranks, s.mode, s.shapes), func(t *testing.T) {
			g.askUntil(t, w, func() { apply(t, w, s.ranks, s.mode, s.shapes...) })
			require.NoError(t, g.ask(t.Context(), w))
		})
	}
}

// A pod of vLLM is killed in the middle of what it does: what the others computed of the broken step is undone, requests that were
// lost are asked again, and every token is transformers'.
func TestVllmDies(t *testing.T) {
	g := readGolden(t, "demo")
	checkpoint, err := harness.Checkpoint(t.Context(), worlds.Root, "demo-f32")
	require.NoError(t, err)
	o := harness.Options{Granule: 16, Checkpoint: checkpoint, Pods: []int{1, 1, 1}, Restart: true, MaxTokens: 512}
	o.Root, err = filepath.Abs(worlds.Root)
	require.NoError(t, err)
	o.VLLM()
	a := &alive{World: start(t, o)}
	a.keep(t, 3, "Expert")
	t.Cleanup(func() { a.keeper.Kill() })
	a.await(t, "the first layout", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
	g.askUntil(t, a.World, func() {
		time.Sleep(2 * time.Second)
		a.KillPod(2)
		a.await(t, "a repair", func(d harness.Did) bool { return repaired(d) && len(d.Record.Lost) == 1 })
	})
	require.NoError(t, g.ask(t.Context(), a.World))
}
