package simulator

import (
	"slices"

	"tangram.dev/operator/pkg/policy"
)

// pods of a world, one rank each: present and starting ones. They cost from the request until their rank has left.
type pods struct {
	there    int
	coming   []float64 // when each is ready, ascending
	standing int       // ready standby pods beyond those
	restock  []float64 // when each replacement standby pod is ready
	refused  int       // without room in the cluster yet
	wanted   int       // mode that was decided on and waits for them; -1: none
	since    float64   // time of that decision
	why      policy.Reason
	seconds  float64 // rank-seconds, until
	until    float64
}

func (p *pods) account(now float64) {
	if now > p.until {
		p.seconds += float64(p.there+len(p.coming)+p.standing+len(p.restock)) * (now - p.until)
		p.until = now
	}
}

// order the pods of a mode. Present pods stay until they have left.
func (w *world) order(to int, why policy.Reason) {
	p := &w.pods
	p.account(w.now)
	p.wanted, p.since, p.why = to, w.now, why
	w.room()
}

// room adjusts the starting pods to the wanted mode, within the room of the cluster.
func (w *world) room() {
	p := &w.pods
	needs := max(w.shape().Ranks, w.c.Modes[p.wanted].Truth.Shape().Ranks)
	fit := needs
	for _, n := range w.c.Nodes {
		if n.At <= w.now {
			fit = min(needs, n.Ranks)
		}
	}
	p.keep(needs)
	for p.there+len(p.coming) > needs {
		p.coming = p.coming[:len(p.coming)-1]
	}
	for p.there < fit && p.standing > 0 { // ready pods join; pods still starting become standby when they are ready
		ready := w.now + w.c.PodSeconds
		if n := len(p.coming); p.there+n >= fit {
			ready, p.coming = p.coming[n-1], p.coming[:n-1]
		}
		p.there, p.standing, p.restock = p.there+1, p.standing-1, append(p.restock, ready)
		slices.Sort(p.restock)
	}
	for p.there+len(p.coming) < fit {
		p.coming = append(p.coming, w.now+w.c.PodSeconds)
	}
	p.refused = needs - p.there - len(p.coming)
}

// keep only `ranks` of the present pods; of the others some become standby, instead of starting replacements.
func (p *pods) keep(ranks int) {
	for p.there > ranks {
		p.there--
		if n := len(p.restock); n > 0 {
			p.standing, p.restock = p.standing+1, p.restock[:n-1]
		}
	}
}

// podsCome counts pods that are ready, and changes the world if the pods of the wanted mode are.
func (out *Result) podsCome(w *world) error {
	p := &w.pods
	p.account(w.now)
	for len(p.coming) > 0 && p.coming[0] <= w.now {
		p.there, p.coming = p.there+1, p.coming[1:]
	}
	for len(p.restock) > 0 && p.restock[0] <= w.now {
		p.standing, p.restock = p.standing+1, p.restock[1:]
	}
	if p.wanted < 0 {
		return nil
	}
	w.room()
	if p.there < w.c.Modes[p.wanted].Truth.Shape().Ranks {
		return nil
	}
	to := p.wanted
	p.wanted = -1
	if to != w.mode {
		at, from := w.now, w.shape().String()
		if w.change(to) != nil {
			out.Refused++ // the executor rejects before anything moves: the world keeps serving
		} else {
			out.Switches = append(out.Switches, Switched{at, from, w.shape().String(), p.why})
		}
	}
	p.account(w.now) // a leaving pod counts until it has left
	p.keep(w.shape().Ranks)
	p.coming, p.refused = nil, 0
	return nil
}

func (w *world) podsTold() policy.Pods {
	out := policy.Pods{Ready: w.pods.there + w.pods.standing, Standby: w.pods.standing, Refused: w.pods.refused > 0}
	if w.pods.wanted >= 0 {
		out.Wanted, out.Waiting = w.c.Modes[w.pods.wanted].Truth.Shape(), w.now-w.pods.since
	}
	return out
}
