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

// window of serving. What clients saw in it is known when their requests are over.
type window struct {
	begin, end time.Time
	gap        float64 // the longest time between two tokens of a stream, seconds
	first      float64 // the longest wait for a first one
	tokens     int
}

func (w *window) rate() float64 { return float64(w.tokens) / w.end.Sub(w.begin).Seconds() }

// see what a request got in the window. A wait counts also if it began before or ended after.
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

// pair of windows of about the same length: one before a transition, and the one of it with some time after; and the transition alone.
type pair struct {
	without, with, during window
	name                  string
	fast, resize          bool // strategy Fast; the number of ranks changes
}

// keepAsking has so many streams, each with one request after another of so many tokens, until `end` lets the last ones finish and gives all.
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
			// Streams do not end together: the first answers have lengths of their own.
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

// percentile by the nearest rank: the least value that a share of all are no more than.
func percentile(values []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
