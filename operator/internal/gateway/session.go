package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"tangram.dev/operator/internal/tcp"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// session to one engine, over successive connections. The pool's mu guards all but the first four fields. Only the
// session's own goroutine changes connection, told and member, so it reads them without mu.
type session struct {
	frontend string
	gateway  string // this gateway's name for the engine
	address  string // dial target
	seed     bool

	send       chan *tangramv1.ServeRequest // nil while down
	connection int                          // number of connections that were established
	down       time.Time                    // since when, while the session is down
	named      chan struct{}                // a newly active world has this frontend as a member, so it runs by now
	cut        bool                         // down for longer than LostAfter

	// Reported over this connection.
	heard  atomic.Int64     // time of the last message; since the pool was born
	told   *tangramv1.World // last world; nil: none
	member string           // its id in that world; "": not a member
	load   *tangramv1.Load  // last report of `member`; survives a broken connection
	loaded time.Time        // time of that report
	loadOf string           // the member that `load` describes, while the connection is down
	sent   int              // submitted since the last load report
	cached prefixes

	breaks flaps // of established connections
}

// avoid: send new requests here only if no other rank accepts them.
func (s *session) avoid(now time.Time) bool { return s.load.GetLeaving() || s.breaks.flapping(now) }

func (p *Pool) keepLocked(frontend string, seed bool) {
	if frontend == "" || p.sessions[frontend] != nil || p.ctx.Err() != nil {
		return
	}
	p.startLocked(&session{frontend: frontend, address: frontend, gateway: p.o.Gateway, seed: seed})
}

func (p *Pool) startLocked(s *session) {
	s.down, s.named = time.Now(), make(chan struct{}, 1)
	p.sessions[s.frontend] = s
	p.wait.Go(func() { p.keep(s) })
}

// keep reconnects one session until it is no longer needed.
func (p *Pool) keep(s *session) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 50*time.Millisecond, time.Second
	if p.o.pause > 0 {
		pause.InitialInterval, pause.MaxInterval = p.o.pause, p.o.pause
	}
	for p.ctx.Err() == nil {
		began := time.Now()
		up, err := p.run(s)
		if up && time.Since(began) > time.Second {
			pause.Reset()
		}
		p.mu.Lock()
		p.brokeLocked(s, up, time.Since(began), err)
		if s.cut && !s.seed && !p.memberLocked(s.frontend) {
			delete(p.sessions, s.frontend)
			p.o.Metrics.sessions.DeleteLabelValues(s.frontend)
			p.o.Metrics.breaks.DeleteLabelValues(s.frontend)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		select {
		case <-p.ctx.Done():
		case <-s.named:
			pause.Reset()
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// namedLocked redials a member of a new world immediately, without the backoff that grew while it was down. Until the
// member has sent its roster, the gateway cannot determine which requests are lost.
func (p *Pool) namedLocked(frontend string) {
	s := p.sessions[frontend]
	if s == nil || s.send != nil {
		return
	}
	select {
	case s.named <- struct{}{}:
	default:
	}
}

func (p *Pool) memberLocked(frontend string) bool {
	f := p.force.Load()
	return f != nil && f.members[frontend] != ""
}

// run is one connection. up: a first reply arrived.
func (p *Pool) run(s *session) (up bool, err error) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	conn, err := p.dial(s.address)
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
				if stream.Send(m) != nil { // Recv returns the error
					return
				}
			}
		}
	})
	defer sender.Wait()
	defer cancel()
	defer func() {
		if up {
			p.ended(s)
		}
	}()
	for {
		reply, err := stream.Recv()
		if err != nil {
			return up, err
		}
		if !up {
			up = true
			p.began(s, send)
		}
		p.receive(s, reply)
	}
}

func (p *Pool) began(s *session, send chan *tangramv1.ServeRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.send, s.cut = send, false
	s.connection++
	p.o.Metrics.sessions.WithLabelValues(s.frontend).Set(1)
}

func (p *Pool) ended(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// load stays until the rank reports again: a rank of unknown load would attract all requests.
	s.send, s.told, s.member, s.loadOf, s.sent, s.cached = nil, nil, "", s.member, 0, prefixes{}
	s.down = time.Now()
	p.o.Metrics.sessions.WithLabelValues(s.frontend).Set(0)
}

// maxReply is the largest message, in bytes, that a rank may send.
const maxReply = 64 << 20

// dial connects with TCP timeouts that detect a broken path within LostAfter.
func (p *Pool) dial(address string) (*grpc.ClientConn, error) {
	transport := insecure.NewCredentials()
	if p.o.TLS != nil {
		transport = credentials.NewTLS(p.o.TLS)
	}
	patience := max(p.o.LostAfter/2, time.Second)
	connect := p.o.connect
	if connect == nil {
		connect = tcp.Dialer(patience, p.o.LostAfter)
	}
	return grpc.NewClient(address, grpc.WithTransportCredentials(transport), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: grpcbackoff.DefaultConfig, MinConnectTimeout: patience}),
		grpc.WithContextDialer(connect))
}
