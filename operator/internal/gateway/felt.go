package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// felt measures client latencies.
type felt struct {
	tokens atomic.Uint64 // delivered so far, also of running requests

	mu        sync.Mutex
	latencies telemetry.Latencies // of the answered requests

	arrived, answered, failed, left uint64

	waits waits
}

// waits has the longest waits for tokens that ended recently, by second.
type waits struct {
	born time.Time // origin of the seconds, by a monotonic clock

	mu      sync.Mutex
	last    time.Time // when any token was last delivered
	seconds [4]struct {
		at           int64 // seconds since born
		gap, silence time.Duration
	}
}

func (w *waits) second(t time.Time) int64 { return int64(t.Sub(w.born) / time.Second) }

// over: a request got one token at `before` and its next token now.
func (w *waits) over(before, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.second(now)
	s := &w.seconds[at%int64(len(w.seconds))]
	if s.at != at {
		s.at, s.gap, s.silence = at, 0, 0
	}
	s.gap = max(s.gap, now.Sub(before))
	s.silence = max(s.silence, now.Sub(w.last))
	w.last = now
}

// first records the first token of a request. It ends no gap between tokens, but restarts the silence.
func (w *waits) first(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = now
}

// longest returns the maxima of the current second and the two before.
func (w *waits) longest(now time.Time) (gap, silence time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.seconds {
		if w.second(now)-s.at <= 2 {
			gap, silence = max(gap, s.gap), max(silence, s.silence)
		}
	}
	return gap, silence
}

// clock measures one request, as its client sees it.
type clock struct {
	felt              *felt
	m                 *Metrics
	prompt            int
	born, first, last time.Time
	tokens            int
}

func (f *felt) start(m *Metrics, prompt int) *clock {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arrived++
	return &clock{felt: f, m: m, prompt: prompt, born: time.Now()}
}

// around wraps the delivery of a token. The token counts when the client has it.
func (c *clock) around(each func(*tangramv1.Token) error) func(*tangramv1.Token) error {
	return func(t *tangramv1.Token) error {
		if err := each(t); err != nil {
			return err
		}
		c.tokens++
		c.felt.tokens.Add(1)
		now := time.Now()
		if c.tokens > 1 {
			c.felt.waits.over(c.last, now)
			c.m.between.Observe(now.Sub(c.last).Seconds())
		} else {
			c.felt.waits.first(now)
		}
		c.last = now
		if c.tokens == 1 {
			c.first = now
			c.m.prompts.Add(float64(c.prompt))
			c.m.ttft.Observe(c.first.Sub(c.born).Seconds())
		}
		return nil
	}
}

// end of the request. An error that is not the pool's is the client's: it disconnected, or does not read.
func (c *clock) end(err error) {
	now := time.Now()
	f := c.felt
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil && c.tokens > 0:
		f.answered++
		f.latencies.Note(c.first.Sub(c.born).Seconds(), now.Sub(c.first).Seconds(), c.tokens)
		c.m.total.Observe(now.Sub(c.born).Seconds())
		if c.tokens > 1 {
			c.m.perToken.Observe(now.Sub(c.first).Seconds() / float64(c.tokens-1))
		}
	case err == nil || !errors.Is(err, context.Canceled) && (errors.Is(err, ErrBusy) || errors.Is(err, ErrNotReady) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrLost)):
		f.failed++
	default:
		f.left++
	}
}

func (f *felt) tell(r *tangramv1.TelemetryReport) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Arrived, r.Answered, r.Failed, r.Left, r.OutputTokens = f.arrived, f.answered, f.failed, f.left, f.tokens.Load()
	r.Latencies = f.latencies.Proto()
	gap, silence := f.waits.longest(time.Now())
	r.LongestGap, r.Silence = gap.Seconds(), silence.Seconds()
}
