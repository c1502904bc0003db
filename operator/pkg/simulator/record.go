package simulator

import (
	"math"

	"tangram.dev/operator/pkg/policy"
	"tangram.dev/operator/pkg/telemetry"
)

// record of client latencies: of all requests, and of recently ended ones, as gateways count them.
type record struct {
	c             *Config
	requests      []Request
	firsts, lasts []float64

	ended []ended // recently, in order of their end
	felt  histogram
	each  histogram
	kept  int

	sums Sums
}

// Sums over ended responses.
type Sums struct {
	Answers, Longer  int     // all; those with more than one token
	FirstTokens      float64 // seconds
	PerTokens        float64 // seconds, means of the longer ones
	Prompts, Outputs int     // tokens
}

type ended struct {
	at     float64
	first  int32 // buckets
	each   int32
	one    bool // one token: no time between tokens
	within bool
}

// lateSeconds is the period of Felt.
const lateSeconds = 60

func newRecord(c *Config, requests []Request) *record {
	return &record{c: c, requests: requests, firsts: make([]float64, len(requests)), lasts: make([]float64, len(requests)), felt: histogram{}, each: histogram{}}
}

func (r *record) first(i int32, s float64) { r.firsts[i] = s }

func (r *record) done(i int32, s, now float64) {
	r.lasts[i] = s
	within, each := r.within(int(i))
	e := ended{at: now, first: telemetry.Bucket(r.firsts[i]), each: telemetry.Bucket(each), one: r.requests[i].Output == 1, within: within}
	r.ended = append(r.ended, e)
	r.count(e, 1)
	r.sums.Answers++
	r.sums.FirstTokens += r.firsts[i]
	if !e.one {
		r.sums.Longer++
		r.sums.PerTokens += each
	}
	r.sums.Prompts += r.requests[i].Prompt
	r.sums.Outputs += r.requests[i].Output
}

// within returns whether a response meets the SLO, and its seconds between tokens.
func (r *record) within(i int) (bool, float64) {
	kept := func(seconds, limit float64) bool { return limit == 0 || seconds <= limit }
	within, each := kept(r.firsts[i], r.c.TTFT), 0.0
	if n := r.requests[i].Output; n > 1 {
		each = (r.lasts[i] - r.firsts[i]) / float64(n-1)
		within = within && kept(each, r.c.TPOT)
	}
	return within, each
}

func (r *record) count(e ended, by int) {
	r.felt.add(e.first, by)
	if !e.one {
		r.each.add(e.each, by)
	}
	if e.within {
		r.kept += by
	}
}

// lately returns the client latencies of the responses that ended in the last minute.
func (r *record) lately(now float64) policy.Felt {
	old := 0
	for old < len(r.ended) && r.ended[old].at < now-lateSeconds {
		r.count(r.ended[old], -1)
		old++
	}
	r.ended = r.ended[old:]
	if len(r.ended) == 0 {
		return policy.Felt{}
	}
	return policy.Felt{Answers: len(r.ended), Within: float64(r.kept) / float64(len(r.ended)), FirstToken: r.felt.quantile(r.c.Share), PerToken: r.each.quantile(r.c.Share)}
}

// histogram by the buckets of telemetry.
type histogram struct {
	counts map[int32]int
	total  int
}

func (h *histogram) add(bucket int32, by int) {
	if h.counts == nil {
		h.counts = map[int32]int{}
	}
	h.counts[bucket] += by
	h.total += by
}

func (h *histogram) quantile(q float64) float64 {
	low, high := telemetry.Bucket(0), telemetry.Bucket(1e9)
	left := max(1, int(math.Ceil(q*float64(h.total))))
	for b := low; b <= high && h.total > 0; b++ {
		if left -= h.counts[b]; left <= 0 {
			return telemetry.Bound(b)
		}
	}
	return 0
}
