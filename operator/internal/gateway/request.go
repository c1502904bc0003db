package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Errors of Run.
var (
	ErrBusy     = errors.New("all ranks are busy")
	ErrNotReady = errors.New("no rank accepts requests")
	ErrInvalid  = errors.New("the request can never run")
	ErrLost     = errors.New("the request was lost")
)

// request in progress. place.go, which finds a rank for it, also holds the pool's lock.
type request struct {
	id     string
	submit *tangramv1.Submit // as the client sent it
	chain  []uint64          // hashes of its prompt's blocks, to find ranks that cached them

	mu sync.Mutex // locked after the pool's; guards the fields below

	// Placement.
	owner    string // frontend of its rank, or of the last one tried; "": none
	over     int    // number of the connection that it was sent over
	answered bool   // the rank has sent something about it since
	settled  uint64 // it cannot have been lost in this epoch or before
	replays  int    // since the last token
	deaths   int    // of ranks that had it, since the last token
	twice    bool   // was replayed: two ranks may have it

	// To find a rank.
	prefer   string
	tried    map[string]bool
	busy     bool // some rank reported CODE_BUSY
	accepted bool // some rank had it: it is no longer rejected
	giveUp   time.Time
	pause    time.Duration
	without  time.Time // start of the time without a rank, if it has none
	refusal  *tangramv1.Refused

	// Results.
	out     []uint32                    // delivered, from the end of the prompt on
	ahead   map[uint32]*tangramv1.Token // arrived out of order, by position
	pending []pendingToken              // delivered in order, not yet passed to the client
	member  string                      // owner of the last pending token
	done    bool
	err     error
	notify  chan struct{} // one slot: something changed
}

func newRequest(submit *tangramv1.Submit, patience time.Duration) *request {
	now := time.Now()
	return &request{id: submit.Request, submit: submit, giveUp: now.Add(patience), without: now,
		ahead: map[uint32]*tangramv1.Token{}, notify: make(chan struct{}, 1)}
}

// rest returns the request with its delivered tokens, from which the answer continues.
func (r *request) rest() *tangramv1.Submit {
	if len(r.out) == 0 {
		return r.submit
	}
	rest := proto.CloneOf(r.submit)
	rest.Prompt = append(rest.Prompt, r.out...)
	rest.Generated = uint32(len(r.out))
	return rest
}

func (r *request) next() uint32 { return uint32(len(r.submit.Prompt) + len(r.out)) }

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

// found: the engine behind s has the request in this epoch.
func (r *request) found(s *session, epoch uint64) {
	r.owner, r.over, r.answered, r.refusal = s.frontend, s.connection, true, nil
	r.settled = max(r.settled, epoch)
}

// refused handles a rejection. One from another rank than the last one tried is outdated.
func (r *request) refused(s *session, why *tangramv1.Refused) {
	if r.owner != s.frontend {
		return
	}
	r.answered = true
	if why.Code == tangramv1.Refused_CODE_RUNNING {
		r.accepted = true
		return
	}
	r.refusal = why
	r.wake()
}

// token delivers in order of position. A duplicate is dropped, and must be the same token.
func (r *request) token(t *tangramv1.Token, m *Metrics, log *slog.Logger) {
	if r.done {
		return
	}
	if t.Position < r.next() {
		m.duplicates.Inc()
		i := int(t.Position) - len(r.submit.Prompt)
		if i < 0 || r.out[i] != t.Token {
			m.conflicts.Inc()
			log.Error("received two different tokens for one position", "request", r.id, "position", t.Position, "second", t.Token, "owner", t.Owner)
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
	for t := r.ahead[r.next()]; t != nil && !r.done; t = r.ahead[r.next()] {
		delete(r.ahead, t.Position)
		r.out = append(r.out, t.Token)
		if t.Finish == tangramv1.Finish_FINISH_UNSPECIFIED && uint32(len(r.out)) == r.submit.MaxTokens {
			t.Finish = tangramv1.Finish_FINISH_LENGTH // the requested number of tokens is reached
		}
		r.pending = append(r.pending, r.pend(t))
		r.replays, r.deaths, r.accepted = 0, 0, true
		r.done = t.Finish != tangramv1.Finish_FINISH_UNSPECIFIED
	}
	r.wake()
}

// pendingToken is a token that the client has not read. It is smaller than its message: a slow client may have many.
type pendingToken struct {
	token, position uint32
	hash            uint64
	owner           string
	finish          tangramv1.Finish
	logprobs        *tangramv1.Logprobs
}

// pend shares the owner's string with the previous token whenever they are equal.
func (r *request) pend(t *tangramv1.Token) pendingToken {
	if r.member != t.Owner {
		r.member = t.Owner
	}
	return pendingToken{t.Token, t.Position, t.LogitHash, r.member, t.Finish, t.Logprobs}
}

func (t pendingToken) message(id string) *tangramv1.Token {
	return &tangramv1.Token{Request: id, Position: t.position, Token: t.token, LogitHash: t.hash, Owner: t.owner, Finish: t.finish, Logprobs: t.logprobs}
}

// Run submits a request. It calls `each` for every token in order of position, from this goroutine, until the last one,
// and `quiet` after each `pause` without a token. When ctx ends (the client disconnected), the request is cancelled on
// all ranks.
func (p *Pool) Run(ctx context.Context, submit *tangramv1.Submit, each func(*tangramv1.Token) error, pause time.Duration, quiet func() error) error {
	r := newRequest(submit, p.o.patience)
	r.chain = chainOf(submit.Prompt, submit.CacheSalt, p.blockTokens.Load())
	if _, there := p.requests.LoadOrStore(r.id, r); there {
		return fmt.Errorf("%w: request %s is already running", ErrInvalid, r.id)
	}
	c := p.felt.start(p.o.Metrics, len(submit.Prompt))
	err := p.follow(ctx, r, c.around(each), pause, quiet)
	c.end(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests.Delete(r.id)
	delete(p.waiting, r)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || r.twice {
		p.cancelAllLocked(r)
	}
	return err
}

func (p *Pool) follow(ctx context.Context, r *request, each func(*tangramv1.Token) error, silence time.Duration, quiet func() error) error {
	still := time.NewTimer(silence)
	defer still.Stop()
	for {
		r.mu.Lock()
		tokens, done, err := r.pending, r.done, r.err
		r.pending = nil
		homeless := r.owner == "" || r.refusal != nil
		r.mu.Unlock()
		var pause time.Duration
		if !done && homeless {
			pause, err = p.place(r)
		}
		if len(tokens) > 0 {
			still.Reset(silence)
		}
		for _, t := range tokens {
			p.o.Metrics.generated.Inc()
			if err := each(t.message(r.id)); err != nil {
				return err
			}
		}
		if done || err != nil {
			return err
		}
		var again <-chan time.Time
		if pause > 0 {
			again = time.After(pause)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ctx.Done():
			p.o.Metrics.lost.Inc()
			return fmt.Errorf("%w: this gateway is shutting down", ErrLost)
		case <-r.notify:
		case <-again:
		case <-still.C:
			if err := quiet(); err != nil {
				return err
			}
			still.Reset(silence)
		}
	}
}
