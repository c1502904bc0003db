package walk

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// The checkpoint disappears while a world serves: processes that would have to read it report that in advance.
func TestCheckpointDisappears(t *testing.T) {
	tiny, err := harness.Checkpoint(t.Context(), worlds.Root, "tiny")
	require.NoError(t, err)
	mine := t.TempDir()
	require.NoError(t, os.CopyFS(mine, os.DirFS(tiny)))
	w := worlds.Start(t, harness.Options{Pods: []int{1, 1}, Checkpoint: mine, Granule: 8, Memory: 64 << 20, KV: 8 << 20})
	worlds.Apply(t, w, 2, "ExpertParallel")
	before := worlds.Answers(t, w)

	shards, err := filepath.Glob(filepath.Join(mine, "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, shards)
	require.NoError(t, os.Rename(shards[0], shards[0]+".away"))
	told := func(empty bool) func() bool {
		return func() bool {
			all := worlds.Status(t, w)
			return (all[0].CheckpointError == "") == empty && (all[1].CheckpointError == "") == empty
		}
	}
	require.Eventually(t, told(false), worlds.Hang, 50*time.Millisecond)
	_, err = w.Apply(t.Context(), 2, "TensorParallel", nil, nil)
	require.ErrorContains(t, err, "cannot read the checkpoint")
	require.ErrorContains(t, err, filepath.Base(shards[0])+": No such file or directory")
	worlds.RequireSame(t, worlds.Answers(t, w), before)

	require.NoError(t, os.Rename(shards[0]+".away", shards[0]))
	require.Eventually(t, told(true), worlds.Hang, 50*time.Millisecond)
	worlds.Apply(t, w, 2, "TensorParallel")
	worlds.RequireSame(t, worlds.Answers(t, w), before)
}
