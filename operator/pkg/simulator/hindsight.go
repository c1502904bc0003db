package simulator

import (
	"cmp"
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
	"tangram.dev/operator/pkg/policy"
)

// Beam of a search for the best schedule. Zero fields take the defaults.
type Beam struct {
	Every float64 // seconds between two forks; default 5
	Keep  int     // worlds kept in each mode after a fork; default 3
}

// Hindsight searches for the schedule of modes with the least sum of latencies, knowing all future requests. It forks
// the world at fixed times into all modes and keeps the best few in each. It returns the result of a run of the
// schedule found. It is not a lower bound: a policy may act between the forks, and the search drops worlds that look
// bad.
func Hindsight(c Config, requests []Request, b Beam, progress func(at float64, left int)) (Result, error) {
	if b.Every == 0 {
		b.Every = 5
	}
	if b.Keep == 0 {
		b.Keep = 3
	}
	c = c.filled()
	var kept []*branch
	for i := range c.Modes {
		start := c
		start.Start = i
		w, err := newWorld(&start, requests)
		if err != nil {
			return Result{}, err
		}
		kept = append(kept, &branch{w: w, path: &path{mode: i}})
	}
	var best *branch
	for at := b.Every; len(kept) > 0; at += b.Every {
		if at > c.Horizon {
			return Result{}, fmt.Errorf("simulator: hindsight: after %v s requests are left", at)
		}
		var next []*branch
		for _, k := range kept {
			next = append(next, k.forks(at-b.Every)...)
		}
		for _, k := range next {
			k.w.run(at)
			k.score = k.w.promise(at)
			if k.w.over() && (best == nil || k.w.latency < best.w.latency) {
				best = k
			}
		}
		next = slices.DeleteFunc(next, func(k *branch) bool { return k.w.over() || best != nil && k.w.spent() > best.w.latency })
		slices.SortStableFunc(next, func(x, y *branch) int { return cmp.Compare(x.score, y.score) })
		count := make([]int, len(c.Modes))
		kept = slices.DeleteFunc(next, func(k *branch) bool {
			count[k.w.mode]++
			return count[k.w.mode] > b.Keep
		})
		if progress != nil && len(kept) > 0 {
			progress(at, len(requests)-kept[0].w.next)
		}
	}
	schedule := best.path.list()
	c.Start, c.Tick = schedule[0].mode, b.Every // the times of the forks, so that the run reproduces the search
	r, err := Run(c, requests, &follow{modes: c.Modes, schedule: schedule[1:]}, nil)
	if err != nil {
		return Result{}, err
	}
	return r, nil
}

type branch struct {
	w     *world
	path  *path
	score float64
}

// path of modes, the last first.
type path struct {
	at     float64
	mode   int
	before *path
}

func (p *path) list() []*path {
	var out []*path
	for ; p != nil; p = p.before {
		out = append(out, p)
	}
	slices.Reverse(out)
	return out
}

// forks returns the world itself, and one in every other mode into which its requests fit.
func (k *branch) forks(at float64) []*branch {
	out := []*branch{k}
	if at == 0 {
		return out // each mode has its own world from the start
	}
	for to := range k.w.c.Modes {
		if to == k.w.mode {
			continue
		}
		w := k.w.clone()
		if w.change(to) != nil {
			continue
		}
		out = append(out, &branch{w: w, path: &path{k.w.now, to, k.path}})
	}
	return out
}

// promise is the cost up to a time plus the cost of the remaining work at the speed of the fastest mode: worlds that
// did more work by then are better.
func (w *world) promise(at float64) float64 {
	spent := w.spent() + float64(w.inside)*(at-w.now)
	left := 0.0
	for _, e := range w.ends {
		left += float64(e.step - w.counts.Steps)
	}
	waits := w.inside - w.counts.Decoding
	step, token := 1e9, 1e9
	for _, m := range w.c.Modes {
		s := m.Truth.Shape()
		n := max(1, w.counts.Decoding)
		each := (n + s.Groups() - 1) / s.Groups()
		step = min(step, m.Truth.Even(kernels.Load{Decode: each, Context: each * 2048}, n))
		chunk := w.c.chunk(s)
		share := chunk / s.Groups()
		token = min(token, m.Truth.Even(kernels.Load{Prefill: share, Chunks: m.Truth.Chunk(0, share)}, chunk)/float64(chunk))
	}
	queue := float64(w.counts.QueuedTokens) * token
	outputs := 0.0
	for _, a := range w.waiting {
		outputs += float64(w.requests[a.request].Output)
	}
	for i := range w.live {
		if l := &w.live[i]; l.request >= 0 && !l.decodes {
			outputs += float64(w.requests[l.request].Output)
		}
	}
	return spent + (left+outputs)*step + queue*(float64(waits)/2+float64(w.counts.Decoding))
}

// follow a schedule.
type follow struct {
	modes    []Mode
	schedule []*path
}

func (f *follow) Decide(t policy.Telemetry, s policy.State) policy.Decision {
	d := policy.Decision{To: s.Shape, Why: policy.Reason{Text: "as the schedule that was found says"}}
	for len(f.schedule) > 0 && t.At >= f.schedule[0].at-1e-9 {
		d.To = f.modes[f.schedule[0].mode].Truth.Shape()
		f.schedule = f.schedule[1:]
	}
	d.Switch = d.To != s.Shape
	return d
}

func (f *follow) Observe(kernels.Shape, costmodel.Work, float64) {}
