package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"
)

// tree makes files, some of them programs, links and an empty folder.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"lib/deep", "empty", "cache", "lib/test"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	for file, mode := range map[string]os.FileMode{"lib/deep/text": 0o600, "lib/run": 0o700, "cache/x": 0o600, "lib/test/x": 0o600, "lib/a.h": 0o600} {
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(file), mode))
	}
	require.NoError(t, os.Symlink("deep/text", filepath.Join(root, "lib/link")))
	return root
}

func TestBuildCopiesFoldersExceptExcluded(t *testing.T) {
	source := tree(t)
	bash, err := os.ReadFile(dynamic)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(source, "lib/bash"), bash, 0o700)) //nolint:gosec // to be run
	spec := Spec{Name: "tangram.dev/probe:test", Entrypoint: []string{"/opt/it/lib/bash"}, Files: []File{{source, "/opt/it"}},
		Exclude: []string{"/opt/it/lib/test", "cache", "*.h"}}
	out := filepath.Join(t.TempDir(), "x.tar")
	require.NoError(t, spec.Build(t.Context(), out))
	built, err := tarball.ImageFromPath(out, nil)
	require.NoError(t, err)
	layers, err := built.Layers()
	require.NoError(t, err)
	root := filepath.Join(t.TempDir(), "root")
	for _, layer := range layers {
		reader, err := layer.Uncompressed()
		require.NoError(t, err)
		unpack(t, reader, root)
	}
	for path, mode := range map[string]os.FileMode{"lib/deep/text": 0o644, "lib/run": 0o755, "lib/deep": 0o755 | os.ModeDir, "empty": 0o755 | os.ModeDir} {
		info, err := os.Stat(filepath.Join(root, "opt/it", path))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), path)
	}
	to, err := os.Readlink(filepath.Join(root, "opt/it/lib/link"))
	require.NoError(t, err)
	require.Equal(t, "deep/text", to)
	for _, path := range []string{"lib/test", "cache", "lib/a.h"} {
		require.NoFileExists(t, filepath.Join(root, "opt/it", path))
		require.NoDirExists(t, filepath.Join(root, "opt/it", path))
	}
	if os.Geteuid() == 0 { // its libraries are in the image
		output, err := exec.CommandContext(t.Context(), "chroot", root, "/opt/it/lib/bash", "-c", "echo $(</opt/it/lib/link)").CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.Equal(t, "lib/deep/text\n", string(output))
	}
}

func TestLinksOutOfFolderAreRejected(t *testing.T) {
	for _, to := range []string{"/etc/passwd", "../../etc/passwd"} {
		source := tree(t)
		require.NoError(t, os.Symlink(to, filepath.Join(source, "lib/out")))
		_, err := expand([]File{{source, "/opt/it"}}, nil)
		require.ErrorContains(t, err, "the image would not have it", to)
	}
}

// A library in a folder of the image is found there by its neighbors, and is not added again at its path on this
// machine.
func TestImageLibrariesAreAddedOnce(t *testing.T) {
	linker, err := newLinker(t.Context())
	require.NoError(t, err)
	needed, err := linker.closure([]string{dynamic})
	require.NoError(t, err)
	require.NotEmpty(t, needed)
	var all []entry
	for _, library := range needed {
		all = append(all, entry{path: filepath.Join("opt", filepath.Base(library)), source: library})
	}
	linker.cache = map[string][]string{}
	got, err := libraries(linker, append(all, entry{path: "bin/bash", source: dynamic}))
	require.NoError(t, err)
	require.Empty(t, got)
}
