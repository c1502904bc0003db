package simulator

import (
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/policy"
)

// Replica is a replica as a scaler of replicas sees it.
type Replica struct {
	KVUsed          float64 // share of its KV held by live requests
	Running         int
	Waiting         int
	QueuedTokens    int // of prompts to compute
	RequestedTokens int // prompts and outputs of all present requests
}

// Replicas is the input of a scaler.
type Replicas struct {
	At       float64
	Seconds  float64 // since the last call
	Arrived  int     // requests since then
	Ended    Sums    // responses since then
	Serving  []Replica
	Starting int
}

// Scaler decides the number of replicas.
type Scaler interface {
	// Every is the interval of the calls, in seconds.
	Every() float64
	Scale(Replicas) int
}

// replica is an independent world.
type replica struct {
	w        *world
	ready    float64
	draining bool
}

// RunReplicas runs the requests on independent worlds of c's one shape, between least and most of them, as a scaler
// decides. A new one serves PodSeconds after the request for it. A removed one gets no more requests, and costs until
// its last response ends. Each request goes to the replica with the least work.
func RunReplicas(c Config, requests []Request, least, most int, s Scaler) (Result, error) {
	c = c.filled()
	if len(c.Modes) != 1 || least < 1 || most < least {
		return Result{}, fmt.Errorf("simulator: replicas have one shape, not %d, and are from 1 up, not from %d to %d", len(c.Modes), least, most)
	}
	if _, err := newWorld(&c, requests); err != nil {
		return Result{}, err
	}
	f := &replicas{c: &c, ranks: c.Modes[0].Truth.Shape().Ranks}
	for range least {
		if err := f.start(0); err != nil {
			return Result{}, err
		}
	}
	asked, at, next := 0.0, 0.0, 0
	var sums Sums
	arrived := 0
	for next < len(requests) || f.inside() > 0 {
		if at > c.Horizon {
			return Result{}, fmt.Errorf("simulator: after %v s %d requests are not done", at, f.inside()+len(requests)-next)
		}
		until := at + c.Tick
		for next < len(requests) && requests[next].At < until {
			f.run(requests[next].At)
			f.route(requests[next])
			next++
			arrived++
		}
		f.run(until)
		f.pay(at, until)
		at = until
		if at-asked >= s.Every() {
			now := f.sums()
			want := s.Scale(f.told(at, at-asked, arrived, now.less(sums)))
			if err := f.scale(at, min(max(want, least), most)); err != nil {
				return Result{}, err
			}
			asked, sums, arrived = at, now, 0
		}
	}
	return f.result(len(requests), at), nil
}

type replicas struct {
	c       *Config
	ranks   int
	all     []*replica
	gone    []*replica
	seconds float64
	changes []Switched
}

func (f *replicas) start(ready float64) error {
	w, err := newWorld(f.c, nil)
	if err != nil {
		return err
	}
	w.noise.Seed(f.c.Seed, uint64(len(f.all)+len(f.gone))+16)
	w.record = newRecord(f.c, nil)
	f.all = append(f.all, &replica{w: w, ready: ready})
	return nil
}

func (f *replicas) inside() int {
	n := 0
	for _, r := range f.all {
		n += r.w.inside + len(r.w.requests) - r.w.next
	}
	return n
}

func (f *replicas) run(until float64) {
	for _, r := range f.all {
		r.w.run(until)
	}
}

func (f *replicas) pay(from, to float64) {
	f.seconds += float64(len(f.all)*f.ranks) * (to - from)
	f.all = slices.DeleteFunc(f.all, func(r *replica) bool {
		if r.draining && r.w.over() {
			f.gone = append(f.gone, r)
			return true
		}
		return false
	})
}

func (w *world) feed(q Request) {
	w.requests = append(w.requests, q)
	w.record.requests, w.record.firsts, w.record.lasts = w.requests, append(w.record.firsts, 0), append(w.record.lasts, 0)
}

func (f *replicas) route(q Request) {
	var best *replica
	least := 0
	for _, r := range f.all {
		if r.draining || r.ready > q.At {
			continue
		}
		const decodingCounts = 16 // as in LeastWork
		work := r.w.counts.QueuedTokens + decodingCounts*r.w.counts.Decoding
		for i := r.w.next; i < len(r.w.requests); i++ {
			work += r.w.requests[i].Prompt
		}
		if best == nil || work < least {
			best, least = r, work
		}
	}
	best.w.feed(q) // the first replicas are never drained below the least
}

func (f *replicas) serving(at float64) (ready []*replica, starting int) {
	for _, r := range f.all {
		switch {
		case r.draining:
		case r.ready > at:
			starting++
		default:
			ready = append(ready, r)
		}
	}
	return ready, starting
}

func (f *replicas) told(at, seconds float64, arrived int, ended Sums) Replicas {
	out := Replicas{At: at, Seconds: seconds, Arrived: arrived, Ended: ended}
	ready, starting := f.serving(at)
	out.Starting = starting
	for _, r := range ready {
		t := r.w.telemetry()
		room := float64(f.c.Modes[0].GroupTokens * f.c.Modes[0].Truth.Shape().Groups())
		out.Serving = append(out.Serving, Replica{KVUsed: float64(t.Reserved) / room, Running: t.Running, Waiting: t.Waiting, QueuedTokens: t.QueuedTokens,
			RequestedTokens: t.Reserved + t.WaitingNeed})
	}
	return out
}

func (f *replicas) scale(at float64, want int) error {
	ready, starting := f.serving(at)
	n := len(ready) + starting
	if want != n {
		f.changes = append(f.changes, Switched{At: at, From: fmt.Sprintf("%dx%d", n, f.ranks), To: fmt.Sprintf("%dx%d", want, f.ranks), Why: policy.Reason{Text: "as its scaler says"}})
	}
	for ; n < want; n++ {
		if err := f.start(at + f.c.PodSeconds); err != nil {
			return err
		}
	}
	for i := len(f.all) - 1; i >= 0 && n > want; i-- {
		r := f.all[i]
		if r.draining {
			continue
		}
		r.draining = true
		n--
	}
	return nil
}

func (s Sums) less(b Sums) Sums {
	return Sums{s.Answers - b.Answers, s.Longer - b.Longer, s.FirstTokens - b.FirstTokens, s.PerTokens - b.PerTokens, s.Prompts - b.Prompts, s.Outputs - b.Outputs}
}

func (s Sums) plus(b Sums) Sums {
	return Sums{s.Answers + b.Answers, s.Longer + b.Longer, s.FirstTokens + b.FirstTokens, s.PerTokens + b.PerTokens, s.Prompts + b.Prompts, s.Outputs + b.Outputs}
}

func (f *replicas) sums() (out Sums) {
	for _, r := range slices.Concat(f.gone, f.all) {
		out = out.plus(r.w.record.sums)
	}
	return out
}

func (f *replicas) result(n int, at float64) Result {
	out := Result{Requests: n, RankSeconds: f.seconds, Makespan: at, Switches: f.changes}
	var firsts, each []float64
	for _, r := range slices.Concat(f.gone, f.all) {
		for i := range r.w.requests {
			within, between := r.w.record.within(i)
			if within {
				out.Within++
			}
			firsts = append(firsts, r.w.record.firsts[i])
			if r.w.requests[i].Output > 1 {
				each = append(each, between)
			}
		}
		out.LatencySum += r.w.latency
		out.OutputTokens += r.w.counts.OutputTokens
		out.Steps += r.w.counts.Steps
	}
	out.FirstToken, out.PerToken = spreadOf(firsts), spreadOf(each)
	return out
}
