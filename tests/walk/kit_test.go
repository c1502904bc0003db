package walk

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// pythonEnginesOf has worlds of engines in Python under the kit: a virtual environment of build/, packages beside the kit's, and what Python is to run.
func pythonEnginesOf(t *testing.T, o harness.Options, venv string, packages []string, run ...string) harness.Options {
	t.Helper()
	root, err := filepath.Abs(worlds.Root)
	require.NoError(t, err)
	o.Root = root
	o.Engine = o.PythonEngine(venv, packages, run...)
	return o
}

// kitEngines has worlds of agent/engine/python/tests/echo.py: engines whose tokens are sums over their KV.
func kitEngines(t *testing.T, o harness.Options) harness.Options {
	t.Helper()
	return pythonEnginesOf(t, o, "venv", nil, "agent/engine/python/tests/echo.py")
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

// Requests of engines that are not ours keep their KV through growth, both switches of the experts' mode and leaves, and get tokens all the while.
func TestEnginesOfTheKit(t *testing.T) {
	w := startTiny(t, kitEngines(t, harness.Options{Pods: harness.Pods(3), MaxTokens: flightTokens}))
	apply(t, w, 1, "Expert")
	trace, sent := newTrace(t, 11, 30*time.Second), 0
	stops := []stop{
		{2, "Expert", nil},
		{3, "Expert", []string{"0-2=3/1"}}, // experts cut over all ranks, and requests stay whole
		{3, "Expert", nil},
		{2, "Expert", []string{"0-2=2/1"}},
		{1, "Expert", nil},
	}
	for _, s := range stops {
		t.Run(fmt.Sprint(s.ranks, s.shapes), func(t *testing.T) {
			flights := fly(t, w, trace, sent, 6)
			sent += len(flights)
			_, err := w.Apply(t.Context(), s.ranks, s.mode, s.shapes, nil)
			require.NoError(t, err)
			for _, f := range flights {
				requireSums(t, f.land(t))
			}
			audit(t, w, s.ranks)
		})
	}
	require.Empty(t, w.Died())
}

// An engine of the kit is killed, then a whole pod: the others go on with the KV that they have, and what was lost is asked again.
func TestEnginesOfTheKitDie(t *testing.T) {
	o := kitEngines(t, harness.Options{Pods: []int{1, 1, 1}})
	o.Restart, o.MaxTokens = true, 512
	w := startTiny(t, o)
	a := &alive{World: w, trace: newTrace(t, 12, 30*time.Second), halt: make(chan struct{}), played: make(chan []*load.Result, 1)}
	a.keep(t, 3, "Expert")
	t.Cleanup(func() { a.keeper.Kill() })
	a.await(t, "the first layout", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	go func() { a.played <- client(w).Play(ctx, a.trace, 6, a.halt) }()
	time.Sleep(time.Second)
	a.KillEngine(1, 0)
	first := a.await(t, "a repair", repaired)
	require.Empty(t, first.Record.Lost, "it came back")
	a.KillPod(2)
	a.await(t, "another repair", func(d harness.Did) bool { return repaired(d) && len(d.Record.Lost) == 1 })
	time.Sleep(time.Second)
	close(a.halt)
	results := <-a.played
	require.NotEmpty(t, results)
	for _, r := range results {
		require.NoError(t, r.Err)
		requireSums(t, r)
	}
	t.Logf("%d requests", len(results))
}
