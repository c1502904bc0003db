package worlds

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCases_WhenTierIsSet(t *testing.T) {
	cases := []string{"a", "b", "c"}
	for tier, want := range map[string][]string{"test": {"a"}, "check": cases, "nightly": cases, "": cases} {
		t.Setenv("TIER", tier)
		require.Equal(t, want, Cases(1, cases), tier)
	}
}

func TestSeed_WhenSetInEnvironment(t *testing.T) {
	t.Setenv("SEED", "")
	require.Equal(t, 1, Seed(t))
	t.Setenv("SEED", "42")
	require.Equal(t, 42, Seed(t))
}
