package worlds

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Days share all cases; each has some, and can be played again.
func TestByDay(t *testing.T) {
	t.Setenv("NIGHTLY", "")
	cases := []string{"a", "b", "c", "d", "e"}
	for days := 1; days <= 5; days++ {
		var all []string
		for _, date := range []string{"2026-11-24", "2026-11-25", "2026-11-26", "2026-11-27", "2026-11-28"}[:days] {
			t.Setenv("DATE", date)
			today := ByDay(t, days, cases)
			require.NotEmpty(t, today)
			require.Equal(t, today, ByDay(t, days, cases))
			all = append(all, today...)
		}
		slices.Sort(all)
		require.Equal(t, cases, all)
	}
	t.Setenv("NIGHTLY", "1")
	require.Equal(t, cases, ByDay(t, 5, cases))
}
