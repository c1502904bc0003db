package gateway

import (
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Causes of a replay.
const (
	causeRoster    = "roster"    // no member of the newest epoch has the request
	causeCut       = "cut"       // the session to the request's rank stays down
	causeCancelled = "cancelled" // the engine cancelled the request without a cancel from the gateway
	causeRestart   = "restart"   // the world was restarted from the checkpoint
)

// census collects the rosters of one epoch. Each member reports in its roster which requests it has.
type census struct {
	missing map[string]string // frontends of the members without a roster so far, by member
}

// worldLocked handles the world that one engine reports.
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
	for r := range p.waiting { // requests without a rank try again
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
		if _, gone := p.gone.Get(m.Member); gone { // this session missed the restart of the world
			return false
		}
	}
	return w.Epoch > f.world.Epoch
}

// adoptLocked makes w the active world.
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

// strangersLocked adopts a world that was restarted from the checkpoint. Its epochs start at 1 again, as those of an
// outdated rank may. The restart is recognized as follows: all its members are new, and no member of the active world
// has sent anything for LostAfter. (A serving world sends load reports even when idle.)
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
	p.counted = best.Epoch // no member of the new world can have a request of this gateway
	p.heard.Store(int64(time.Since(p.born)))
	p.adoptLocked(best)
	p.requests.each(func(r *request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.settled = 0
		p.replayLocked(r, causeRestart)
	})
}

// rosterLocked handles a roster: the requests of this gateway that one member has in an epoch.
func (p *Pool) rosterLocked(s *session, roster *tangramv1.Roster) {
	if s.gateway != p.o.Gateway {
		return // a discovery session submits nothing
	}
	c := p.censuses[roster.Epoch]
	if c == nil {
		return // repeated for a new connection, or from a former member
	}
	for _, id := range roster.Requests {
		r := p.requests.find(id)
		if r == nil {
			s.cancel(id, p.o.Log) // the client disconnected while this session was down
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

// countLocked ends the census of an epoch once each member has sent its roster or is cut. A request that was last seen
// before the epoch and is in no roster is unassigned.
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

// cutLocked abandons sessions that stay down. Engines keep the tokens of a broken session, so a short break needs no
// action.
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
	for epoch := range p.censuses { // a census no longer waits for sessions that are cut
		if p.censuses[epoch] != nil {
			p.countLocked(epoch)
		}
	}
}
