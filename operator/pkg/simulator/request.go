// Package simulator runs requests on a simulated world: discrete events, continuous batching, chunked prompts, limited
// KV, shared prefixes. A table of truth gives the seconds of a step, the planner's bytes those of a transition, and
// policies decide in the loop. Equal input gives equal output. Pure: no I/O (readers take an io.Reader), no clock, no
// globals.
package simulator

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// BlockTokens is the number of tokens of a block whose id identifies shared prefixes, as in Mooncake's traces.
const BlockTokens = 512

// Request of a trace.
type Request struct {
	At     float64 // seconds from the start
	Prompt int     // tokens
	Output int     // tokens, at least 1
	Blocks []int32 // ids of its whole and last blocks of BlockTokens; equal ids mean equal prefixes. None: no sharing
}

const (
	// longest prompt or output, in tokens: far above real models, and sums stay far below 2^63
	longest = 1 << 24
	// latest time, in seconds
	latest = 1e12
)

func (r Request) check() error {
	if !(r.At >= 0 && r.At < latest) {
		return fmt.Errorf("arrival time is %v; want a finite number of seconds", r.At)
	}
	return r.checkTokens()
}

func (r Request) checkTokens() error {
	if r.Prompt < 1 || r.Prompt > longest || r.Output < 1 || r.Output > longest {
		return fmt.Errorf("found %d prompt tokens and %d output tokens; want 1 to %d each", r.Prompt, r.Output, longest)
	}
	return nil
}

// Times repeats each request `copies` times, with the copies up to half a second earlier or later, drawn by seed, which
// keeps the shape of the traffic. Copies share no prefixes with the first, nor with each other.
func Times(requests []Request, copies int, seed uint64) []Request {
	random := rand.New(rand.NewPCG(seed, 1))
	var out []Request
	for c := range copies {
		for _, q := range requests {
			if c > 0 {
				q.At = max(0, q.At+random.Float64()-.5)
				q.Blocks = nil
			}
			out = append(out, q)
		}
	}
	return ordered(out)
}

// Rate is a section of a generated load.
type Rate struct{ Seconds, PerSecond float64 }

// Generate returns Poisson arrivals at consecutive rates, with log-normal lengths of these means and a coefficient of
// variation of 1, by seed.
func Generate(rates []Rate, prompt, output float64, seed uint64) []Request {
	random := rand.New(rand.NewPCG(seed, 2))
	length := func(mean float64) int {
		sigma := math.Sqrt(math.Log(2))
		return min(max(1, int(mean*math.Exp(sigma*random.NormFloat64()-sigma*sigma/2))), longest)
	}
	var out []Request
	begin := 0.0
	for _, r := range rates {
		for at := begin + random.ExpFloat64()/r.PerSecond; at < begin+r.Seconds; at += random.ExpFloat64() / r.PerSecond {
			out = append(out, Request{At: at, Prompt: length(prompt), Output: length(output)})
		}
		begin += r.Seconds
	}
	return out
}

// LongTail are the lengths of a rollout's sequences: prompts of 256 to 767 tokens, outputs log-normal.
type LongTail struct {
	Median, Sigma float64
	Most          int // maximum tokens of an output
}

// Tail returns the defaults.
func Tail() LongTail { return LongTail{Median: 1500, Sigma: 1.2, Most: 32768} }

// Rollout draws n sequences that are all present at second 0, by seed.
func Rollout(n int, t LongTail, seed uint64) []Request {
	random := rand.New(rand.NewPCG(seed, 6))
	out := make([]Request, n)
	for i := range out {
		out[i] = Request{Prompt: 256 + random.IntN(512), Output: min(max(int(t.Median*math.Exp(t.Sigma*random.NormFloat64())), 16), t.Most)}
	}
	return out
}
