package harness

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that cannot start is restarted one at a time, as by a kubelet: its restarts do not multiply.
func TestRestartsOfFailingProcessDoNotMultiply(t *testing.T) {
	dir := t.TempDir()
	starts := filepath.Join(dir, "starts")
	program := filepath.Join(dir, "agent/server/tangram-agent")
	require.NoError(t, os.MkdirAll(filepath.Dir(program), 0o750))
	works := "#!/bin/sh\necho >> " + starts + "\necho '{}' > \"$(grep -o '[^\"]*[.]ready' \"$2\" | head -1)\"\nsleep 0.2\n"
	fails := "#!/bin/sh\necho >> " + starts + "\nexit 1\n"
	require.NoError(t, os.WriteFile(program, []byte(works), 0o700)) //nolint:gosec // it is run
	t.Setenv("TANGRAM_CXX", dir)
	w := &World{o: Options{Dir: dir, Restart: true}, socketDir: dir, certs: dir, file: filepath.Join(dir, "world.json"), agentsFile: filepath.Join(dir, "agents")}
	p := &pod{w: w, engines: make([]*process, 1), meshes: make([]string, 1), serves: make([]string, 1)}
	w.pods = []*pod{p}
	require.NoError(t, p.startAgent(context.Background()))
	require.NoError(t, os.WriteFile(program, []byte(fails), 0o700)) //nolint:gosec // it is run
	count := func() int {
		wire, err := os.ReadFile(starts)
		require.NoError(t, err)
		return strings.Count(string(wire), "\n")
	}
	require.Eventually(t, func() bool { return count() >= 10 }, 4*time.Minute, 10*time.Millisecond)
	require.Equal(t, 1, watchers(), "each start waits for the end of the one before")
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
}

// watchers counts the goroutines that watch processes in this program.
func watchers() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), ".(*pod).watch(")
}
