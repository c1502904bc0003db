package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const wait = 4 * time.Minute // only a hang reaches this limit

// tools makes a repository whose programs are scripts that record their calls; `up` replaces tangram-cluster up,
// `kubectl` replaces kubectl.
func tools(t *testing.T, up, kubectl string) (o options, calls func() []string) {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o700)) //nolint:gosec // a program
	}
	writeTool(t, root, "build/bin/tangram-cluster", "case $1 in up) "+up+";; esac")
	writeTool(t, root, "build/bin/kubectl", kubectl)
	writeTool(t, root, "build/bin/helm", "")
	writeTool(t, root, "build/bin/tangram", "echo {}")
	writeTool(t, root, "path/go", "")
	for _, p := range []string{"build/cxx/agent/server/tangram-agent", "build/cxx/agent/server/tangram-hook", "build/cxx/e2e/engine/tangram-engine",
		"build/images/bin/tangram-operator", "build/images/bin/tangram-gateway", "build/models/deep/config.json", "build/models/tiny/config.json", "operator/go.mod"} {
		write(p, "x")
	}
	t.Setenv("PATH", filepath.Join(root, "path")+":"+os.Getenv("PATH"))
	wire, err := os.ReadFile(filepath.Join("../../..", manifests, "20-moedeployment.yaml"))
	require.NoError(t, err)
	write(filepath.Join(manifests, "20-moedeployment.yaml"), string(wire))
	return options{ranks: 4, root: root, out: filepath.Join(root, "out"), clusterDir: filepath.Join(root, "build/cluster"), span: time.Second}, func() []string {
		text, err := os.ReadFile(filepath.Join(root, "calls"))
		require.NoError(t, err)
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

// writeTool writes a script that appends its name and arguments to the file calls, and then runs `rest`.
func writeTool(t *testing.T, root, path, rest string) {
	t.Helper()
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	text := "#!/bin/sh\necho " + filepath.Base(path) + " \"$@\" >> " + filepath.Join(root, "calls") + "\n" + rest + "\n"
	require.NoError(t, os.WriteFile(path, []byte(text), 0o700)) //nolint:gosec // a program
}

// names returns the names of the called programs, each with its first argument.
func names(calls []string) []string {
	var all []string
	for _, c := range calls {
		words := strings.Fields(c)
		all = append(all, words[0]+" "+words[1])
	}
	return all
}

func TestFailedClusterIsTakenDown(t *testing.T) {
	o, calls := tools(t, "echo no overlayfs >&2; exit 1", "")
	err := onCluster(t.Context(), o)
	require.ErrorContains(t, err, "no overlayfs")
	all := names(calls())
	require.Equal(t, []string{"tangram-cluster up", "tangram-cluster down"}, all[len(all)-2:])
}

func TestUnreadyWorldIsDiagnosedAndTakenDown(t *testing.T) {
	o, calls := tools(t, "true", `case "$*" in *wait*) echo timed out waiting >&2; exit 1;; esac`)
	require.ErrorContains(t, onCluster(t.Context(), o), "timed out waiting")
	all := names(calls())
	require.Equal(t, "tangram-cluster down", all[len(all)-1])
	require.Contains(t, all, "helm upgrade")
	diagnosed := 0
	for i, call := range all {
		if call == "kubectl -n" && i > 0 {
			diagnosed++
		}
	}
	require.Greater(t, diagnosed, 3, "%v", all)
}

func TestEnginesGetMinStepFlag(t *testing.T) {
	o, _ := tools(t, "true", `case "$*" in *"apply -f -"*) cat > "$0.applied";; *wait*) exit 1;; esac`)
	o.leastStep = 200 * time.Millisecond
	require.Error(t, onCluster(t.Context(), o), "the world is never ready")
	applied, err := os.ReadFile(filepath.Join(o.root, "build/bin/kubectl.applied"))
	require.NoError(t, err)
	var world struct {
		Kind string
		Spec struct{ Engine struct{ Args []string } }
	}
	require.NoError(t, yaml.Unmarshal(applied, &world))
	require.Equal(t, "MoEDeployment", world.Kind)
	require.Subset(t, world.Spec.Engine.Args, []string{"--min-step-ms", "200"})
}

func TestInterruptedDemoIsTakenDown(t *testing.T) {
	o, calls := tools(t, "exec sleep 3600", "")
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- onCluster(ctx, o) }()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(o.root, "calls"))
		return err == nil && strings.Contains(string(text), "tangram-cluster up")
	}, wait, 10*time.Millisecond)
	interrupt()
	require.ErrorIs(t, <-ended, context.Canceled)
	all := names(calls())
	require.Equal(t, "tangram-cluster down", all[len(all)-1])
}

func TestKeepPreservesCluster(t *testing.T) {
	o, calls := tools(t, "exit 1", "")
	o.keep = true
	require.Error(t, onCluster(t.Context(), o))
	require.NotContains(t, names(calls()), "tangram-cluster down")
}

func TestImagesAreBuiltOnce(t *testing.T) {
	o, calls := tools(t, "exit 1", "")
	// Files that the script does not write; the second run needs them.
	for _, name := range []string{"agent", "engine", "operator", "gateway"} {
		require.NoError(t, os.WriteFile(filepath.Join(o.root, "build/images", name+".tar"), nil, 0o600))
	}
	for range 2 {
		require.Error(t, onCluster(t.Context(), o))
	}
	made := strings.Count(strings.Join(calls(), "\n"), "tangram-cluster build-image")
	require.Equal(t, 4, made)
	require.NoError(t, os.WriteFile(filepath.Join(o.root, "build/cxx/agent/server/tangram-hook"), []byte("changed"), 0o600))
	require.Error(t, onCluster(t.Context(), o))
	require.Equal(t, made+1, strings.Count(strings.Join(calls(), "\n"), "tangram-cluster build-image"))
}
