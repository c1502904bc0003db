package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two requests: a gap is of one of them, silence is where neither got anything though one waited, and both are forgotten after some seconds.
func TestWaitsForTokens(t *testing.T) {
	w := waits{born: time.Now()}
	at := func(ms int) time.Time { return w.born.Add(time.Hour + time.Duration(ms)*time.Millisecond) }
	w.first(at(0))           // of the one
	w.first(at(100))         // of the other
	w.over(at(0), at(250))   // the one waited 250 ms, 150 of them in silence
	w.over(at(100), at(300)) // the other 200, after 50 of silence
	gap, silence := w.longest(at(400))
	require.Equal(t, []time.Duration{250 * time.Millisecond, 150 * time.Millisecond}, []time.Duration{gap, silence})
	w.first(at(5000)) // a third comes, after seconds in which nobody waited
	w.over(at(5000), at(5040))
	gap, silence = w.longest(at(5050))
	require.Equal(t, []time.Duration{40 * time.Millisecond, 40 * time.Millisecond}, []time.Duration{gap, silence})
	w.over(at(300), at(6010)) // the other was not served meanwhile, the third was
	gap, silence = w.longest(at(7900))
	require.Equal(t, []time.Duration{5710 * time.Millisecond, 970 * time.Millisecond}, []time.Duration{gap, silence}, "of this second and two before it")
	gap, silence = w.longest(at(9100))
	require.Zero(t, gap+silence)
}
