package load

import "sync/atomic"

// Counters of requests and tokens, for whoever watches a load run. A nil one counts nothing.
type Counters struct{ open, done, lost, tokens atomic.Int64 }

// Counts at one time.
type Counts struct {
	Open, Done, Lost int64 // requests
	Tokens           int64
}

// Now gives the counts.
func (c *Counters) Now() Counts {
	return Counts{c.open.Load(), c.done.Load(), c.lost.Load(), c.tokens.Load()}
}

func (c *Counters) begin() {
	if c != nil {
		c.open.Add(1)
	}
}

func (c *Counters) token(n int) {
	if c != nil {
		c.tokens.Add(int64(n))
	}
}

// end of a request; how is in its result.
func (c *Counters) end(r *Result) {
	if c == nil {
		return
	}
	c.open.Add(-1)
	if r.Err != nil {
		c.lost.Add(1)
	} else {
		c.done.Add(1)
	}
}
