package simulator

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

// Result of a run. Times in seconds.
type Result struct {
	Requests     int
	Within       int     // requests within the SLO
	LatencySum   float64 // from arrival to last token, of all requests
	Makespan     float64
	FirstToken   Spread
	PerToken     Spread // after the first, of requests with more than one token
	OutputTokens uint64
	ReusedTokens uint64
	LostCached   int // cached KV tokens that switches dropped
	Steps        uint64
	Stalled      float64
	Switches     []Switched
	Held         int      // times the policy could not decide
	Refused      int      // switches that did not fit when they were to start
	Occupancy    float64  // mean requests in the world over time
	RankSeconds  float64  // of all present or starting ranks
	Samples      []Sample `json:",omitempty"` // if Config.Sampled
	Answers      []Answer `json:"-"`          // in the order of the requests
}

// Answer is a response: seconds from its arrival to the first token, and from there to the last.
type Answer struct {
	Arrival, First, Rest float64
	Output               int
	Within               bool // the SLO
}

// Spread of a figure over requests.
type Spread struct{ Mean, P50, P99, Max float64 }

// Switched is a switch of the mode, with its time and reason.
type Switched struct {
	At       float64
	From, To string
	Why      policy.Reason
}

// Sample of the world at a tick of the policy.
type Sample struct {
	At                float64
	Mode              string
	Running, Waiting  int
	QueuedTokens, KV  int
	StepSeconds       float64 // mean over the steps since the previous sample
	Arrived, Finished uint64
}

// Options returns the policy's options: shapes, capacity and prices, from the active mode.
func (c *Config) Options(serving int) []policy.Option {
	out := make([]policy.Option, len(c.Modes))
	for i, m := range c.Modes {
		s := m.Truth.Shape()
		out[i] = policy.Option{Shape: s, WorldTokens: m.GroupTokens * s.Groups(), Switch: c.Switches[serving][i]}
	}
	return out
}

// Run simulates the requests to their end under a policy. It calls progress, if not nil, at each tick with the
// simulated seconds. It first rejects requests that cannot end by c.Horizon.
func Run(c Config, requests []Request, p policy.Policy, progress func(at float64, left int)) (Result, error) {
	c = c.filled()
	w, err := newWorld(&c, requests)
	if err != nil {
		return Result{}, err
	}
	w.record = newRecord(&c, requests)
	w.observe = p.Observe
	var out Result
	var area, last float64
	var before policy.Telemetry
	until := 0.0 // ticks are multiples of Tick
	for tick := 0; !w.over(); tick++ {
		if w.now > c.Horizon {
			return Result{}, fmt.Errorf("simulator: after %v s %d requests are not done", w.now, len(requests)-int(w.counts.Finished))
		}
		if err := out.podsCome(w); err != nil {
			return Result{}, err
		}
		t := w.telemetry()
		t.Felt = w.record.lately(w.now)
		if t.At > before.At || tick == 0 {
			if c.Sampled {
				out.Samples = append(out.Samples, sample(w, t, before))
			}
			area += float64(w.inside) * (w.now - last)
			last, before = w.now, t
		}
		d := p.Decide(t, policy.State{Shape: w.shape(), Options: c.Options(w.mode), Rates: c.Rates, Pods: w.podsTold()})
		if d.Held {
			out.Held++
		}
		if d.Switch {
			if err := out.follow(w, d); err != nil {
				return Result{}, err
			}
		}
		if progress != nil {
			progress(w.now, len(requests)-w.next)
		}
		for until <= w.now {
			until += c.Tick
		}
		w.run(until)
	}
	out.finish(w, area)
	return out, nil
}

func (out *Result) follow(w *world, d policy.Decision) error {
	to := slices.IndexFunc(w.c.Modes, func(m Mode) bool { return m.Truth.Shape() == d.To })
	if to < 0 {
		return fmt.Errorf("simulator: the policy wants shape %v, which the world does not have", d.To)
	}
	w.order(to, d.Why)
	return out.podsCome(w)
}

func sample(w *world, t, before policy.Telemetry) Sample {
	s := Sample{At: t.At, Mode: w.shape().String(), Running: t.Running, Waiting: t.Waiting, QueuedTokens: t.QueuedTokens, KV: t.Reserved, Arrived: t.Arrived, Finished: t.Finished}
	if t.Steps > before.Steps {
		s.StepSeconds = (t.StepSeconds - before.StepSeconds) / float64(t.Steps-before.Steps)
	}
	return s
}

func (out *Result) finish(w *world, area float64) {
	out.Requests, out.LatencySum, out.Makespan = len(w.requests), w.latency, w.now
	out.OutputTokens, out.ReusedTokens, out.Steps = w.counts.OutputTokens, w.counts.ReusedTokens, w.counts.Steps
	out.LostCached, out.Stalled = w.lost, w.stalled
	w.pods.account(w.now)
	out.RankSeconds = w.pods.seconds
	if w.now > 0 {
		out.Occupancy = area / w.now
	}
	var tpot []float64
	for i, q := range w.requests {
		within, each := w.record.within(i)
		out.Answers = append(out.Answers, Answer{q.At, w.record.firsts[i], w.record.lasts[i] - w.record.firsts[i], q.Output, within})
		if q.Output > 1 {
			tpot = append(tpot, each)
		}
		if within {
			out.Within++
		}
	}
	out.FirstToken, out.PerToken = spreadOf(w.record.firsts), spreadOf(tpot)
}

func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(p float64) float64 { return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)] }
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	return Spread{sum / float64(len(sorted)), at(.5), at(.99), sorted[len(sorted)-1]}
}

// Calibrate measures each mode before it serves: a few batch sizes, with and without prompts, three times each, with
// the world's noise. It returns the seconds that this takes.
func Calibrate(c Config, p policy.Policy) float64 {
	c = c.filled()
	w := &world{c: &c}
	w.noise.Seed(c.Seed, 4)
	total := 0.0
	for _, m := range c.Modes {
		s := m.Truth.Shape()
		measure := func(work costmodel.Work) {
			loads := make([]kernels.Load, s.Groups())
			left := work.Prefill
			for g := range loads {
				l := &loads[g]
				l.Decode = (work.Decode + s.Groups() - 1 - g) / s.Groups()
				l.Context = l.Decode * work.Context
				// One prompt is one group's work: the first groups have theirs, as with few prompts.
				if l.Prefill = min(left, c.chunk(s)/s.Groups()); l.Prefill > 0 {
					l.Chunks = m.Truth.Chunk(0, l.Prefill)
					left -= l.Prefill
				}
			}
			for range 3 {
				seconds := m.seconds(loads) * w.noisy()
				total += seconds
				p.Observe(s, work, seconds)
			}
		}
		for decode := 1; decode <= 1024; decode *= 2 {
			measure(costmodel.Work{Decode: decode, Context: 2048})
		}
		for prefill := 256; prefill <= 8192; prefill *= 2 {
			measure(costmodel.Work{Decode: 32, Context: 2048, Prefill: prefill})
		}
	}
	return total
}
