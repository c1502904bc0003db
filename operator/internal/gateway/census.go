package gateway

import (
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Why a request is submitted again.
const (
	causeRoster    = "roster"    // no member of the newest epoch has it
	causeCut       = "cut"       // the session to the rank that has it stays down
	causeCancelled = "cancelled" // the engine gave it up by itself
	causeRestart   = "restart"   // the world was started again from the checkpoint
)

// census of one epoch: its members say one after the other which requests they have.
type census struct {
	missing map[string]string // frontends of the members that did not yet, by member
}

// worldLocked is what one engine says of the world.
func (p *Pool) worldLocked(s *session, w *tangramv1.World) {
	first := s.told == nil
	s.told, s.member = w, ""
	for _, m := range w.Members {
		if m.Frontend == s.frontend {
			s.member = m.Member
		}
	}
	if p.isNewsLocked(w) {
		p.adoptLocked(w)
	}
	if first {
		if s.member != s.loadOf { // another engine at this address
			s.load = nil
		}
		p.resendLocked(s)
	}
	for r := range p.waiting { // those that wait for a rank look again
		r.mu.Lock()
		if r.owner == "" {
			r.tried = nil
			r.wake()
		}
		r.mu.Unlock()
	}
}

func (p *Pool) isNewsLocked(w *tangramv1.World) bool {
	f := p.force.Load()
	switch {
	case f == nil:
		return true
	case w.Epoch < f.world.Epoch:
		return false
	case !f.disjoint(w):
		return true
	}
	for _, m := range w.Members {
		if _, gone := p.gone.Get(m.Member); gone { // who missed that the world was started again
			return false
		}
	}
	return w.Epoch > f.world.Epoch
}

// adoptLocked takes a world as the one in force.
func (p *Pool) adoptLocked(w *tangramv1.World) {
	was := p.World()
	fresh := was == nil || w.Epoch > was.Epoch
	p.force.Store(newForce(w))
	p.o.Metrics.epoch.Set(float64(w.Epoch))
	for _, m := range w.Members {
		p.keepLocked(m.Frontend, false)
	}
	if fresh && w.Epoch > p.counted {
		c := &census{missing: make(map[string]string, len(w.Members))}
		for _, m := range w.Members {
			c.missing[m.Member] = m.Frontend
			p.namedLocked(m.Frontend)
		}
		p.censuses[w.Epoch] = c
	}
}

// strangersLocked takes a world that was started again from the checkpoint. Its epochs count
// from one again, so only this tells it from a rank that lives in the past: all its members are
// others than those known, and of those none has said anything for LostAfter (a world that
// serves, if only idly, tells its load all the time).
func (p *Pool) strangersLocked() {
	f := p.force.Load()
	if f == nil || p.silence(&p.heard) < p.o.LostAfter {
		return
	}
	var best *tangramv1.World
	for _, s := range p.sessions {
		alive := s.told != nil && p.silence(&s.heard) < p.o.LostAfter
		if alive && f.disjoint(s.told) && (best == nil || s.told.Epoch > best.Epoch) {
			best = s.told
		}
	}
	if best == nil {
		return
	}
	p.o.Log.Warn("world restarted", "epoch", best.Epoch, "previous_epoch", f.world.Epoch)
	for _, m := range best.Members {
		p.gone.Remove(m.Member)
	}
	for _, m := range f.world.Members {
		p.gone.Add(m.Member, nil)
	}
	clear(p.censuses)
	p.force.Store(nil)
	p.counted = best.Epoch // nobody there can have a request of ours
	p.heard.Store(int64(time.Since(p.born)))
	p.adoptLocked(best)
	p.requests.each(func(r *request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.settled = 0
		p.replayLocked(r, causeRestart)
	})
}

// rosterLocked is what one member has of ours since the epoch began.
func (p *Pool) rosterLocked(s *session, roster *tangramv1.Roster) {
	if s.gateway != p.o.Gateway {
		return // of a name that submits nothing
	}
	c := p.censuses[roster.Epoch]
	if c == nil {
		return // a repetition for a new connection, or of a member that is none any more
	}
	for _, id := range roster.Requests {
		r := p.requests.find(id)
		if r == nil {
			s.cancel(id, p.o.Log) // its client left while this session was down
			continue
		}
		r.mu.Lock()
		if roster.Epoch >= r.settled {
			r.found(s, roster.Epoch)
		}
		r.mu.Unlock()
	}
	delete(c.missing, roster.Member)
	p.countLocked(roster.Epoch)
}

// countLocked ends the census of an epoch if all members have spoken, or are cut off: who was
// last seen before that epoch and is in no roster is nobody's.
func (p *Pool) countLocked(epoch uint64) {
	for _, frontend := range p.censuses[epoch].missing {
		if s := p.sessions[frontend]; s != nil && !s.cut {
			return
		}
	}
	p.counted = epoch
	for e := range p.censuses {
		if e <= epoch {
			delete(p.censuses, e)
		}
	}
	p.requests.each(func(r *request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.settled < epoch {
			p.replayLocked(r, causeRoster)
		}
	})
}

// cutLocked gives up sessions that are down for long. Engines keep tokens of a session that
// breaks, so a short break needs nothing.
func (p *Pool) cutLocked(now time.Time) {
	cut := map[string]bool{}
	for _, s := range p.sessions {
		if !s.cut && s.send == nil && now.Sub(s.down) >= p.o.LostAfter {
			s.cut, cut[s.frontend] = true, true
		}
	}
	if len(cut) == 0 {
		return
	}
	p.requests.each(func(r *request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if cut[r.owner] {
			p.replayLocked(r, causeCut)
		}
	})
	for epoch := range p.censuses { // nobody waits for those any more
		if p.censuses[epoch] != nil {
			p.countLocked(epoch)
		}
	}
}
