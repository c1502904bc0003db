package gateway

import (
	"fmt"
	"log/slog"
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Between two layouts, all ranks may reject requests for a moment. A request that was never accepted fails after
// notReadyFor. An accepted one waits as long as its client does.
const (
	notReadyFor   = 5 * time.Second
	notReadyPause = 50 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// maxReplays limits replays and resends over a new connection, without a token in between. The request may be what
// kills its homes or their connections.
const maxReplays = 16

// maxDeaths limits the ranks that die while they have a request, without a token of it in between. Then the request
// most likely kills them, and a replay would kill more ranks with all their other requests.
const maxDeaths = 3

// takesLocked returns the session of a member that accepts requests; nil: it accepts none now.
func (p *Pool) takesLocked(m *tangramv1.WorldMember) *session {
	s := p.sessions[m.Frontend]
	// An engine that restarted at another engine's address is not a member yet.
	if !m.Accepts || s == nil || s.send == nil || s.told == nil || s.member != m.Member {
		return nil
	}
	return s
}

// requests estimates the number of requests of the rank.
func (s *session) requests() int { return int(s.load.GetRunning()+s.load.GetWaiting()) + s.sent }

// pickLocked selects a session that accepts requests and was not tried: `prefer` if possible. It avoids sessions that
// flap or will give their requests away. It prefers the longest cached prefix, then the least load, and skips ranks
// above overLoad. ready: some rank accepts requests, possibly one that was tried.
func (p *Pool) pickLocked(tried map[string]bool, prefer string, chain []uint64) (best *session, blocks int, ready bool) {
	now := time.Now()
	for _, m := range p.World().GetMembers() {
		s := p.takesLocked(m)
		ready = ready || s != nil
		if s == nil || tried[m.Frontend] {
			continue
		}
		if m.Frontend == prefer {
			return s, 0, true
		}
		if best == nil || best.avoid(now) && !s.avoid(now) || best.avoid(now) == s.avoid(now) && s.requests() < best.requests() {
			best = s
		}
	}
	if best == nil || len(chain) == 0 {
		return best, 0, ready
	}
	avoid, most := best.avoid(now), overLoad(best.requests())
	blocks = best.cached.longest(chain)
	for _, m := range p.World().GetMembers() {
		s := p.takesLocked(m)
		if s == nil || tried[m.Frontend] || s.avoid(now) != avoid || s.requests() > most {
			continue
		}
		if n := s.cached.longest(chain); n > blocks || n == blocks && s.requests() < best.requests() {
			best, blocks = s, n
		}
	}
	return best, blocks, ready
}

// place submits an unassigned request to some rank. pause: retry after it; 0: retry at the next notification.
func (p *Pool) place(r *request) (pause time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done { // it ended in the meantime
		return 0, nil
	}
	pause, err = p.placeLocked(r)
	if r.owner == "" {
		p.waiting[r] = true
	} else {
		delete(p.waiting, r)
	}
	return pause, err
}

func (p *Pool) placeLocked(r *request) (pause time.Duration, err error) {
	for {
		if refusal := r.refusal; refusal != nil {
			r.refusal, r.owner, r.prefer = nil, "", ""
			switch {
			case refusal.Code == tangramv1.Refused_CODE_BUSY:
				r.busy = true
			case refusal.Code == tangramv1.Refused_CODE_NOT_READY:
			case r.accepted:
				p.o.Metrics.lost.Inc()
				return 0, fmt.Errorf("%w: a rank rejected the request when it was submitted again: %s", ErrLost, refusal.Message)
			default:
				return 0, fmt.Errorf("%w: %s", ErrInvalid, refusal.Message)
			}
		}
		if r.owner != "" {
			return 0, nil
		}
		s, cached, ready := p.pickLocked(r.tried, r.prefer, r.chain)
		if s == nil {
			return p.nobodyLocked(r, ready)
		}
		if r.tried == nil {
			r.tried = map[string]bool{}
		}
		r.tried[s.frontend] = true
		select {
		case s.send <- &tangramv1.ServeRequest{Body: &tangramv1.ServeRequest_Submit{Submit: r.rest()}}:
			r.owner, r.over, r.answered = s.frontend, s.connection, false
			r.settled = max(r.settled, s.told.Epoch) // the census of that epoch does not concern it
			s.sent++
			p.o.Metrics.cached.Add(float64(cached) * float64(p.blockTokens.Load()))
		default: // its send queue is full
			r.busy = true
		}
	}
}

// nobodyLocked decides what to do when no rank accepts the request now.
func (p *Pool) nobodyLocked(r *request, ready bool) (time.Duration, error) {
	now := time.Now()
	if !r.accepted {
		if r.busy {
			return 0, ErrBusy
		}
		if now.After(r.giveUp) {
			return 0, ErrNotReady
		}
		r.tried = nil
		return notReadyPause, nil
	}
	if ready {
		r.tried = nil
	}
	r.pause = min(max(2*r.pause, notReadyPause), longestPause)
	return r.pause, nil
}

// replayLocked submits a request again, because the rank that had it, if any, no longer has it.
func (p *Pool) replayLocked(r *request, cause string) {
	if r.done || r.owner == "" || p.ownerDiedLocked(r) && p.deadlyLocked(r) || p.spentLocked(r) {
		return
	}
	r.twice = true
	p.o.Metrics.replays.WithLabelValues(cause).Inc()
	if cause == causeRoster && len(r.out) == 0 {
		p.o.Metrics.orphaned.Inc()
	}
	p.o.Log.Info("request submitted again", "request", r.id, "cause", cause, "tokens", len(r.out), "previous_frontend", r.owner)
	p.placeAgainLocked(r)
}

// ownerDiedLocked: the connection to the request's rank has broken since.
func (p *Pool) ownerDiedLocked(r *request) bool {
	s := p.sessions[r.owner]
	return s == nil || s.send == nil || s.connection != r.over
}

// deadlyLocked counts a rank that died while it had the request, and ends the request after maxDeaths.
func (p *Pool) deadlyLocked(r *request) bool {
	if r.deaths++; r.deaths < maxDeaths {
		return false
	}
	p.o.Metrics.lost.Inc()
	r.end(fmt.Errorf("%w: %d ranks died while they had the request, without a token in between, so the request is not submitted again", ErrLost, r.deaths))
	return true
}

// spentLocked counts a submission without a token in between, and ends the request after maxReplays.
func (p *Pool) spentLocked(r *request) bool {
	if r.replays == maxReplays {
		p.o.Metrics.lost.Inc()
		r.end(fmt.Errorf("%w: submitted %d times without a token; the last rank was %s", ErrLost, r.replays+1, r.owner))
		return true
	}
	r.replays++
	return false
}

// placeAgainLocked tries the previous rank first. If that rank still has the request, in a queue without roster, it
// reports CODE_RUNNING.
func (p *Pool) placeAgainLocked(r *request) {
	r.accepted = true
	r.prefer, r.owner = r.owner, ""
	r.tried, r.refusal, r.pause, r.without = nil, nil, 0, time.Now()
	p.waiting[r] = true
	r.wake()
}

// resendLocked handles a new connection: requests that were sent over the broken one may never have arrived.
func (p *Pool) resendLocked(s *session) {
	p.requests.each(func(r *request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.owner != s.frontend || r.answered || r.over == s.connection || r.done {
			return
		}
		died := s.told.Epoch > r.settled // the world continued without the rank in the meantime
		if died && p.deadlyLocked(r) || p.spentLocked(r) {
			return
		}
		p.o.Metrics.resends.Inc()
		p.placeAgainLocked(r)
	})
}

// cancelAllLocked sends a cancel over every session, because the request may be at any rank.
func (p *Pool) cancelAllLocked(r *request) {
	for _, s := range p.sessions {
		if s.send != nil {
			s.cancel(r.id, p.o.Log)
		}
	}
}

func (s *session) cancel(id string, log *slog.Logger) {
	select {
	case s.send <- &tangramv1.ServeRequest{Body: &tangramv1.ServeRequest_Cancel{Cancel: &tangramv1.Cancel{Request: id}}}:
	default:
		log.Warn("cannot queue a cancel, the request runs to its end", "request", id, "frontend", s.frontend)
	}
}
