package walk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
)

// Fault points are on only if a flag of the process says so. The environment, which a template sets, has no effect: no
// point fails, and none leaves a trace.
func TestEnvironmentArmsNoFaultPoint(t *testing.T) {
	dir := t.TempDir()
	for _, point := range []string{"engine.before_exchange", "prepare.before"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, point+".armed"), nil, 0o600))
	}
	for _, name := range []string{"TANGRAM_FAULT_DIR", "FAULT_DIR"} {
		t.Setenv(name, dir)
	}
	for _, name := range []string{"TANGRAM_FAULTS", "FAULTS"} {
		t.Setenv(name, "prepare.before=error,prepare.before=error@2,stage.after=error,engine.before_exchange=kill,flip.before_commit=kill")
	}
	w := startTiny(t, harness.Options{Pods: []int{1, 1}}) // the processes have this environment
	apply(t, w, 2, "ExpertParallel")
	apply(t, w, 2, "TensorParallel")
	answers(t, w)
	audit(t, w, 2)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Len(t, files, 2, "what this test made: %v", files)
}
