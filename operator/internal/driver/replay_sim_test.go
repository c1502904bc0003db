package driver_test

import (
	"bytes"
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/testkit"
)

// TestGateReplaysSimulation replays the events of the simulation's gates (drivertest.World.Trace) in the agent's
// shipping gate: votes, go, latches, flips, aborts and outcomes (agent/gate/testing/replay.cc).
func TestGateReplaysSimulation(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the agent's gate")
	}
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	gate := filepath.Join(root, "agent", "gate")
	binary := filepath.Join(t.TempDir(), "replay")
	out, err := exec.CommandContext(t.Context(), "g++", "-std=c++20", "-I"+root, "-o", binary, filepath.Join(gate, "testing", "replay.cc"),
		filepath.Join(gate, "gate.cc"), filepath.Join(gate, "rules.cc"), filepath.Join(root, "agent", "base", "utf8.cc"), "-lfmt").CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	var trace bytes.Buffer
	first := testkit.Seed(t)<<20 + 1<<19 // no seed of TestSimulation
	const fixed, seeds = 60, 70          // the fixed ones are the same for every SEED, and take every transition
	for n := range uint64(seeds) {
		seed := 1 + n
		if n >= fixed {
			seed += first
		}
		wrong, _ := simulate(t, seed, slog.New(slog.DiscardHandler), &trace)
		require.Emptyf(t, wrong, "seed %d", seed)
	}
	replay := exec.CommandContext(t.Context(), binary)
	replay.Stdin = &trace
	events := bytes.Count(trace.Bytes(), []byte("\n"))
	out, err = replay.CombinedOutput()
	require.NoErrorf(t, err, "%s", out)
	t.Logf("%d seeds from 1 and %d, %d events\n%s", seeds, 1+first+fixed, events, out)
}
