package worlds

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tier of this run is environment variable TIER, which tests/stages.py sets: "test" (in CI), "check" or "nightly".
// Tests that are run by hand belong to "check".

// IsCI reports whether `make test` runs: a fixed, small set of cases that do not depend on the clock.
func IsCI() bool { return os.Getenv("TIER") == "test" }

// IsNightly reports whether `make nightly` runs: every case, whatever its duration.
func IsNightly() bool { return os.Getenv("TIER") == "nightly" }

// Cases returns the first n cases in `make test`, and all of them elsewhere.
func Cases[Case any](n int, cases []Case) []Case {
	if IsCI() {
		return cases[:n]
	}
	return cases
}

// Seed returns the seed of samples and random histories: environment variable SEED, 1 if it is not set. `make test` always uses 1, `make check`
// takes the seed from the commit, `make nightly` from the date; each prints it.
func Seed(t testing.TB) int {
	t.Helper()
	text := os.Getenv("SEED")
	if text == "" {
		return 1
	}
	seed, err := strconv.Atoi(text)
	require.NoError(t, err, "SEED")
	require.Positive(t, seed, "SEED")
	t.Logf("SEED=%d", seed)
	return seed
}
