package policy_test

import (
	"cmp"
	"math"
	"slices"

	"tangram.dev/operator/pkg/kernels"
)

// crowd is a group of requests that arrived together, in a queue in which each waits until all earlier ones are
// computed.
type crowd struct {
	at, requests float64
	ahead        float64 // prompt tokens before its middle
	first        float64 // seconds to its first token; NaN: not yet
	each         float64 // of its later tokens
}

// replayed recomputes the latencies of the requests of the last seconds, in the best of some shapes of one width for
// each.
func (c *widthChecker) replayed(w *wide, shapes []kernels.Shape, seconds, chunk, first, each float64) (within, ttft, tpot float64) {
	kept := func(q crowd) bool { return q.first <= asked.TTFT && q.each <= asked.TPOT }
	var crowds []crowd
	for _, s := range shapes {
		for k, q := range c.crowds(w, s, seconds, chunk) {
			q.first, q.each = q.first*first, q.each*each
			switch {
			case k == len(crowds):
				crowds = append(crowds, q)
			case kept(q) && !kept(crowds[k]), kept(q) == kept(crowds[k]) && q.first < crowds[k].first:
				crowds[k] = q
			}
		}
	}
	var all, good float64
	for _, q := range crowds {
		all += q.requests
		if kept(q) {
			good += q.requests
		}
	}
	if all == 0 {
		return 1, 0, 0
	}
	quantile := func(of func(crowd) float64) float64 {
		slices.SortFunc(crowds, func(a, b crowd) int { return cmp.Compare(of(a), of(b)) })
		left := asked.Share * all
		for _, q := range crowds {
			if left -= q.requests; left <= 0 {
				return of(q)
			}
		}
		return math.NaN()
	}
	return good / all, quantile(func(q crowd) float64 { return q.first }), quantile(func(q crowd) float64 { return q.each })
}

// crowds of the last seconds in one shape: a queue with its own times instead of a wait by the current speed, in
// quarters of seconds, and later tokens by the steps after the first one, not before it.
func (c *widthChecker) crowds(w *wide, shape kernels.Shape, seconds, chunk float64) []crowd {
	const prompt, output, ticks = 1500.0, 100.0, 4
	groups := float64(shape.Groups())
	room := float64(w.tokens(shape)) / (prompt + output)
	full := chunk * float64(shape.AttentionGroup) // of a group
	var crowds []crowd
	var ends, tokens []float64 // times, and the tokens that a decoding request has by then
	var came, done, decoding, made float64
	one, part := 0.0, 1.0
	last := 0 // of the waiting ones
	for i := range c.at {
		if c.at[i] < c.before.At-seconds {
			continue
		}
		n := c.arrive[i] * c.times
		if n > 0 {
			crowds = append(crowds, crowd{at: c.at[i], requests: n, ahead: came + n*prompt/2, first: math.NaN(), each: math.NaN()})
		}
		for tick := range ticks {
			now := c.at[i] - 1 + float64(tick+1)/ticks
			came += n * prompt / ticks
			queued := came - done
			plain := c.seconds(shape, decoding, 0)
			most := full * min(groups, max(1, queued/prompt))
			part = max(min(max(queued, n*prompt*max(one, plain), min(prompt, full)), most), 1)
			one = c.seconds(shape, decoding, part)
			steps := 1.0 / ticks / plain
			if queued > 0 && decoding < room {
				some := min(queued/part, 1.0/ticks/one, (room-decoding)*prompt/part)
				done += some * part
				decoding += some * part / prompt
				steps = some + max(0, 1.0/ticks-some*one)/plain
			}
			decoding *= math.Exp(-steps / output)
			made += steps
			ends, tokens = append(ends, now), append(tokens, made)
			for last < len(crowds) && crowds[last].ahead <= done+1e-6*came {
				// Half a step passes before its turn, and its own prompts take one step, or more if they are long.
				crowds[last].first = max(0, now-1.0/ticks-crowds[last].at+.5) + one*(.5+max(1, prompt/full))
				last++
			}
		}
	}
	// Later tokens: until as many steps have passed as a response has tokens.
	for k := range crowds {
		q := &crowds[k]
		if math.IsNaN(q.first) {
			q.first = c.before.At - q.at + .5 + (q.ahead-done)/part*one // at the speed of the last second
			q.each = one
			continue
		}
		from, _ := slices.BinarySearch(ends, q.at+q.first-.5)
		from = min(from, len(ends)-2)
		to := from + 1
		for to < len(ends)-1 && tokens[to]-tokens[from] < output {
			to++
		}
		q.each = (ends[to] - ends[from]) / (tokens[to] - tokens[from])
	}
	return crowds
}
