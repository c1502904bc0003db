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

// pythonEnginesOf has worlds of Python engines under the kit: a virtual environment of build/, packages in addition to
// the kit's, and the arguments of Python.
func pythonEnginesOf(t *testing.T, o harness.Options, venv string, packages []string, run ...string) harness.Options {
	t.Helper()
	root, err := filepath.Abs(worlds.Root)
	require.NoError(t, err)
	o.Root = root
	o.Engine = o.PythonEngine(venv, packages, run...)
	return o
}

// kitEngines has worlds of agent/engine/python/tests/echo.py: engines whose tokens are sums over their KV, equal in all
// KV sets.
func kitEngines(t *testing.T, o harness.Options, flags ...string) harness.Options {
	t.Helper()
	return pythonEnginesOf(t, o, "venv", nil, append([]string{"agent/engine/python/tests/echo.py"}, flags...)...)
}

// requireSums: each token is the sum of all earlier ones times their positions, which an engine reads from their KV.
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

// echoes are engines of the kit whose tokens are sums over their KV. They have a second KV set of another shape, as for
// drafts.
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

// asAtRest requires the tokens of one rank of the same engine without transitions. Its world starts with the first
// check.
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

// reference is the reference engine (e2e/engine); every other request is sampled.
func reference(t *testing.T) candidate {
	t.Helper()
	return candidate{name: "reference", start: startTiny, source: newTrace(t, 12, 30*time.Second), stepTokens: 24, layers: ofTiny,
		right: asAtRest(within(t, startTiny)), aheadOfLeavers: true}
}

// within keeps the world until the end of the outer test, whichever subtest starts it.
func within(t *testing.T, start func(*testing.T, harness.Options) *harness.World) func(*testing.T, harness.Options) *harness.World {
	t.Helper()
	return func(_ *testing.T, o harness.Options) *harness.World { return start(t, o) }
}

// brought is a user's engine: ENGINE is a shell command that starts one rank (docs/engines.md).
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

// Independent engines pass the same suite: those of the repository, or the one in ENGINE.
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

// A rank of either kind of engine reports its cached prefixes, and its gateway sends requests with the same prefix
// there. Each rank has requests, because an idle rank is chosen first, whatever the others have cached.
func TestEnginesReportCachedPrefixes(t *testing.T) {
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
			require.Eventually(t, func() bool { // reported with the next load
				again := flyOf(t, c.World, c.source, 0, 1, conformingTokens)
				flights = append(flights, again...)
				return cached() > 0
			}, flightLimit, 300*time.Millisecond)
			c.landed(t, flights)
		})
	}
}
