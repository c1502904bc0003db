package simulator

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

// Mode that the world can serve in.
type Mode struct {
	Truth       *kernels.Step
	GroupTokens int // KV capacity of an attention group
	// Imbalance of the experts: load of the busiest rank over the mean, beyond the routing of Truth; 0: as in Truth.
	Imbalance float64
}

func (m *Mode) seconds(loads []kernels.Load) float64 {
	if m.Imbalance == 0 {
		return m.Truth.Seconds(loads)
	}
	return m.Truth.Skewed(loads, m.Imbalance)
}

// Nodes is the room of the cluster from a time on.
type Nodes struct {
	At    float64
	Ranks int
}

// Config of a world. Zero fields take their defaults (filled).
type Config struct {
	Modes       []Mode
	Start       int                      // index of the initial mode
	Switches    [][]costmodel.Transition // from, to
	Rates       costmodel.Rates          // the true ones
	ChunkTokens int                      // of a step, of all ranks; default 8192
	RankTokens  int                      // above 0: instead, of a step, of each rank: larger worlds have larger steps
	Noise       float64                  // relative deviation of a step from the truth
	Seed        uint64
	Tick        float64 // seconds between two calls of the policy; default 0.5
	Concurrency int     // above 0 a closed loop: this many requests at a time, without the times of the trace
	Router      Router
	Composer    Composer
	Horizon     float64 // maximum seconds; default 30 days. Requests that cannot end by then are rejected immediately
	Sampled     bool    // fill Result.Samples
	TTFT, TPOT  float64 // seconds of an SLO, for Result.Within; 0: no limit
	Share       float64 // share of responses of the SLO: the quantile that policies get; default 0.9
	PodSeconds  float64 // from the request for a pod until its rank is ready, if a shape needs more
	Standby     int     // ready ranks beyond the serving ones; they join immediately, are replaced, and cost as all do
	Nodes       []Nodes // cluster's room in ranks, from a time on; none: unlimited
}

func (c Config) filled() Config {
	if c.ChunkTokens == 0 {
		c.ChunkTokens = 8192
	}
	if c.Tick == 0 {
		c.Tick = .5
	}
	if c.Router == nil {
		c.Router = LeastWork{}
	}
	if c.Composer == nil {
		c.Composer = Even{}
	}
	if c.Share == 0 {
		c.Share = .9
	}
	if c.Horizon == 0 {
		c.Horizon = 30 * 86400
	}
	return c
}

// world is all mutable state; clone returns an independent copy.
type world struct {
	c        *Config
	requests []Request
	now      float64
	next     int // request to arrive
	mode     int
	waiting  []arrived
	live     []live
	free     []int32
	groups   []group
	ends     ends
	noise    rand.PCG
	running  int

	counts   policy.Telemetry // counters, and sums that change by little
	latency  float64          // of finished requests, seconds
	arrivals float64          // sum of the arrival times of the requests in the world
	inside   int
	lost     int // cached tokens that switches dropped
	stalled  float64
	switches int

	view   []Group // scratch of a step
	shares []int
	loads  []kernels.Load
	cached []int

	observe func(kernels.Shape, costmodel.Work, float64) // nil in forks
	record  *record                                      // nil in forks
	pods    pods
}

type arrived struct {
	request int32
	at      float64
}

// live is an admitted request.
type live struct {
	arrived
	group   int32
	done    int // computed prompt tokens
	decodes bool
}

type group struct {
	queue    []int32 // of live, with prompts to compute, in order of arrival
	queued   int
	decoding int
	context  int // tokens of the decoding requests
	reserved int
	cache    cache
}

// end of a live request, at a step.
type end struct {
	step uint64
	live int32
}

type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].step < e[j].step }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newWorld(c *Config, requests []Request) (*world, error) {
	if len(c.Modes) == 0 || c.Start < 0 || c.Start >= len(c.Modes) || len(c.Switches) != len(c.Modes) {
		return nil, fmt.Errorf("simulator: %d modes, start %d, switches from %d modes", len(c.Modes), c.Start, len(c.Switches))
	}
	if err := c.Rates.Check(); err != nil {
		return nil, err
	}
	least := c.Modes[0].GroupTokens
	for _, m := range c.Modes {
		least = min(least, m.GroupTokens)
	}
	for i, r := range requests {
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("simulator: request %d: %w", i, err)
		}
		if r.Prompt+r.Output > least {
			return nil, fmt.Errorf("simulator: request %d needs %d tokens of KV cache and a group has %d: use more ranks or another mode", i, r.Prompt+r.Output, least)
		}
		if i > 0 && r.At < requests[i-1].At {
			return nil, fmt.Errorf("simulator: request %d arrives before the previous request", i)
		}
	}
	if err := c.ends(requests); err != nil {
		return nil, err
	}
	if c.Standby < 0 || c.Standby > 0 && len(c.Nodes) > 0 {
		return nil, fmt.Errorf("simulator: %d ranks that stand by, room in the cluster said: at least 0, and room is not modelled beside them", c.Standby)
	}
	w := &world{c: c, requests: requests, mode: c.Start, noise: *rand.NewPCG(c.Seed, 3), pods: pods{there: c.Modes[c.Start].Truth.Shape().Ranks, standing: c.Standby, wanted: -1}}
	w.regroup()
	return w, nil
}

