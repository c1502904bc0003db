package walk

import (
	"bytes"
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

// entered is the output of agent/client/python/tests/engine.py for an epoch.
type entered struct {
	Epoch  uint64 `json:"epoch"`
	Rank   *int   `json:"rank"`
	World  int    `json:"world"`
	Pieces int    `json:"pieces"`
	Dense  int    `json:"dense"`
	Pulled int    `json:"pulled"`
}

// startPython starts a tiny world whose engines are Python processes, with the wheel as it would be installed.
func startPython(t *testing.T, o harness.Options, flags ...string) *harness.World {
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
	o.Engine = append([]string{"env", "PYTHONPATH=" + site, "PYTHONDONTWRITEBYTECODE=1", "OPENBLAS_NUM_THREADS=1", python,
		filepath.Join(root, "agent/client/python/tests/engine.py"), "--checkpoint", checkpoint}, flags...)
	return startTiny(t, o)
}

// enters waits until the engine of a pod has entered an epoch, and returns its output.
func enters(t *testing.T, w *harness.World, pod int, epoch uint64) entered {
	t.Helper()
	path := filepath.Join(w.Dir(), fmt.Sprintf("engine-p%d-0.log", pod))
	for until := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		log, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range bytes.Lines(log) {
			var e entered
			if json.Unmarshal(line, &e) == nil && e.Epoch == epoch {
				return e
			}
		}
		require.Empty(t, w.Died())
		require.True(t, time.Now().Before(until), "engine %d entered no epoch %d:\n%s", pod, epoch, log)
	}
}

// Engines in Python run through a first layout, growth, both mode switches and a leave. In each epoch every piece and
// every dense tensor equals the checkpoint's, and KV is fetched from the other rank. In either slab format.
func TestPythonEngines(t *testing.T) {
	for _, format := range worlds.Cases(1, []string{"granule-major", "row-major"}) {
		t.Run(format, func(t *testing.T) { pythonEngines(t, format) })
	}
}

func pythonEngines(t *testing.T, format string) {
	w := startPython(t, harness.Options{Pods: []int{1, 1}, SlabFormat: format})
	epoch := uint64(0)
	for _, s := range []stop{{1, "ExpertParallel", nil}, {2, "ExpertParallel", nil}, {2, "TensorParallel", nil}, {2, "ExpertParallel", nil}, {1, "ExpertParallel", nil}} {
		t.Run(fmt.Sprint(s.ranks, s.mode), func(t *testing.T) {
			epoch = apply(t, w, s.ranks, s.mode).Epoch
			audit(t, w, s.ranks)
			for pod := range s.ranks {
				now := enters(t, w, pod, epoch)
				require.Equal(t, s.ranks, now.World)
				require.Equal(t, pod, *now.Rank)
				require.Positive(t, now.Dense)
				pieces := 3 * 10 // layers x experts, distributed or sharded
				if s.mode == "ExpertParallel" {
					pieces /= s.ranks
				}
				require.Equal(t, pieces, now.Pieces)
			}
		})
	}
	for pod := range 2 {
		require.Positive(t, enters(t, w, pod, epoch).Pulled, "engine %d brought no KV", pod)
		require.Positive(t, status(t, w)[pod].Ranks[0].Engine.KvPages)
	}
	require.Nil(t, enters(t, w, 1, epoch).Rank, "the second one left")
	w.Stop()
	for pod := range 2 {
		log, err := os.ReadFile(filepath.Join(w.Dir(), fmt.Sprintf("engine-p%d-0.log", pod)))
		require.NoError(t, err)
		require.Contains(t, string(log), "\nleft\n", "engine %d did not end as it was asked to", pod)
	}
}

// An engine can declare that it never splits a request's heads: then no layout splits them, and Tensor shards only the
// experts.
func TestEnginesWithDataParallelAttention(t *testing.T) {
	w := startPython(t, harness.Options{Pods: []int{2}}, "--attention-data-only")
	apply(t, w, 2, "ExpertParallel")
	before := status(t, w)
	require.True(t, before[0].Ranks[0].Engine.AttentionDataOnly)
	_, err := w.Apply(t.Context(), 2, "ExpertParallel", []string{"0=1/2"}, nil)
	require.ErrorContains(t, err, "keeps them on one rank")
	requireUnmoved(t, status(t, w), before)
	apply(t, w, 2, "TensorParallel")
	for _, l := range status(t, w)[0].Layout.Layers {
		require.EqualValues(t, 2, l.ExpertGroupSize)
		require.EqualValues(t, 1, l.AttentionGroupSize, "in TensorParallel the experts alone are cut")
	}
	audit(t, w, 2)
}
