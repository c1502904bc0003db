package load

import "sync/atomic"

// Counters of requests and tokens, for whoever watches a load run. A nil one counts nothing.
type Counters struct{ open, streaming, done, lost, tokens atomic.Int64 }

// Counts at one time.
type Counts struct {
	Open, Done, Lost int64 // requests
	Streaming        int64 // of those that are open: a token has come
	Tokens           int64
}

// Now gives the counts.
func (c *Counters) Now() Counts {
	return Counts{Open: c.open.Load(), Done: c.done.Load(), Lost: c.lost.Load(), Streaming: c.streaming.Load(), Tokens: c.tokens.Load()}
}

func (c *Counters) begin() {
	if c != nil {
		c.open.Add(1)
	}
}

// took n tokens of a request, whose others were counted.
func (c *Counters) took(r *Result, n int) {
	if c == nil || n == 0 {
		return
	}
	if len(r.Tokens) == n {
		c.streaming.Add(1)
	}
	c.tokens.Add(int64(n))
}

// end of a request; how is in its result.
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
