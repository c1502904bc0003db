package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two requests: a gap belongs to one; in a silence, no request gets a token while one waits. Both are forgotten soon.
func TestWaitsReportLongestGapAndSilence(t *testing.T) {
	w := waits{born: time.Now()}
	at := func(ms int) time.Time { return w.born.Add(time.Hour + time.Duration(ms)*time.Millisecond) }
	w.first(at(0))           // of request 1
	w.first(at(100))         // of request 2
	w.over(at(0), at(250))   // request 1 waited 250 ms, 150 of them in silence
	w.over(at(100), at(300)) // request 2 waited 200 ms, 50 of them in silence
	gap, silence := w.longest(at(400))
	require.Equal(t, []time.Duration{250 * time.Millisecond, 150 * time.Millisecond}, []time.Duration{gap, silence})
	w.first(at(5000)) // request 3 starts, after seconds without a token
	w.over(at(5000), at(5040))
	gap, silence = w.longest(at(5050))
	require.Equal(t, []time.Duration{40 * time.Millisecond, 40 * time.Millisecond}, []time.Duration{gap, silence})
	w.over(at(300), at(6010)) // request 2 got no token meanwhile, request 3 did
	gap, silence = w.longest(at(7900))
	require.Equal(t, []time.Duration{5710 * time.Millisecond, 970 * time.Millisecond}, []time.Duration{gap, silence}, "of this second and two before it")
	gap, silence = w.longest(at(9100))
	require.Zero(t, gap+silence)
}
