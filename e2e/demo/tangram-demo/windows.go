package main

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// window is a period of serving. The clients' view of it is known when their requests have ended.
type window struct {
	begin, end time.Time
	gap        float64 // the longest time between two tokens of a stream, seconds
	first      float64 // the longest wait for a first token
	tokens     int
}

func (w *window) rate() float64 { return float64(w.tokens) / w.end.Sub(w.begin).Seconds() }

// see adds a request's tokens in the window. A wait across a border of the window counts in full.
func (w *window) see(r *load.Result) {
	last, longest := r.Sent, &w.first
	for _, token := range r.Tokens {
		if token.At.After(w.begin) && last.Before(w.end) {
			*longest = max(*longest, token.At.Sub(last).Seconds())
		}
		if token.At.After(w.begin) && !token.At.After(w.end) {
			w.tokens++
		}
		last, longest = token.At, &w.gap
	}
}

// pair has a window before a transition, one of about the same length with the transition and some time after it, and
// the transition alone.
type pair struct {
	without, with, during window
	name                  string
	fast, resize          bool // strategy Fast; the number of ranks changes
}

// keepAsking keeps this many streams running, each with consecutive requests of this many tokens, until `end` lets the
// last ones finish and returns all results.
func keepAsking(ctx context.Context, w *harness.World, streams, prompt, answer int) (end func() []*load.Result) {
	var mu sync.Mutex
	var results []*load.Result
	var wait sync.WaitGroup
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return ctx.Err() != nil
		}
	}
	for i := range streams {
		wait.Go(func() {
			// The first answers have different lengths, so that streams do not end together.
			for n, tokens := 0, answer*(i+1)/streams; !stopped(); n, tokens = n+1, answer {
				request := load.Request{MaxTokens: tokens, TopP: 1}
				for j := range prompt {
					request.Prompt = append(request.Prompt, uint32(1+(i*31+n*17+j*7)%250))
				}
				r := client(w).Do(ctx, request)
				mu.Lock()
				results = append(results, r)
				mu.Unlock()
			}
		})
	}
	return sync.OnceValue(func() []*load.Result {
		close(stop)
		wait.Wait()
		return results
	})
}

// percentile by the nearest rank: the smallest value that a share of all values does not exceed.
func percentile(values []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
