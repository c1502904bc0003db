package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Equal files of an image become one file, in any snapshot; different ones (also by mode) stay separate.
func TestNodesShareImageFiles(t *testing.T) {
	dir := t.TempDir()
	large := bytes.Repeat([]byte("weights."), worthSharing/8)
	other := bytes.Replace(large, []byte("weights."), []byte("changes."), 1)
	write := func(path string, content []byte, mode os.FileMode) string {
		path = filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, content, mode))
		return path
	}
	pairs := map[string][2]string{}
	for name, of := range map[string]struct {
		content [2][]byte
		modes   [2]os.FileMode
	}{
		"same": {[2][]byte{large, large}, [2]os.FileMode{0o644, 0o644}}, "small": {[2][]byte{large[:100], large[:100]}, [2]os.FileMode{0o644, 0o644}},
		"content": {[2][]byte{large, other}, [2]os.FileMode{0o644, 0o644}}, "mode": {[2][]byte{large, large}, [2]os.FileMode{0o644, 0o600}},
	} {
		pairs[name] = [2]string{write("n1/"+snapshotDir+"/7/fs/lib/"+name, of.content[0], of.modes[0]), write("n2/"+snapshotDir+"/9/fs/lib/"+name, of.content[1], of.modes[1])}
	}
	pairs["blob"] = [2]string{write("n1/"+contentDir+"/sha256/ab", large, 0o444), write("n2/"+contentDir+"/sha256/ab", large, 0o444)}

	homes := []string{filepath.Join(dir, "n1"), filepath.Join(dir, "n2")}
	freed, err := share(homes)
	require.NoError(t, err)
	require.EqualValues(t, 2*len(large), freed)
	for name, pair := range pairs {
		a, err := os.Stat(pair[0])
		require.NoError(t, err)
		b, err := os.Stat(pair[1])
		require.NoError(t, err)
		require.Equal(t, name == "same" || name == "blob", os.SameFile(a, b), name)
	}
	content, err := os.ReadFile(pairs["content"][1])
	require.NoError(t, err)
	require.Equal(t, other, content)
	freed, err = share(homes)
	require.NoError(t, err)
	require.Zero(t, freed, "once")
}
