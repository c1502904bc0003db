package walk

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/tests/internal/worlds"
)

// The API rejects flags in spec.engine.args that the operator sets, by their full names, because the engine accepts no
// abbreviations.
func TestAbbreviatedFlagsAreRejected(t *testing.T) {
	program := filepath.Join(cmp.Or(os.Getenv("TANGRAM_CXX"), filepath.Join(worlds.Root, "build/cxx")), "e2e/engine/tangram-engine")
	given := []string{"--agent-socket=a", "--token-file=t", "--tls-ca=ca", "--tls-cert=cert", "--tls-key=key"}
	for _, flag := range []string{"--insecure", "--insecure-fabri", "--dev", "--tls-ce", "--mesh", "--serve", "--adv", "--token", "-insecure-fabric", "--Insecure-Fabric", "--insecure_fabric"} {
		for _, more := range [][]string{{flag}, {flag + "=1"}, {flag, "1"}} {
			said, err := exec.CommandContext(t.Context(), program, append(given, more...)...).CombinedOutput()
			require.Error(t, err, "%v", more)
			require.Contains(t, string(said), "not expected", "%v", more)
		}
	}
}
