package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestImagesAreCurrent_WhenInputsMatch(t *testing.T) {
	dir := t.TempDir()
	program, archive := filepath.Join(dir, "p"), filepath.Join(dir, "p.tar")
	require.NoError(t, os.WriteFile(program, []byte("one"), 0o600))
	inputs, err := fingerprint(program)
	require.NoError(t, err)
	require.False(t, current(archive, inputs), "nothing is there")
	require.NoError(t, os.WriteFile(archive+".inputs", []byte(inputs), 0o600))
	require.False(t, current(archive, inputs), "the archive is not there")
	require.NoError(t, os.WriteFile(archive, nil, 0o600))
	require.True(t, current(archive, inputs))
	require.NoError(t, os.WriteFile(program, []byte("two"), 0o600))
	changed, err := fingerprint(program)
	require.NoError(t, err)
	require.False(t, current(archive, changed), "the program changed")
	_, err = fingerprint(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestCheckpointsBecomeReadable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "models")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "demo"), 0o700))
	weights := filepath.Join(dir, "demo", "w")
	require.NoError(t, os.WriteFile(weights, []byte("w"), 0o600))
	require.NoError(t, readable(dir))
	for path, want := range map[string]os.FileMode{dir: 0o755, filepath.Dir(weights): 0o755, weights: 0o644} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), path)
	}
	require.ErrorContains(t, readable(filepath.Join(dir, "none")), "written by `make model`")
}

func TestProgramOutputIsReportedAndInError(t *testing.T) {
	var said []string
	o := Options{Root: t.TempDir(), Say: func(f string, args ...any) { said = append(said, fmt.Sprintf(f, args...)) }}
	require.NoError(t, o.run(t.Context(), "/bin/sh", "-c", "echo a; echo; printf b; echo c"))
	require.Equal(t, []string{"  sh: a", "  sh: bc"}, said)
	err := o.run(t.Context(), "/bin/sh", "-c", "echo the disk is full >&2; exit 3")
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "the disk is full")
}

func TestKillForkedRejectsUnknownContainer(t *testing.T) {
	for id, why := range map[string]string{"": "is not the id of one", "containerd://": "is not the id of one", "containerd://0123": "has no process here"} {
		killed, err := KillForked("no-such-pod", id)
		require.ErrorContains(t, err, why, id)
		require.Zero(t, killed)
	}
	_, err := KillForked("", "containerd://0123")
	require.ErrorContains(t, err, "a pod without UID")
}
