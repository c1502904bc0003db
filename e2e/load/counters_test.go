package load

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCounters_WhenGapsOverlap(t *testing.T) {
	c, start := &Counters{}, time.Unix(100, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	r := &Result{}
	c.begin()
	for _, s := range []int{0, 1, 4, 6} {
		r.Tokens = append(r.Tokens, Token{At: at(s)})
		c.took(r, 1)
	}
	r.Tokens = append(r.Tokens, Token{At: at(9)}, Token{At: at(9)}) // two tokens in one chunk
	c.took(r, 2)
	c.end(r)
	require.Equal(t, []Gap{{at(0), at(1)}, {at(1), at(4)}, {at(4), at(6)}, {at(6), at(9)}}, c.Gaps(time.Time{}, at(100)))
	require.Equal(t, []Gap{{at(1), at(4)}, {at(4), at(6)}}, c.Gaps(at(2), at(5)))
	require.Equal(t, []Gap{{at(1), at(4)}}, c.Gaps(at(1), at(4)), "gaps that touch do not overlap")
	require.Equal(t, Counts{Done: 1, Tokens: 6}, c.Now())
	(*Counters)(nil).took(r, 1)
}
