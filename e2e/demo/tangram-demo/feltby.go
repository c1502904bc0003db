package main

import (
	"math"
	"slices"
	"time"

	"tangram.dev/e2e/load"
)

// felt has the clients' latencies: seconds to the first token, and the mean time between tokens of an answer.
type felt struct {
	Name            string  `json:"name"`
	Requests        int     `json:"requests"`
	TTFT50          float64 `json:"ttft_p50_seconds"`
	TTFT99          float64 `json:"ttft_p99_seconds"`
	TPOT50          float64 `json:"tpot_p50_seconds"`
	TPOT99          float64 `json:"tpot_p99_seconds"`
	TokensPerSecond float64 `json:"tokens_per_second"` // tokens that arrived between `from` and `to`
}

// feltIn computes the latencies of requests sent in [from, to); tokens per second count all tokens that arrived then.
func feltIn(name string, results []*load.Result, from, to time.Time) felt {
	f := felt{Name: name}
	var first, each []float64
	tokens := 0
	for _, r := range results {
		for _, t := range r.Tokens {
			if !t.At.Before(from) && t.At.Before(to) {
				tokens++
			}
		}
		n := len(r.Tokens)
		if r.Sent.Before(from) || !r.Sent.Before(to) || n == 0 || r.Err != nil {
			continue
		}
		f.Requests++
		first = append(first, r.Tokens[0].At.Sub(r.Sent).Seconds())
		if n > 1 {
			each = append(each, r.Tokens[n-1].At.Sub(r.Tokens[0].At).Seconds()/float64(n-1))
		}
	}
	f.TTFT50, f.TTFT99, f.TPOT50, f.TPOT99 = quantileOf(first, .5), quantileOf(first, .99), quantileOf(each, .5), quantileOf(each, .99)
	if seconds := to.Sub(from).Seconds(); seconds > 0 {
		f.TokensPerSecond = float64(tokens) / seconds
	}
	return f
}

// quantileOf returns the smallest value that a share q of the values does not exceed; 0 if there are no values.
func quantileOf(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted))))-1, 0), len(sorted)-1)]
}
