// Package gateway holds clients' connections in front of a world: it keeps a session to
// every rank's engine, sends a request to the least loaded rank that accepts it, follows
// its tokens over whichever session they come, delivers each position once, in order, and
// submits a request again, with its tokens so far, when nobody has it any more.
package gateway

import (
	"context"
	"crypto/tls"
	"log/slog"
	"sync"
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Options of a pool.
type Options struct {
	World     string
	Gateway   string        // this gateway's name: engines keep its tokens for it across reconnects
	Seeds     []string      // frontends, host:port; the others are learned
	Discover  []string      // host:port behind which is some engine of the world, maybe another each time: only asked for the world
	TLS       *tls.Config   // of a client; nil: plain, for tests
	LostAfter time.Duration // a session down for so long is cut: its requests go to another rank
	Log       *slog.Logger
	Metrics   *Metrics
}

// Pool of sessions and the requests that run over them.
type Pool struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu       sync.Mutex
	world    *tangramv1.World // in force as far as is known; nil: none yet
	heard    time.Time        // the last word of a member of it
	gone     map[string]bool  // members of worlds that were replaced as a whole
	sessions map[string]*session
	requests map[string]*request
	censuses map[uint64]*census // by epoch, all after counted
	counted  uint64             // epoch of the last census that is complete
}

// NewPool begins to connect to the seeds.
func NewPool(o Options) *Pool {
	if o.LostAfter == 0 {
		o.LostAfter = 10 * time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{o: o, ctx: ctx, cancel: cancel, gone: map[string]bool{}, sessions: map[string]*session{},
		requests: map[string]*request{}, censuses: map[uint64]*census{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seed := range o.Seeds {
		p.keepLocked(seed, true)
	}
	for _, address := range o.Discover {
		// A name of its own: an engine has one session with each gateway, and the engine behind
		// the address is a member with a session, too.
		p.startLocked(&session{frontend: "discover/" + address, address: address, gateway: o.Gateway + "/discover", seed: true})
	}
	p.wait.Go(p.watch)
	return p
}

// Close ends all sessions; running requests are lost.
func (p *Pool) Close() {
	p.cancel()
	p.wait.Wait()
}

// watch looks for what no message tells: sessions that stay down, worlds that fell silent.
func (p *Pool) watch() {
	tick := time.NewTicker(max(p.o.LostAfter/20, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case now := <-tick.C:
			p.mu.Lock()
			p.cutLocked(now)
			p.strangersLocked(now)
			p.mu.Unlock()
		}
	}
}

// World in force as the engines tell it; nil: none yet.
func (p *Pool) World() *tangramv1.World {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.world
}

// Ready says whether some rank accepts requests.
func (p *Pool) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ready := p.pickLocked(nil, "")
	return ready
}

// forsaken: no session has been up for so long.
func (p *Pool) forsaken(d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, s := range p.sessions {
		if s.send != nil || now.Sub(s.down) < d {
			return false
		}
	}
	return true
}

// receive is one message over a session.
func (p *Pool) receive(s *session, reply *tangramv1.ServeReply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.heard = time.Now()
	switch body := reply.Body.(type) {
	case *tangramv1.ServeReply_World:
		p.worldLocked(s, body.World)
	case *tangramv1.ServeReply_Roster:
		p.rosterLocked(s, body.Roster)
	case *tangramv1.ServeReply_Load:
		s.load, s.sent = body.Load, 0
	case *tangramv1.ServeReply_Refused:
		if r := p.requests[body.Refused.Request]; r != nil {
			r.refused(s, body.Refused)
		}
	case *tangramv1.ServeReply_Token:
		if r := p.requests[body.Token.Request]; r != nil {
			p.tokenLocked(s, r, body.Token)
		}
	}
	if p.insideLocked(s) {
		p.heard = s.heard
	}
}

func (p *Pool) tokenLocked(s *session, r *request, t *tangramv1.Token) {
	if t.Finish == tangramv1.Finish_FINISH_CANCELLED {
		// Not by us, or the request would not be here: the engine gave it up.
		if r.owner == s.frontend {
			p.replayLocked(r, causeCancelled)
		}
		return
	}
	if p.insideLocked(s) && t.Epoch >= p.world.Epoch {
		r.found(s, t.Epoch)
	}
	r.token(t, p.o.Metrics, p.o.Log)
}
