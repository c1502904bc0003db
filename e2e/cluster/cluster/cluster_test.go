package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/cluster/host"
	"tangram.dev/e2e/cluster/machine"
)

func TestState(t *testing.T) {
	dir := t.TempDir()
	none, err := readState(dir)
	require.NoError(t, err)
	require.Nil(t, none)
	s := &state{Boot: "b", Sysctls: host.Sysctls{"kernel/panic": "0"}, Folders: []string{"/x"}, Nodes: 3}
	require.NoError(t, s.write(dir))
	s.Complete = true
	require.NoError(t, s.write(dir))
	again, err := readState(dir)
	require.NoError(t, err)
	require.Equal(t, s, again)
	require.Equal(t, []string{"cp", "n1", "n2", "n3"}, machines(again))
	require.NoFileExists(t, filepath.Join(dir, newStateFile))
}

// removeDir removes a cluster's folder, and no other folder.
func TestRemoveDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	require.NoError(t, removeDir(dir), "not there")
	for _, interrupted := range []string{"", newStateFile} { // Up was killed before the state was written
		require.NoError(t, os.Mkdir(dir, 0o750))
		if interrupted != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, interrupted), nil, 0o600))
		}
		require.NoError(t, removeDir(dir))
		require.NoDirExists(t, dir)
	}
	require.NoError(t, os.Mkdir(dir, 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600))
	require.ErrorContains(t, removeDir(dir), "not a cluster's folder")
	require.FileExists(t, filepath.Join(dir, "thesis.tex"))
	require.NoError(t, (&state{}).write(dir))
	require.NoError(t, removeDir(dir))
	require.NoDirExists(t, dir)
}

func TestReserve(t *testing.T) {
	const gi = 1 << 30
	reserved, err := reserve(24*gi, 0)
	require.NoError(t, err)
	require.Equal(t, int64(12*gi), reserved)
	reserved, err = reserve(24*gi, 6*gi)
	require.NoError(t, err)
	require.Equal(t, int64(18*gi-evictionReserve), reserved)
	_, err = reserve(4*gi, 4*gi)
	require.ErrorContains(t, err, "this machine has 4096 MiB, of which 200 are never given to pods")
	_, err = reserve(4*gi, -1)
	require.Error(t, err)
}

func TestCanonical(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o750))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "link")))
	path, err := canonical(filepath.Join(dir, "link/new/cluster"))
	require.NoError(t, err)
	real, err := filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(real, "real/new/cluster"), path)
}

// Preflight reports all missing requirements together.
func TestPreflight(t *testing.T) {
	o := Options{Dir: "/var/log/cluster", Build: t.TempDir(), Nodes: machine.MaxNodes + 1, MemoryPerNode: 1 << 60, Images: []string{"/nowhere.tar"}}
	require.NoError(t, o.complete())
	err := o.Preflight()
	for _, want := range []string{"bin/kube is missing", "deb/usr/sbin/runc is missing", "/nowhere.tar", "51 nodes: want 1 to 50",
		"memory per node", "nodes do not see what is under /var/log"} {
		require.ErrorContains(t, err, want)
	}
}

// The addresses of a node and its pods never overlap with those of another node.
func TestAddresses(t *testing.T) {
	seen := map[string]bool{machine.HostAddress: true, machine.ControlAddress: true}
	for i := 1; i <= machine.MaxNodes; i++ {
		for _, text := range []string{machine.NodeAddress(i), machine.PodSubnet(i)} {
			require.False(t, seen[text], text)
			seen[text] = true
		}
		require.True(t, machine.Network(machine.PodNetwork).Contains(machine.Network(machine.PodSubnet(i)).IP))
	}
}
