package worlds

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Today is the number of the day whose samples are played, from 1970: that of DATE (2006-01-02), or of the clock (UTC).
func Today(t testing.TB) int {
	t.Helper()
	now := time.Now().UTC()
	if text := os.Getenv("DATE"); text != "" {
		given, err := time.Parse(time.DateOnly, text)
		require.NoError(t, err, "DATE")
		now = given
	}
	return int(now.Unix() / (24 * 3600))
}

// ByDay gives the cases whose turn it is today, where so many days share them; by night (NIGHTLY=1) all. For tests that take
// worlds of processes long: what a case shows, the others show nearly.
func ByDay[Case any](t testing.TB, days int, cases []Case) []Case {
	t.Helper()
	day := Today(t)
	if os.Getenv("NIGHTLY") == "1" {
		return cases
	}
	var out []Case
	for i, c := range cases {
		if i%days == day%days {
			out = append(out, c)
		}
	}
	t.Logf("%d of %d cases have their turn on day %d (DATE=%s)", len(out), len(cases), day, time.Unix(int64(day)*24*3600, 0).UTC().Format(time.DateOnly))
	return out
}
