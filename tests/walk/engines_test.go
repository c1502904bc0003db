package walk

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

const ofTiny, ofDemo = 3, 6 // layers

// pythonEnginesOf has worlds of engines in Python under the kit: a virtual environment of build/, packages beside the kit's, and what Python is to run.
func pythonEnginesOf(t *testing.T, o harness.Options, venv string, packages []string, run ...string) harness.Options {
	t.Helper()
	root, err := filepath.Abs(worlds.Root)
	require.NoError(t, err)
	o.Root = root
	o.Engine = o.PythonEngine(venv, packages, run...)
	return o
}

// kitEngines has worlds of agent/engine/python/tests/echo.py: engines whose tokens are sums over their KV, each of which is the same in all sets of it.
func kitEngines(t *testing.T, o harness.Options, flags ...string) harness.Options {
	t.Helper()
	return pythonEnginesOf(t, o, "venv", nil, append([]string{"agent/engine/python/tests/echo.py"}, flags...)...)
}

// requireSums: each token is the sum of those before it, each times its place: what an engine reads from the KV of all of them.
func requireSums(t *testing.T, r *load.Result) {
	t.Helper()
	const vocabulary = 1000
	sum, places := 0, 0
	take := func(token uint32) {
		places++
		sum += places * int(token)
	}
	for _, token := range r.Request.Prompt {
		take(token)
	}
	require.NotEmpty(t, r.Tokens)
	for i, token := range r.Tokens {
		require.EqualValues(t, sum%vocabulary, token.ID, "token %d of a prompt of %d", i, len(r.Request.Prompt))
		take(token.ID)
	}
}

// echoes are engines of the kit whose tokens are sums over their KV. They have a second set of it, of another shape, as those that guess tokens have.
func echoes(t *testing.T) candidate {
	t.Helper()
	start := func(t *testing.T, o harness.Options) *harness.World {
		t.Helper()
		return startTiny(t, kitEngines(t, o, "--draft-layers", "2"))
	}
	right := func(t *testing.T, results []*load.Result) {
		t.Helper()
		for _, r := range results {
			requireSums(t, r)
		}
	}
	return candidate{name: "echo", start: start, source: newTrace(t, 11, 30*time.Second), stepTokens: 24, layers: ofTiny, right: right, aheadOfLeavers: true}
}

// asAtRest demands the tokens that one rank of the same engine gives where nothing moves. Its world is there from the first question on.
func asAtRest(start func(*testing.T, harness.Options) *harness.World) func(*testing.T, []*load.Result) {
	var one *harness.World
	return func(t *testing.T, results []*load.Result) {
		t.Helper()
		if one == nil {
			one = start(t, harness.Options{Dir: "/at-rest", Pods: []int{1}, MaxTokens: conformingTokens})
			apply(t, one, 1, "ExpertParallel")
		}
		for i, want := range client(one).Again(t.Context(), results, 16) {
			require.NoError(t, want.Err)
			require.Empty(t, results[i].Differs(want))
		}
	}
}

// reference engines (e2e/engine), of which every other request is sampled.
func reference(t *testing.T) candidate {
	t.Helper()
	return candidate{name: "reference", start: startTiny, source: newTrace(t, 12, 30*time.Second), stepTokens: 24, layers: ofTiny,
		right: asAtRest(within(t, startTiny)), aheadOfLeavers: true}
}

// within a test as long as it, whichever subtest asks first.
func within(t *testing.T, start func(*testing.T, harness.Options) *harness.World) func(*testing.T, harness.Options) *harness.World {
	t.Helper()
	return func(_ *testing.T, o harness.Options) *harness.World { return start(t, o) }
}

// brought is the engine of whoever runs this suite on theirs: ENGINE is words of a shell that start one rank (docs/engines.md).
func brought(t *testing.T, command string) candidate {
	t.Helper()
	start := func(t *testing.T, o harness.Options) *harness.World {
		t.Helper()
		root, err := filepath.Abs(worlds.Root)
		require.NoError(t, err)
		o.Root = root
		o.Engine = append(o.KitEnvironment(), "sh", "-c", "exec "+command+` "$@"`, "engine")
		return startTiny(t, o)
	}
	source := newTrace(t, 13, 30*time.Second)
	source.Greedy = true
	return candidate{name: "brought", start: start, source: source, stepTokens: 24, layers: ofTiny, right: asAtRest(within(t, start))}
}

// Engines that know nothing of each other go through the same suite: those of the repository, or the one that ENGINE names.
func TestEnginesConform(t *testing.T) {
	var of []func(*testing.T) candidate
	if command := os.Getenv("ENGINE"); command != "" {
		of = append(of, func(t *testing.T) candidate { t.Helper(); return brought(t, command) })
	} else {
		of = worlds.Cases(1, []func(*testing.T) candidate{echoes, reference})
	}
	for _, make := range of {
		c := make(t)
		t.Run(c.name, func(t *testing.T) { conform(t, c) })
	}
}

// A rank tells what it has of prompts' beginnings, in the kit's words or the reference engine's, and its gateway sends there who comes with the same. Each
// rank has requests: one that has nothing to do is chosen first, whatever others have.
func TestEnginesTellGatewaysWhatTheyHaveCached(t *testing.T) {
	for _, make := range []func(*testing.T) candidate{echoes, reference} {
		c := &conforming{candidate: make(t)}
		t.Run(c.name, func(t *testing.T) {
			c.World = c.start(t, harness.Options{Pods: []int{1, 1}, MaxTokens: conformingTokens, LeastStep: leastStep})
			c.source = longer{c.source, 80}
			apply(t, c.World, 2, "ExpertParallel")
			flights := c.fly(t, 4)
			cached := func() float64 {
				told, err := worlds.Metrics(t.Context(), c.MetricsURL())
				require.NoError(t, err)
				require.Contains(t, told, "tangram_gateway_cached_prompt_tokens_total")
				return told["tangram_gateway_cached_prompt_tokens_total"]
			}
			require.Zero(t, cached(), "no two of them begin alike")
			require.Eventually(t, func() bool { // it is told with the next load
				again := flyOf(t, c.World, c.source, 0, 1, conformingTokens)
				flights = append(flights, again...)
				return cached() > 0
			}, flightLimit, 300*time.Millisecond)
			c.landed(t, flights)
		})
	}
}
