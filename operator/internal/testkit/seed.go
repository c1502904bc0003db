package testkit

import (
	"os"
	"strconv"
	"testing"
)

// Seed is the base of all seeds that tests draw: the decimal number in SEED, or 1. The same commit runs the same cases.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, text := uint64(1), os.Getenv("SEED")
	if text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SEED=%q is not a decimal number of 64 bits", text)
		}
	}
	t.Logf("SEED=%d", seed)
	return seed
}

// Nightly reports whether TIER=nightly requests the number of cases of a nightly run.
func Nightly() bool { return os.Getenv("TIER") == "nightly" }
