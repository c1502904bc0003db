package load

import (
	"sync"
	"sync/atomic"
	"time"
)

// Counters counts requests and tokens while a load runs. A nil pointer counts nothing.
type Counters struct {
	open, streaming, done, lost, tokens atomic.Int64

	mu   sync.Mutex
	gaps []Gap
}

// Gap is the time between two consecutive tokens of one stream.
type Gap struct{ From, To time.Time }

// Counts are the values at one time.
type Counts struct {
	Open, Done, Lost int64 // requests
	Streaming        int64 // open requests that have received a token
	Tokens           int64
}

// Now returns the present counts.
func (c *Counters) Now() Counts {
	return Counts{Open: c.open.Load(), Done: c.done.Load(), Lost: c.lost.Load(), Streaming: c.streaming.Load(), Tokens: c.tokens.Load()}
}

// Gaps returns the gaps that ended so far and overlap from..to, in the order of their ends.
func (c *Counters) Gaps(from, to time.Time) []Gap {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Gap
	for _, g := range c.gaps {
		if g.To.After(from) && g.From.Before(to) {
			out = append(out, g)
		}
	}
	return out
}

func (c *Counters) begin() {
	if c != nil {
		c.open.Add(1)
	}
}

// took counts the last n tokens of a request.
func (c *Counters) took(r *Result, n int) {
	if c == nil || n == 0 {
		return
	}
	if len(r.Tokens) == n {
		c.streaming.Add(1)
	}
	c.tokens.Add(int64(n))
	if first := len(r.Tokens) - n; first > 0 {
		c.mu.Lock()
		c.gaps = append(c.gaps, Gap{r.Tokens[first-1].At, r.Tokens[first].At})
		c.mu.Unlock()
	}
}

// end counts the end of a request by its result.
func (c *Counters) end(r *Result) {
	if c == nil {
		return
	}
	c.open.Add(-1)
	if len(r.Tokens) > 0 {
		c.streaming.Add(-1)
	}
	if r.Err != nil {
		c.lost.Add(1)
	} else {
		c.done.Add(1)
	}
}
