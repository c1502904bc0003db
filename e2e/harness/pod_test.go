package harness

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process that cannot start is started again one at a time, as by a kubelet: its restarts do not multiply.
func TestAProcessThatCannotStartHasOneSuccessor(t *testing.T) {
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
	began := time.Now()
	require.NoError(t, p.startAgent(context.Background()))
	require.NoError(t, os.WriteFile(program, []byte(fails), 0o700)) //nolint:gosec // it is run
	count := func() int {
		wire, err := os.ReadFile(starts)
		require.NoError(t, err)
		return strings.Count(string(wire), "\n")
	}
	const enough = 10 // that doubled at each restart they would be far more than there is time for
	require.Eventually(t, func() bool { return count() >= enough }, time.Minute, 10*time.Millisecond)
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	require.LessOrEqual(t, count(), 2+int(time.Since(began)/restartAfter), "each waits for the one before")
}
