package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Errors of Run.
var (
	ErrBusy     = errors.New("all ranks are busy")
	ErrNotReady = errors.New("no rank accepts requests")
	ErrInvalid  = errors.New("the request can never run")
	ErrLost     = errors.New("the request was lost")
)

// A world between two layouts may refuse everywhere for a moment.
const (
	notReadyFor   = 5 * time.Second
	notReadyPause = 50 * time.Millisecond
)

func plaintext() credentials.TransportCredentials { return insecure.NewCredentials() }

// request under way. Fields are guarded by the pool's mu, but for events.
type request struct {
	id      string
	owner   string                      // frontend of the last token, or of the submit
	next    uint32                      // position to deliver
	ahead   map[uint32]*tangramv1.Token // came too early
	given   map[uint32]uint32           // position -> token delivered, to compare repeats with
	done    bool
	notify  chan struct{} // one slot: something is new
	pending []*tangramv1.Token
	refusal *tangramv1.Refused
	err     error
}

func (r *request) wake() {
	select {
	case r.notify <- struct{}{}:
	default:
	}
}

func (r *request) end(err error) {
	r.done, r.err = true, err
	r.wake()
}

func (r *request) refused(why *tangramv1.Refused) {
	if len(r.given) == 0 { // a refusal of what runs already is a late echo
		r.refusal = why
		r.wake()
	}
}

// token delivers in order of position. A repeat is dropped, but it must be the same token.
func (r *request) token(t *tangramv1.Token, m *Metrics, log *slog.Logger) {
	if was, twice := r.given[t.Position]; twice || t.Position < r.next {
		m.duplicates.Inc()
		if was != t.Token {
			m.conflicts.Inc()
			log.Error("two tokens for one position", "request", r.id, "position", t.Position, "first", was, "second", t.Token, "owner", t.Owner)
		}
		return
	}
	if was := r.ahead[t.Position]; was != nil {
		m.duplicates.Inc()
		if was.Token != t.Token {
			m.conflicts.Inc()
		}
		return
	}
	r.ahead[t.Position] = t
	for {
		t := r.ahead[r.next]
		if t == nil {
			break
		}
		delete(r.ahead, r.next)
		r.given[r.next] = t.Token
		r.next++
		r.pending = append(r.pending, t)
		if t.Finish != tangramv1.Finish_FINISH_UNSPECIFIED {
			r.done = true
		}
	}
	r.wake()
}

// Run submits and calls `each` for every token in order of position, from this goroutine,
// until the last one. When ctx ends (the client left) the request is cancelled everywhere.
func (p *Pool) Run(ctx context.Context, submit *tangramv1.Submit, each func(*tangramv1.Token) error) error {
	r := &request{id: submit.Request, next: uint32(len(submit.Prompt)), ahead: map[uint32]*tangramv1.Token{},
		given: map[uint32]uint32{}, notify: make(chan struct{}, 1)}
	p.mu.Lock()
	if p.requests[r.id] != nil {
		p.mu.Unlock()
		return fmt.Errorf("%w: request %s runs already", ErrInvalid, r.id)
	}
	p.requests[r.id] = r
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.requests, r.id)
		p.mu.Unlock()
	}()
	if err := p.submit(ctx, r, submit); err != nil {
		p.cancelAll(r)
		return err
	}
	for {
		p.mu.Lock()
		tokens, done, err := r.pending, r.done, r.err
		r.pending = nil
		p.mu.Unlock()
		for _, t := range tokens {
			p.o.Metrics.tokens.Inc()
			if err := each(t); err != nil {
				p.cancelAll(r)
				return err
			}
		}
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			p.cancelAll(r)
			return ctx.Err()
		case <-r.notify:
		}
	}
}

// submit tries ranks until one accepts: it has then given a token. A rank that neither
// refuses nor answers has it in its queue.
func (p *Pool) submit(ctx context.Context, r *request, submit *tangramv1.Submit) error {
	tried, busy := map[string]bool{}, false
	giveUp := time.Now().Add(notReadyFor)
	for {
		p.mu.Lock()
		s, ready := p.pickLocked(tried)
		sent := false
		if s != nil {
			r.owner, r.refusal = s.frontend, nil
			select {
			case s.send <- &tangramv1.ServeRequest{Body: &tangramv1.ServeRequest_Submit{Submit: submit}}:
				sent = true
				s.sent++
			default: // its queue to the wire is full
				busy = true
			}
			tried[s.frontend] = true
		}
		p.mu.Unlock()
		if s == nil {
			if busy {
				return ErrBusy
			}
			if time.Now().After(giveUp) {
				return ErrNotReady
			}
			if ready { // all said NOT_READY: a flip is under way
				tried = map[string]bool{}
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(notReadyPause):
			}
			continue
		}
		if !sent {
			continue
		}
		refusal, err := p.answer(ctx, r)
		if err != nil || refusal == nil {
			return err
		}
		switch refusal.Code {
		case tangramv1.Refused_CODE_BUSY:
			busy = true
		case tangramv1.Refused_CODE_NOT_READY:
		default:
			return fmt.Errorf("%w: %s", ErrInvalid, refusal.Message)
		}
	}
}

// answer waits for the first word about a submitted request: a token, a refusal, its loss.
func (p *Pool) answer(ctx context.Context, r *request) (*tangramv1.Refused, error) {
	for {
		p.mu.Lock()
		refusal, begun := r.refusal, len(r.given) > 0 || r.done
		p.mu.Unlock()
		if begun {
			r.wake() // Run looks again
			return nil, nil
		}
		if refusal != nil {
			return refusal, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.notify:
		}
	}
}

// cancelAll tells every session: nobody knows where the request is by now.
func (p *Pool) cancelAll(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sessions {
		if s.send == nil {
			continue
		}
		select {
		case s.send <- &tangramv1.ServeRequest{Body: &tangramv1.ServeRequest_Cancel{Cancel: &tangramv1.Cancel{Request: r.id}}}:
		default:
			p.o.Log.Warn("no room to send a cancel; the request runs to its end", "request", r.id, "frontend", s.frontend)
		}
	}
}
