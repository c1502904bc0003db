package policy

import (
	"cmp"
	"math"
	"slices"

	"tangram.dev/operator/pkg/costmodel"
	"tangram.dev/operator/pkg/kernels"
)

// second of the past, with its arrivals. Reports within a second are merged.
type second struct {
	at, seconds      float64 // its end; its length
	requests, tokens float64 // prompt tokens to compute
}

// past load, as far back as decisions need.
type past struct {
	keep float64
	all  []second
}

// shortest length of an entry of the past.
const shortest = 1

func (p *past) add(s second) {
	if n := len(p.all); n > 0 && p.all[n-1].seconds < shortest {
		l := &p.all[n-1]
		l.at, l.seconds, l.requests, l.tokens = s.at, l.seconds+s.seconds, l.requests+s.requests, l.tokens+s.tokens
	} else {
		p.all = append(p.all, s)
	}
	old := 0
	for p.all[old].at < s.at-p.keep {
		old++
	}
	if old > 64 { // only sometimes, to avoid a copy each second
		p.all = append([]second(nil), p.all[old:]...)
	}
}

// since returns the load since a moment.
func (p *past) since(at float64) []second {
	i, _ := slices.BinarySearchFunc(p.all, at, func(s second, at float64) int { return cmp.Compare(s.at, at) })
	return p.all[i:]
}

// playedLoad is the client latencies of a replayed load.
type playedLoad struct {
	Within     float64 // share of the requests within the SLO
	FirstToken float64 // seconds, at the SLO's share of the requests
	PerToken   float64
	requests   float64
}

// lengths of the requests of a load.
type lengths struct {
	prompt, longer float64 // tokens to compute of a prompt; mean length of a token's prompt over that
	output         float64
	context        float64
}

// machine is the model on which a load is replayed.
type machine struct {
	shape kernels.Shape
	of    speed
	chunk float64 // maximum tokens of a step
	room  float64 // requests that fit into KV
	first float64 // measured over replayed times to the first token
	each  float64 // the same of times between tokens
}

// moment of a replayed load: the latencies of the requests that arrived in one of its seconds.
type moment struct{ requests, first, each float64 }

// play replays arrivals, second by second, as a fluid: prompts are computed in order of arrival, in steps as full as
// possible. Seconds without arrivals have no moment.
func (m machine) play(load []second, l lengths) (out []moment) {
	groups := float64(m.shape.Groups())
	var queued, waiting, decoding, per float64
	one := 0.0 // seconds of a step with prompts
	for _, s := range load {
		dt := s.seconds
		f := fluid{decoding: decoding, context: l.context, prompt: l.prompt}
		plain := m.of(m.shape, f.work(0))
		inflow := s.tokens / dt
		// A prompt is one group's work: few prompts leave groups without any.
		prompts := min(groups, max(1, (queued+s.tokens)/(l.prompt*l.longer)))
		most := m.chunk / groups * prompts
		part := max(min(max(queued, inflow*max(one, plain), min(l.prompt, m.chunk/groups)), most), 1)
		one = m.of(m.shape, f.work(part))
		ahead := queued
		queued += s.tokens
		waiting += s.requests
		steps, busy := 0.0, 0.0
		if queued > 0 && decoding < m.room {
			steps = min(queued/part, dt/one)
			busy = steps * one
			done := min(queued, steps*part)
			admitted := min(waiting*done/queued, m.room-decoding)
			queued -= done
			waiting -= admitted
			decoding += admitted
		}
		steps += max(0, dt-busy) / plain
		decoding /= 1 + steps/l.output
		step := dt / max(steps, 1e-9)
		// Clients with long responses observe the mean over many seconds.
		share := min(1, dt/max(l.output*step, dt))
		if per == 0 {
			share = 1
		}
		per += (step - per) * share
		if s.requests == 0 {
			continue
		}
		// Half of the arrivals of the same second precede a request, minus the part computed meanwhile.
		wait := max(0, ahead+s.tokens/2-part/one*dt/2) / (part / one)
		own := one * (0.5 + max(1, l.prompt*l.longer*groups/m.chunk))
		if decoding >= m.room {
			wait += waiting / max(decoding, 1) * l.output * step // until a request ends
		}
		out = append(out, moment{s.requests, (wait + own) * m.first, per * m.each})
	}
	return out
}

// together returns the latencies of a load replayed in several modes of one width, as if the best mode were always
// active: a change of mode takes about a second and no pod.
func together(slo SLO, plays ...[]moment) playedLoad {
	var out playedLoad
	within := 0.0
	firsts, eachs := make([]weighted, 0, len(plays[0])), make([]weighted, 0, len(plays[0]))
	for i := range plays[0] {
		best := plays[0][i]
		kept := slo.kept(best.first, best.each)
		for _, other := range plays[1:] {
			m := other[i]
			if k := slo.kept(m.first, m.each); k && !kept || k == kept && m.first < best.first {
				best, kept = m, k
			}
		}
		firsts, eachs = append(firsts, weighted{best.first, best.requests}), append(eachs, weighted{best.each, best.requests})
		out.requests += best.requests
		if kept {
			within += best.requests
		}
	}
	if out.requests == 0 {
		return playedLoad{Within: 1}
	}
	out.Within = within / out.requests
	out.FirstToken, out.PerToken = quantile(firsts, slo.Share), quantile(eachs, slo.Share)
	return out
}

// steady returns the steady state at a rate: the share of time that full steps need for the arrivals, and the seconds
// of a step.
func (m machine) steady(rate float64, l lengths) (use, step float64) {
	step = m.of(m.shape, costmodel.Work{Decode: 1, Context: max(int(l.context), 1)})
	for range 400 {
		f := fluid{decoding: min(rate*l.output*step, m.room), context: l.context, prompt: l.prompt}
		next := m.of(m.shape, f.work(min(max(rate*l.prompt*step, 1), m.chunk)))
		if math.Abs(next-step) < 1e-4*step {
			step = next
			break
		}
		step += (next - step) / 2
	}
	f := fluid{decoding: min(rate*l.output*step, m.room), context: l.context, prompt: l.prompt}
	full := m.of(m.shape, f.work(m.chunk))
	use = rate * l.prompt * full / m.chunk
	// KV: each request occupies it while it decodes.
	use = max(use, rate*l.output*step/max(m.room, 1))
	return use, step
}

type weighted struct{ value, weight float64 }

func quantile(all []weighted, q float64) float64 {
	slices.SortFunc(all, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	total := 0.0
	for _, w := range all {
		total += w.weight
	}
	left := q * total
	for _, w := range all {
		if left -= w.weight; left <= 1e-9*total {
			return w.value
		}
	}
	return all[len(all)-1].value
}
