package placement

// Only on this architecture: elsewhere Go fuses multiply and add, which rounds differently, and may choose the other
// one of two equal changes.

import (
	"fmt"
	"go/format"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPinnedSteps(t *testing.T) { pinned(t, pinnedSteps()) }

func TestPinnedPlans(t *testing.T) { pinned(t, pinnedFull()) }

func TestPinnedGroups(t *testing.T) { pinned(t, pinnedGroups()) }

func pinned(t *testing.T, cases []pinnedCase) {
	t.Helper()
	var p Planner // one planner for all, to detect leftover state
	for _, c := range cases {
		got := c.plans(t, &p)
		if os.Getenv("UPDATE") == "" {
			require.Equal(t, pinnedPlans[c.name], got, c.name)
		}
		pinnedPlans[c.name] = got
	}
	if os.Getenv("UPDATE") == "" {
		return
	}
	out := strings.Builder{}
	out.WriteString("package placement\n\n// pinnedPlans as UPDATE=1 writes them (pinned_test.go).\nvar pinnedPlans = map[string]string{\n")
	for _, name := range slices.Sorted(maps.Keys(pinnedPlans)) {
		fmt.Fprintf(&out, "\t%q: `%s`,\n", name, pinnedPlans[name])
	}
	out.WriteString("}\n")
	source, err := format.Source([]byte(out.String()))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(pinnedFile, source, 0o600))
}
