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
	members []*tangramv1.WorldMember
	told    map[string]bool // members that did
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
		p.resendLocked(s)
	}
	for _, r := range p.requests { // those that wait for a rank look again
		if r.owner == "" {
			r.tried = nil
			r.wake()
		}
	}
}

func (p *Pool) isNewsLocked(w *tangramv1.World) bool {
	switch {
	case p.world == nil:
		return true
	case w.Epoch < p.world.Epoch:
		return false
	case !disjoint(w, p.world):
		return true
	}
	for _, m := range w.Members {
		if p.gone[m.Member] { // who missed that the world was started again
			return false
		}
	}
	return w.Epoch > p.world.Epoch
}

// adoptLocked takes a world as the one in force.
func (p *Pool) adoptLocked(w *tangramv1.World) {
	fresh := p.world == nil || w.Epoch > p.world.Epoch
	p.world = w
	p.o.Metrics.epoch.Set(float64(w.Epoch))
	for _, m := range w.Members {
		p.keepLocked(m.Frontend, false)
	}
	if fresh && w.Epoch > p.counted {
		p.censuses[w.Epoch] = &census{members: w.Members, told: map[string]bool{}}
	}
}

// strangersLocked takes a world that was started again from the checkpoint. Its epochs count
// from one again, so only this tells it from a rank that lives in the past: all its members are
// others than those known, and of those none has said anything for LostAfter (a world that
// serves, if only idly, tells its load all the time).
func (p *Pool) strangersLocked(now time.Time) {
	if p.world == nil || now.Sub(p.heard) < p.o.LostAfter {
		return
	}
	var best *tangramv1.World
	for _, s := range p.sessions {
		alive := s.told != nil && now.Sub(s.heard) < p.o.LostAfter
		if alive && disjoint(s.told, p.world) && (best == nil || s.told.Epoch > best.Epoch) {
			best = s.told
		}
	}
	if best == nil {
		return
	}
	p.o.Log.Warn("the world was started again", "epoch", best.Epoch, "was", p.world.Epoch)
	for _, m := range best.Members {
		delete(p.gone, m.Member)
	}
	for _, m := range p.world.Members {
		p.gone[m.Member] = true
	}
	clear(p.censuses)
	p.world, p.counted = nil, best.Epoch // nobody there can have a request of ours
	p.heard = now
	p.adoptLocked(best)
	for _, r := range p.requests {
		r.settled = 0
		p.replayLocked(r, causeRestart)
	}
}

// insideLocked: the engine behind the session is a member of the world in force.
func (p *Pool) insideLocked(s *session) bool {
	for _, m := range p.world.GetMembers() {
		if s.told != nil && m.Frontend == s.frontend && m.Member == s.member {
			return true
		}
	}
	return false
}

func disjoint(a, b *tangramv1.World) bool {
	names := map[string]bool{}
	for _, m := range a.Members {
		names[m.Member] = true
	}
	for _, m := range b.GetMembers() {
		if names[m.Member] {
			return false
		}
	}
	return true
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
		if r := p.requests[id]; r != nil && roster.Epoch >= r.settled {
			r.found(s, roster.Epoch)
		} else if r == nil {
			s.cancel(id, p.o.Log) // its client left while this session was down
		}
	}
	c.told[roster.Member] = true
	p.countLocked(roster.Epoch)
}

// countLocked ends the census of an epoch if all members have spoken, or are cut off: who was
// last seen before that epoch and is in no roster is nobody's.
func (p *Pool) countLocked(epoch uint64) {
	c := p.censuses[epoch]
	for _, m := range c.members {
		if s := p.sessions[m.Frontend]; !c.told[m.Member] && s != nil && !s.cut {
			return
		}
	}
	p.counted = epoch
	for e := range p.censuses {
		if e <= epoch {
			delete(p.censuses, e)
		}
	}
	for _, r := range p.requests {
		if r.settled < epoch {
			p.replayLocked(r, causeRoster)
		}
	}
}

// cutLocked gives up sessions that are down for long. Engines keep tokens of a session that
// breaks, so a short break needs nothing.
func (p *Pool) cutLocked(now time.Time) {
	cut := false
	for _, s := range p.sessions {
		if s.cut || s.send != nil || now.Sub(s.down) < p.o.LostAfter {
			continue
		}
		s.cut, cut = true, true
		for _, r := range p.requests {
			if r.owner == s.frontend {
				p.replayLocked(r, causeCut)
			}
		}
	}
	if !cut {
		return
	}
	for epoch := range p.censuses { // nobody waits for those any more
		if p.censuses[epoch] != nil {
			p.countLocked(epoch)
		}
	}
}