func (w *world) clone() *world {
	o := *w
	o.waiting, o.live, o.free, o.ends = slices.Clone(w.waiting), slices.Clone(w.live), slices.Clone(w.free), slices.Clone(w.ends)
	o.groups = slices.Clone(w.groups)
	for i := range o.groups {
		o.groups[i].queue = slices.Clone(w.groups[i].queue)
		o.groups[i].cache = w.groups[i].cache.clone()
	}
	o.view, o.shares, o.loads, o.cached = slices.Clone(w.view), slices.Clone(w.shares), slices.Clone(w.loads), slices.Clone(w.cached)
	o.observe, o.record = nil, nil
	return &o
}

// chunk is the maximum number of tokens of a step in a shape.
func (c *Config) chunk(s kernels.Shape) int {
	if c.RankTokens > 0 {
		return c.RankTokens * s.Ranks
	}
	return c.ChunkTokens
}

func (w *world) shape() kernels.Shape { return w.c.Modes[w.mode].Truth.Shape() }

// spent is the sum of the latencies so far, including unfinished requests.
func (w *world) spent() float64 { return w.latency + float64(w.inside)*w.now - w.arrivals }

func (w *world) over() bool {
	return w.inside == 0 && w.next == len(w.requests)
}

// run until a time, or until all requests ended.
func (w *world) run(until float64) {
	for !w.over() && w.now < until {
		w.arrive()
		w.admit()
		if w.running == 0 {
			if w.next == len(w.requests) || w.requests[w.next].At >= until {
				w.now = until
				return
			}
			w.now = max(w.now, w.requests[w.next].At)
			continue
		}
		w.step()
	}
}

func (w *world) arrive() {
	for w.next < len(w.requests) {
		q := &w.requests[w.next]
		at := q.At
		if w.c.Concurrency > 0 {
			if w.inside >= w.c.Concurrency {
				return
			}
			at = w.now
		} else if at > w.now {
			return
		}
		w.waiting = append(w.waiting, arrived{int32(w.next), at})
		w.arrivals += at
		w.inside++
		w.next++
		w.counts.Arrived++
		w.counts.PromptTokens += uint64(q.Prompt)
		w.counts.QueuedTokens += q.Prompt
		w.counts.WaitingNeed += q.Prompt + q.Output
	}
}

// admit requests, first come first served, while some group has room for their maximum need.
func (w *world) admit() {
	admitted := 0
	for _, a := range w.waiting {
		q := &w.requests[a.request]
		need := q.Prompt + q.Output
		capacity := w.c.Modes[w.mode].GroupTokens
		fits := false
		for g := range w.groups {
			w.view[g] = w.groups[g].seen(capacity)
			fits = fits || w.view[g].Reserved+need <= capacity
		}
		if !fits {
			break
		}
		for g := range w.groups {
			// A prompt's last token is always computed, because its logits are needed.
			w.cached[g] = min(w.groups[g].cache.prefix(q.Blocks, false)*BlockTokens, q.Prompt-1)
		}
		at := w.c.Router.Route(need, q.Prompt, w.view, w.cached)
		if at < 0 {
			break
		}
		admitted++
		g := &w.groups[at]
		g.cache.prefix(q.Blocks, true)
		g.reserved += need
		g.cache.shrink((capacity - g.reserved) / BlockTokens)
		w.counts.Reserved += need
		w.counts.WaitingNeed -= need
		w.counts.ReusedTokens += uint64(w.cached[at])
		w.counts.QueuedTokens -= w.cached[at]
		g.queued += q.Prompt - w.cached[at]
		g.queue = append(g.queue, w.place(live{arrived: a, group: int32(at), done: w.cached[at]}))
		w.running++
	}
	w.waiting = w.waiting[admitted:]
}

func (g *group) seen(capacity int) Group {
	return Group{Capacity: capacity, Reserved: g.reserved, Decoding: g.decoding, Queued: g.queued}
}

