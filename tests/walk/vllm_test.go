package walk

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// vllmEngines has worlds of agent/vllm: one EngineCore of vLLM per rank.
func vllmEngines(t *testing.T, o harness.Options) harness.Options {
	t.Helper()
	return pythonEnginesOf(t, o, "vllm", []string{"agent/vllm"}, "-m", "tangram_vllm.main")
}

// Clients of a world of vLLM engines get the tokens that transformers computes in fp32 on the same checkpoint: at rest
// in each layout, and from requests that run during the transition to it.
func TestVllm(t *testing.T) {
	g := readGolden(t, "demo")
	checkpoint, err := harness.Checkpoint(t.Context(), worlds.Root, "demo-f32")
	require.NoError(t, err)
	w := start(t, vllmEngines(t, harness.Options{Granule: 16, Checkpoint: checkpoint, Pods: harness.Pods(3), MaxTokens: 512, EngineFlags: []string{"--max-batch-tokens", "64"}}))
	apply(t, w, 1, "ExpertParallel")
	require.NoError(t, g.ask(t.Context(), w))
	for _, s := range []stop{
		{2, "ExpertParallel", nil},
		{3, "ExpertParallel", nil},
		{3, "ExpertParallel", []string{"0-5=3/1"}},
		{2, "ExpertParallel", nil},
	} {
		t.Run(fmt.Sprint(s.ranks, s.mode, s.shapes), func(t *testing.T) {
			g.askUntil(t, w, func() { apply(t, w, s.ranks, s.mode, s.shapes...) })
			require.NoError(t, g.ask(t.Context(), w))
		})
	}
}

// At returns the golden prompts in turn.
func (g *golden) At(i int) load.Request {
	c := g.Cases[i%len(g.Cases)]
	return load.Request{Index: i, Prompt: c.Prompt, MaxTokens: len(c.Tokens), TopP: 1}
}

// requireBeginnings: answers begin with transformers' tokens, where these are known.
func (g *golden) requireBeginnings(t *testing.T, results []*load.Result) {
	t.Helper()
	for _, r := range results {
		c := g.Cases[r.Request.Index%len(g.Cases)]
		if !slices.Equal(r.Request.Prompt, c.Prompt) { // it may be extended
			continue
		}
		var tokens []uint32
		for _, token := range r.Tokens[:min(len(r.Tokens), len(c.Tokens))] {
			tokens = append(tokens, token.ID)
		}
		require.NoError(t, sameTokens(tokens, c.Tokens[:len(tokens)]), "request %d", r.Request.Index)
	}
}

// vLLM runs the suite of all engines. Its tokens equal those of one rank without transitions, and begin with
// transformers'.
func TestVllmConforms(t *testing.T) {
	g := readGolden(t, "demo")
	checkpoint, err := harness.Checkpoint(t.Context(), worlds.Root, "demo-f32")
	require.NoError(t, err)
	start := func(t *testing.T, o harness.Options) *harness.World {
		t.Helper()
		o.Granule, o.Checkpoint, o.EngineFlags = 16, checkpoint, []string{"--max-batch-tokens", "64"}
		o.Root, err = filepath.Abs(worlds.Root)
		require.NoError(t, err)
		o.VLLM()
		return worlds.Start(t, o)
	}
	atRest := asAtRest(within(t, start))
	conform(t, candidate{name: "vllm", start: start, source: g, stepTokens: 64, layers: ofDemo, right: func(t *testing.T, results []*load.Result) {
		t.Helper()
		g.requireBeginnings(t, results)
		atRest(t, results)
	}})
}
