package harness

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// FaultDir returns the folder of a pod's faults, with Options.FaultDirs.
func (w *World) FaultDir(index int) string {
	return filepath.Join(w.o.Dir, fmt.Sprintf("faults-p%d", index))
}

// FaultPoints returns the fault points that a repository's programs declare, and the actions of each besides delay and
// death: "error", "corrupt".
func FaultPoints(ctx context.Context, root string) (map[string][]string, error) {
	o := Options{Root: root}
	out := map[string][]string{}
	for _, program := range []string{"agent/server/tangram-agent", "e2e/engine/tangram-engine"} {
		wire, err := exec.CommandContext(ctx, o.cxx(program), "--list-fault-points").Output()
		if err != nil {
			return nil, fmt.Errorf("%s --list-fault-points: %w", program, err)
		}
		for line := range strings.Lines(string(wire)) {
			words := strings.Fields(line)
			if len(words) == 0 {
				return nil, fmt.Errorf("%s --list-fault-points: an empty line", program)
			}
			out[words[0]] = words[1:]
		}
	}
	return out, nil
}