func (w *world) place(l live) int32 {
	if n := len(w.free); n > 0 {
		i := w.free[n-1]
		w.free = w.free[:n-1]
		w.live[i] = l
		return i
	}
	w.live = append(w.live, l)
	return int32(len(w.live) - 1)
}

func (w *world) step() {
	capacity := w.c.Modes[w.mode].GroupTokens
	truth := w.c.Modes[w.mode].Truth
	for g := range w.groups {
		w.view[g] = w.groups[g].seen(capacity)
	}
	w.c.Composer.Compose(w.c.chunk(w.shape()), w.view, w.shares)
	var work costmodel.Work
	context, before := 0, 0
	for g := range w.groups {
		own := &w.groups[g]
		l := kernels.Load{Decode: own.decoding, Context: own.context}
		for rest, i := min(w.shares[g], own.queued), 0; rest > 0; i++ {
			r := &w.live[own.queue[i]]
			n := min(rest, w.requests[r.request].Prompt-r.done)
			l.Chunks += truth.Chunk(r.done, r.done+n)
			before += r.done * n
			r.done += n
			rest -= n
			l.Prefill += n
		}
		own.queued -= l.Prefill
		w.counts.QueuedTokens -= l.Prefill
		work.Decode += l.Decode
		work.Prefill += l.Prefill
		context += l.Context
		w.loads[g] = l
	}
	seconds := w.c.Modes[w.mode].seconds(w.loads) * w.noisy()
	if work.Decode > 0 {
		work.Context = context / work.Decode
	}
	if work.Prefill > 0 {
		work.Before = before / work.Prefill
	}
	w.now += seconds
	w.counts.Steps++
	w.counts.StepSeconds += seconds
	for g := range w.groups {
		w.groups[g].context += w.groups[g].decoding
	}
	w.counts.ContextTokens += w.counts.Decoding
	w.counts.Generated += w.counts.Decoding
	for len(w.ends) > 0 && w.ends[0].step <= w.counts.Steps {
		w.finish(heap.Pop(&w.ends).(end).live)
	}
	for g := range w.groups {
		w.prompted(&w.groups[g])
	}
	if w.observe != nil {
		w.observe(truth.Shape(), work, seconds)
	}
}

// prompted gives requests with computed prompts their first token, and starts their decoding.
func (w *world) prompted(g *group) {
	n := 0
	for ; n < len(g.queue); n++ {
		r := &w.live[g.queue[n]]
		q := &w.requests[r.request]
		if r.done < q.Prompt {
			break
		}
		r.decodes = true
		g.decoding++
		g.context += q.Prompt + 1
		w.counts.Decoding++
		w.counts.ContextTokens += q.Prompt + 1
		w.counts.Generated++
		if w.record != nil {
			w.record.first(r.request, w.now-r.at)
		}
		for _, b := range q.Blocks {
			g.cache.add(b)
		}
		g.cache.shrink((w.c.Modes[w.mode].GroupTokens - g.reserved) / BlockTokens)
		if q.Output == 1 {
			w.finish(g.queue[n])
			continue
		}
		heap.Push(&w.ends, end{w.counts.Steps + uint64(q.Output-1), g.queue[n]})
	}
	g.queue = g.queue[n:]
}

func (w *world) finish(i int32) {
	r := &w.live[i]
	q := &w.requests[r.request]
	g := &w.groups[r.group]
	g.decoding--
	g.context -= q.Prompt + q.Output
	g.reserved -= q.Prompt + q.Output
	w.counts.Decoding--
	w.counts.ContextTokens -= q.Prompt + q.Output
	w.counts.Generated -= q.Output
	w.counts.Reserved -= q.Prompt + q.Output
	w.counts.Finished++
	w.counts.OutputTokens += uint64(q.Output)
	w.latency += w.now - r.at
	w.arrivals -= r.at
	w.inside--
	w.running--
	if w.record != nil {
		w.record.done(r.request, w.now-r.at, w.now)
	}
	w.free = append(w.free, i)
	r.request = -1
}

// noisy is a random factor with mean 1 and the configured relative deviation, by seed: the sum of four uniform numbers
// is nearly normal.
func (w *world) noisy() float64 {
	if w.c.Noise == 0 {
		return 1
	}
	x := w.noise.Uint64()
	sum := float64(x&0xffff+x>>16&0xffff+x>>32&0xffff+x>>48) / 0xffff
	return max(.1, 1+w.c.Noise*(sum-2)*1.7320508) // the variance of the sum is 4/12
}

func (w *world) telemetry() policy.Telemetry {
	t := w.counts
	t.At, t.Running, t.Waiting = w.now, w.running, len(w.waiting)
	for i := range w.groups {
		t.CachedTokens += w.groups[i].cache.size() * BlockTokens
	}
	return t
}
