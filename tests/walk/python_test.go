package walk

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// entered is what an engine of agent/client/python/tests/engine.py says of an epoch.
type entered struct {
	Epoch  uint64 `json:"epoch"`
	Rank   *int   `json:"rank"`
	World  int    `json:"world"`
	Pieces int    `json:"pieces"`
	Dense  int    `json:"dense"`
	Pulled int    `json:"pulled"`
}

// startPython is a tiny world whose engines are Python processes, over the wheel as it would be installed.
func startPython(t *testing.T, pods []int, flags ...string) *harness.World {
	t.Helper()
	root, err := filepath.Abs(worlds.Root)
	require.NoError(t, err)
	build := os.Getenv("TANGRAM_CXX")
	if build == "" {
		build = filepath.Join(root, "build/cxx")
	}
	wheels, err := filepath.Glob(filepath.Join(build, "agent/client/wheel/*.whl"))
	require.NoError(t, err)
	require.Len(t, wheels, 1, "ninja -C build/cxx tangram_client_wheel")
	python, site := filepath.Join(root, "build/venv/bin/python"), t.TempDir()
	out, err := exec.CommandContext(t.Context(), python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
		"--no-index", "--no-deps", "--target", site, wheels[0]).CombinedOutput()
	require.NoError(t, err, "%s", out)
	checkpoint, err := harness.Checkpoint(t.Context(), root, "tiny")
	require.NoError(t, err)
	engine := append([]string{"env", "PYTHONPATH=" + site, "PYTHONDONTWRITEBYTECODE=1", "OPENBLAS_NUM_THREADS=1", python,
		filepath.Join(root, "agent/client/python/tests/engine.py"), "--checkpoint", checkpoint}, flags...)
	return startTiny(t, harness.Options{Pods: pods, Engine: engine})
}

// epochs that an engine entered so far.
func epochs(t *testing.T, w *harness.World, pod int) []entered {
	t.Helper()
	log, err := os.Open(filepath.Join(w.Dir(), fmt.Sprintf("engine-p%d-0.log", pod)))
	require.NoError(t, err)
	defer func() { _ = log.Close() }() // only read
	var out []entered
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var e entered
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			out = append(out, e)
		}
	}
	return out
}

// Engines in Python go through first layout, growth, both switches of mode and a leave: in each epoch every piece and every
// dense tensor is the checkpoint's, and KV comes from the other rank.
func TestPythonEngines(t *testing.T) {
	w := startPython(t, []int{1, 1})
	for _, s := range []stop{{1, "Expert", nil}, {2, "Expert", nil}, {2, "Tensor", nil}, {2, "Expert", nil}, {1, "Expert", nil}} {
		t.Run(fmt.Sprint(s.ranks, s.mode), func(t *testing.T) {
			record := apply(t, w, s.ranks, s.mode)
			audit(t, w, s.ranks)
			require.Empty(t, w.Died())
			for pod := range s.ranks {
				var last entered
				require.Eventually(t, func() bool {
					all := epochs(t, w, pod)
					last = all[len(all)-1]
					return last.Epoch == record.Epoch
				}, time.Minute, 20*time.Millisecond, "engine %d: %+v", pod, last)
				require.Equal(t, s.ranks, last.World)
				require.Equal(t, pod, *last.Rank)
				require.Positive(t, last.Dense)
				pieces := 3 * 10 // layers x experts, shared out or cut
				if s.mode == "Expert" {
					pieces /= s.ranks
				}
				require.Equal(t, pieces, last.Pieces)
			}
		})
	}
	for pod := range 2 {
		all := epochs(t, w, pod)
		require.Positive(t, all[len(all)-1].Pulled, "engine %d brought no KV", pod)
		require.Positive(t, status(t, w)[pod].Ranks[0].Engine.KvPages)
	}
	last := epochs(t, w, 1)
	require.Nil(t, last[len(last)-1].Rank, "the second one left")
	w.Stop()
	for pod := range 2 {
		log, err := os.ReadFile(filepath.Join(w.Dir(), fmt.Sprintf("engine-p%d-0.log", pod)))
		require.NoError(t, err)
		require.Contains(t, string(log), "\nleft\n", "engine %d did not end as it was asked to", pod)
	}
}

// An engine that never splits a request's heads says so, and its agent refuses layouts that do.
func TestEnginesThatKeepAttentionOnOneRank(t *testing.T) {
	w := startPython(t, []int{2}, "--attention-data-only")
	apply(t, w, 2, "Expert")
	before := status(t, w)
	require.True(t, before[0].Ranks[0].Engine.AttentionDataOnly)
	_, err := w.Apply(t.Context(), 2, "Tensor", nil, nil)
	require.ErrorContains(t, err, "takes attention on one rank only")
	requireUnmoved(t, status(t, w), before)
	audit(t, w, 2)
}
