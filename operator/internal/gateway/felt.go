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

// felt is what the clients of this gateway felt.
type felt struct {
	tokens atomic.Uint64 // delivered so far, also of requests that run

	mu        sync.Mutex
	latencies telemetry.Latencies // of those that were answered

	arrived, answered, failed, left uint64
}

// clock of one request, on its way to the client.
type clock struct {
	felt        *felt
	m           *Metrics
	prompt      int
	born, first time.Time
	tokens      int
}

func (f *felt) start(m *Metrics, prompt int) *clock {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arrived++
	return &clock{felt: f, m: m, prompt: prompt, born: time.Now()}
}

// around what is done with a token: it is felt when the client has it.
func (c *clock) around(each func(*tangramv1.Token) error) func(*tangramv1.Token) error {
	return func(t *tangramv1.Token) error {
		if err := each(t); err != nil {
			return err
		}
		c.tokens++
		c.felt.tokens.Add(1)
		if c.tokens == 1 {
			c.first = time.Now()
			c.m.prompts.Add(float64(c.prompt))
			c.m.ttft.Observe(c.first.Sub(c.born).Seconds())
		}
		return nil
	}
}

// end of the request. What is none of the pool's errors comes from the client's side: it left, or takes nothing.
func (c *clock) end(err error) {
	now := time.Now()
	f := c.felt
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil && c.tokens > 0:
		f.answered++
		f.latencies.Note(c.first.Sub(c.born).Seconds(), now.Sub(c.first).Seconds(), c.tokens)
		c.m.latency.Observe(now.Sub(c.born).Seconds())
		if c.tokens > 1 {
			c.m.tpot.Observe(now.Sub(c.first).Seconds() / float64(c.tokens-1))
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
}
