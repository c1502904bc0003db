package gateway

import (
	"fmt"
	"log/slog"
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// A world between two layouts may refuse everywhere for a moment. A request that was never
// accepted is told so after notReadyFor; one that was waits as long as its client does.
const (
	notReadyFor   = 5 * time.Second
	notReadyPause = 50 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// maxReplays of a request without a token in between, and sends again over a new connection after the one before broke: the request may be
// what kills its homes, or their connections.
const maxReplays = 16

// maxDeaths of ranks that had a request, without a token of it in between: then it is most likely what kills them, and to submit it again would kill one after
// the other, with all requests beside it.
const maxDeaths = 3

// takesLocked: the session of a member that accepts requests; nil: there is none now.
func (p *Pool) takesLocked(m *tangramv1.WorldMember) *session {
	s := p.sessions[m.Frontend]
	// An engine that started again on the address of another is no member yet.
	if !m.Accepts || s == nil || s.send == nil || s.told == nil || s.member != m.Member {
		return nil
	}
	return s
}

// requests that it has to do with.
func (s *session) requests() int { return int(s.load.GetRunning()+s.load.GetWaiting()) + s.sent }

// pickLocked is a session that accepts requests and was not tried: `prefer` before all; of the others none that flaps or is about to give its requests
// away, if there is another; then whoever has most of the chain cached, and of these the least loaded, unless that has too much to do already.
// ready: there are some, but maybe all were tried.
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

// place submits a request that nobody has to some rank. pause: look again after it; 0: when
// something was heard.
func (p *Pool) place(r *request) (pause time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done { // since we looked
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
			r.settled = max(r.settled, s.told.Epoch) // it cannot have been counted out of that epoch
			s.sent++
			p.o.Metrics.cached.Add(float64(cached) * float64(p.blockTokens.Load()))
		default: // its queue to the wire is full
			r.busy = true
		}
	}
}

// nobodyLocked: no rank takes the request now.
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

// replayLocked: whoever had the request, if anybody, does not have it any more.
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

// ownerDiedLocked: the connection to the rank that had the request broke since.
func (p *Pool) ownerDiedLocked(r *request) bool {
	s := p.sessions[r.owner]
	return s == nil || s.send == nil || s.connection != r.over
}

// deadlyLocked counts one more rank that died while it had the request, and ends the request that had too many.
func (p *Pool) deadlyLocked(r *request) bool {
	if r.deaths++; r.deaths < maxDeaths {
		return false
	}
	p.o.Metrics.lost.Inc()
	r.end(fmt.Errorf("%w: %d ranks died while they had the request, without a token in between, so the request is not submitted again", ErrLost, r.deaths))
	return true
}

// spentLocked counts one more submission without a token in between, and ends the request that had too many.
func (p *Pool) spentLocked(r *request) bool {
	if r.replays == maxReplays {
		p.o.Metrics.lost.Inc()
		r.end(fmt.Errorf("%w: submitted %d times without a token; the last rank was %s", ErrLost, r.replays+1, r.owner))
		return true
	}
	r.replays++
	return false
}

// placeAgainLocked tries the rank first that had the request: if it has it yet, in a queue that
// was not counted, it says so.
func (p *Pool) placeAgainLocked(r *request) {
	r.accepted = true
	r.prefer, r.owner = r.owner, ""
	r.tried, r.refusal, r.pause, r.without = nil, nil, 0, time.Now()
	p.waiting[r] = true
	r.wake()
}

// resendLocked: what was sent over a connection that broke may never have arrived.
func (p *Pool) resendLocked(s *session) {
	p.requests.each(func(r *request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.owner != s.frontend || r.answered || r.over == s.connection || r.done {
			return
		}
		died := s.told.Epoch > r.settled // the world went on without it meanwhile
		if died && p.deadlyLocked(r) || p.spentLocked(r) {
			return
		}
		p.o.Metrics.resends.Inc()
		p.placeAgainLocked(r)
	})
}

// cancelAllLocked tells every session: nobody knows where the request is by now.
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
