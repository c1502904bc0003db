package simulator

import (
	"slices"

	"tangram.dev/operator/pkg/policy"
)

// pods of a world, one rank each: those that are there, and those that start. They cost from when they are wanted to when their rank has left.
type pods struct {
	there    int
	coming   []float64 // when each is ready, the first first
	standing int       // that are ready beyond those
	restock  []float64 // when each of those that are to stand by is ready
	refused  int       // that the cluster has no room for yet
	wanted   int       // mode that was decided on and waits for them; -1: none
	since    float64   // when that was
	why      policy.Reason
	seconds  float64 // of ranks, until
	until    float64
}

func (p *pods) account(now float64) {
	if now > p.until {
		p.seconds += float64(p.there+len(p.coming)+p.standing+len(p.restock)) * (now - p.until)
		p.until = now
	}
}

// order the pods of a mode. What is there stays until it has left.
func (w *world) order(to int, why policy.Reason) {
	p := &w.pods
	p.account(w.now)
	p.wanted, p.since, p.why = to, w.now, why
	w.room()
}

// room for more pods, or none for those that were wanted.
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
	for p.there < fit && p.standing > 0 { // whichever is ready joins; whichever is not stands by when it is
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

// keep so many of those that are there; of the rest some stand by instead of those that are started for it.
func (p *pods) keep(ranks int) {
	for p.there > ranks {
		p.there--
		if n := len(p.restock); n > 0 {
			p.standing, p.restock = p.standing+1, p.restock[:n-1]
		}
	}
}

// podsCome, and the world changes if what it waits for is there.
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
			out.Refused++ // the executor refuses before anything moves: the world serves on
		} else {
			out.Switches = append(out.Switches, Switched{at, from, w.shape().String(), p.why})
		}
	}
	p.account(w.now) // who leaves is there until it has
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
