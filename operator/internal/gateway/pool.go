// Package gateway holds clients' connections in front of a world: it keeps a session to
// every rank's engine, sends a request to the least loaded rank that accepts it, follows
// its tokens over whichever session they come, and delivers each position once, in order.
package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Options of a pool.
type Options struct {
	World     string
	Gateway   string        // this gateway's name: engines keep its tokens for it across reconnects
	Seeds     []string      // frontends, host:port; the others are learned
	Discover  []string      // host:port behind which is some engine of the world, maybe another each time: only asked for the world
	TLS       *tls.Config   // of a client; nil: plain, for tests
	LostAfter time.Duration // a session down for so long is broken for good
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
	world    *tangramv1.World // of the highest epoch heard of
	sessions map[string]*session
	requests map[string]*request
}

// session to one engine. Fields below mu of the pool.
type session struct {
	frontend string
	gateway  string // the name given to the engine
	address  string // to dial
	seed     bool
	send     chan *tangramv1.ServeRequest // nil while down
	load     *tangramv1.Load
	sent     int // submitted since the last load report
}

// NewPool begins to connect to the seeds.
func NewPool(o Options) *Pool {
	if o.LostAfter == 0 {
		o.LostAfter = 10 * time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{o: o, ctx: ctx, cancel: cancel, sessions: map[string]*session{}, requests: map[string]*request{}}
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
	return p
}

// Close ends all sessions; running requests are lost.
func (p *Pool) Close() {
	p.cancel()
	p.wait.Wait()
}

func (p *Pool) keepLocked(frontend string, seed bool) {
	if frontend == "" || p.sessions[frontend] != nil || p.ctx.Err() != nil {
		return
	}
	p.startLocked(&session{frontend: frontend, address: frontend, gateway: p.o.Gateway, seed: seed})
}

func (p *Pool) startLocked(s *session) {
	p.sessions[s.frontend] = s
	p.wait.Go(func() { p.keep(s) })
}

// keep holds one session up until it is of no use any more.
func (p *Pool) keep(s *session) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 50*time.Millisecond, time.Second
	downSince := time.Now()
	lost := false
	for p.ctx.Err() == nil {
		began := time.Now()
		up, err := p.run(s)
		if up {
			downSince, lost = time.Now(), false
			if time.Since(began) > time.Second {
				pause.Reset()
			}
		}
		p.o.Log.Debug("session down", "frontend", s.frontend, "error", err)
		if !lost && time.Since(downSince) > p.o.LostAfter {
			lost = true
			p.broken(s, err)
		}
		p.mu.Lock()
		if lost && !s.seed && !p.memberLocked(s.frontend) {
			delete(p.sessions, s.frontend)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		select {
		case <-p.ctx.Done():
		case <-time.After(pause.NextBackOff()):
		}
	}
	p.broken(s, p.ctx.Err())
}

func (p *Pool) memberLocked(frontend string) bool {
	for _, m := range p.world.GetMembers() {
		if m.Frontend == frontend {
			return true
		}
	}
	return false
}

// run is one connection. up: it got as far as a first reply.
func (p *Pool) run(s *session) (up bool, err error) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	transport := credentials.NewTLS(p.o.TLS)
	if p.o.TLS == nil {
		transport = plaintext()
	}
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(transport))
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	stream, err := tangramv1.NewServeClient(conn).Session(ctx)
	if err != nil {
		return false, err
	}
	hello := &tangramv1.Hello{World: p.o.World, Gateway: s.gateway}
	if err := stream.Send(&tangramv1.ServeRequest{Body: &tangramv1.ServeRequest_Hello{Hello: hello}}); err != nil {
		return false, err
	}
	send := make(chan *tangramv1.ServeRequest, 1024)
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-send:
				if stream.Send(m) != nil { // Recv tells why
					return
				}
			}
		}
	})
	defer sender.Wait()
	defer cancel()
	defer func() {
		p.mu.Lock()
		s.send, s.load = nil, nil
		p.mu.Unlock()
		p.o.Metrics.sessions.WithLabelValues(s.frontend).Set(0)
	}()
	for {
		reply, err := stream.Recv()
		if err != nil {
			return up, err
		}
		if !up {
			up = true
			p.mu.Lock()
			s.send = send
			p.mu.Unlock()
			p.o.Metrics.sessions.WithLabelValues(s.frontend).Set(1)
		}
		p.receive(s, reply)
	}
}

func (p *Pool) receive(s *session, reply *tangramv1.ServeReply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch body := reply.Body.(type) {
	case *tangramv1.ServeReply_World:
		if p.world == nil || body.World.Epoch >= p.world.Epoch {
			p.world = body.World
			p.o.Metrics.epoch.Set(float64(body.World.Epoch))
			for _, m := range body.World.Members {
				p.keepLocked(m.Frontend, false)
			}
		}
	case *tangramv1.ServeReply_Load:
		s.load, s.sent = body.Load, 0
	case *tangramv1.ServeReply_Refused:
		if r := p.requests[body.Refused.Request]; r != nil {
			r.refused(body.Refused)
		}
	case *tangramv1.ServeReply_Token:
		if r := p.requests[body.Token.Request]; r != nil {
			r.owner = s.frontend
			r.token(body.Token, p.o.Metrics, p.o.Log)
		}
	}
}

// broken fails the requests whose tokens last came over a session that will not come back.
func (p *Pool) broken(s *session, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if r.owner == s.frontend && !r.done {
			p.o.Metrics.lost.Inc()
			r.end(fmt.Errorf("%w: the session to %s broke: %w", ErrLost, s.frontend, cause))
		}
	}
}

// pickLocked is the least loaded session that accepts requests and was not tried. busy:
// there are some, but all were tried.
func (p *Pool) pickLocked(tried map[string]bool) (*session, bool) {
	var best *session
	ready, least := false, 0
	for _, m := range p.world.GetMembers() {
		s := p.sessions[m.Frontend]
		if !m.Accepts || s == nil || s.send == nil {
			continue
		}
		ready = true
		if tried[m.Frontend] {
			continue
		}
		if n := int(s.load.GetRunning()+s.load.GetWaiting()) + s.sent; best == nil || n < least {
			best, least = s, n
		}
	}
	return best, ready
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
	_, ready := p.pickLocked(nil)
	return ready
}
