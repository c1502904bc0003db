// Package gateway holds clients' connections in front of a world. It keeps a session to every rank's engine and sends
// each request to a suitable rank that accepts it. It follows a request's tokens over any session and delivers each
// position once, in order. When no rank has a request any longer, it submits the request again with its tokens so far.
package gateway

import (
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/lru"

	"tangram.dev/operator/pkg/telemetry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Options of a pool.
type Options struct {
	World     string
	Gateway   string        // this gateway's name: engines keep its tokens across reconnects
	Seeds     []string      // frontends, host:port; the others are discovered
	Discover  []string      // host:port of any engine of the world, which may change; only queried for the world
	TLS       *tls.Config   // client side; nil: plain, for tests
	LostAfter time.Duration // a session that is down this long is cut: its requests go to another rank
	// ByLoadAlone ignores the ranks' prefix caches.
	ByLoadAlone bool
	Log         *slog.Logger
	Metrics     *Metrics

	connect  func(context.Context, string) (net.Conn, error) // dials an engine, for tests; nil: TCP
	pause    time.Duration                                   // between two dials, for tests; 0: 50 ms, growing to a second
	patience time.Duration                                   // wait for a rank that accepts, for tests; 0: notReadyFor
}

// mostGone is the number of members of replaced worlds to remember, the latest ones.
const mostGone = 1 << 14

// Pool has the sessions and the requests that run over them. A token locks only its request. New requests, load reports
// and flips lock the pool.
type Pool struct {
	o        Options
	ctx      context.Context
	cancel   context.CancelFunc
	wait     sync.WaitGroup
	born     time.Time
	heard    atomic.Int64          // last message of an active member; since born
	force    atomic.Pointer[force] // active world, as received; nil: none yet. Written under mu
	requests requests
	felt     felt

	blockTokens atomic.Uint32 // block size of the prefix caches; 0: unknown

	incarnation uint64 // identifies the lifetime of its counters

	mu       sync.Mutex // locked before any request's mu
	gone     *lru.Cache // members of worlds that were replaced as a whole
	sessions map[string]*session
	waiting  map[*request]bool  // all unassigned requests, and some that were found since
	censuses map[uint64]*census // by epoch, all after counted
	counted  uint64             // epoch of the last completed census
}

// force is the active world.
type force struct {
	world   *tangramv1.World
	members map[string]string // by frontend
	names   map[string]bool   // member ids
}

func newForce(w *tangramv1.World) *force {
	f := &force{world: w, members: make(map[string]string, len(w.Members)), names: make(map[string]bool, len(w.Members))}
	for _, m := range w.Members {
		f.members[m.Frontend], f.names[m.Member] = m.Member, true
	}
	return f
}

// has: the session's engine is a member. Called by the session's own goroutine, or under the pool's lock.
func (f *force) has(s *session) bool {
	return f != nil && s.told != nil && s.member != "" && f.members[s.frontend] == s.member
}

// disjoint: w and this world share no member.
func (f *force) disjoint(w *tangramv1.World) bool {
	for _, m := range w.Members {
		if f.names[m.Member] {
			return false
		}
	}
	return true
}

// requests by id, read by all sessions concurrently.
type requests struct{ sync.Map }

func (q *requests) find(id string) *request {
	if r, there := q.Load(id); there {
		return r.(*request) //nolint:forcetypeassert // nothing else is stored
	}
	return nil
}

func (q *requests) each(do func(*request)) {
	q.Range(func(_, r any) bool {
		do(r.(*request)) //nolint:forcetypeassert // nothing else is stored
		return true
	})
}

// NewPool starts to connect to the seeds.
func NewPool(o Options) *Pool {
	if o.LostAfter == 0 {
		o.LostAfter = 10 * time.Second
	}
	if o.patience == 0 {
		o.patience = notReadyFor
	}
	ctx, cancel := context.WithCancel(context.Background())
	now := time.Now()
	p := &Pool{o: o, ctx: ctx, cancel: cancel, born: now, incarnation: rand.Uint64(), felt: felt{latencies: telemetry.Latencies{}, waits: waits{born: now}}, gone: lru.New(mostGone), sessions: map[string]*session{},
		waiting: map[*request]bool{}, censuses: map[uint64]*census{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seed := range o.Seeds {
		p.keepLocked(seed, true)
	}
	for _, address := range o.Discover {
		// A separate name: an engine has one session per gateway, and the engine behind this address is also a member
		// with a session.
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

// watch polls for events without a message: sessions that stay down, and unresponsive worlds.
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
			p.strangersLocked()
			p.mu.Unlock()
		}
	}
}

// World returns the active world as the engines reported it; nil: none yet.
func (p *Pool) World() *tangramv1.World {
	if f := p.force.Load(); f != nil {
		return f.world
	}
	return nil
}

// AwaitWorld returns the active world. It waits for one as long as a request waits for a rank: a new gateway has none
// at first, and neither has one whose world restarted. ErrNotReady: timeout.
func (p *Pool) AwaitWorld(ctx context.Context) (*tangramv1.World, error) {
	if world := p.World(); world != nil && world.MaxTokens > 0 {
		return world, nil
	}
	look := time.NewTicker(notReadyPause)
	defer look.Stop()
	giveUp := time.NewTimer(p.o.patience)
	defer giveUp.Stop()
	for {
		if world := p.World(); world != nil && world.MaxTokens > 0 {
			return world, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-giveUp.C:
			return nil, ErrNotReady
		case <-look.C:
		}
	}
}

// silence returns the time since a message at `heard`, which counts from born.
func (p *Pool) silence(heard *atomic.Int64) time.Duration {
	return time.Since(p.born) - time.Duration(heard.Load())
}

// Ready reports whether some rank accepts requests.
func (p *Pool) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _, ready := p.pickLocked(nil, "", nil)
	return ready
}

// forsaken: every session has been down for at least d.
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

// receive handles one message of a session.
func (p *Pool) receive(s *session, reply *tangramv1.ServeReply) {
	now := int64(time.Since(p.born))
	s.heard.Store(now)
	switch body := reply.Body.(type) {
	case *tangramv1.ServeReply_Token:
		if r := p.requests.find(body.Token.Request); r != nil {
			p.token(s, r, body.Token)
		}
	case *tangramv1.ServeReply_Refused:
		if r := p.requests.find(body.Refused.Request); r != nil {
			r.mu.Lock()
			r.refused(s, body.Refused)
			r.mu.Unlock()
		}
	default:
		p.news(s, reply)
	}
	if p.force.Load().has(s) {
		p.heard.Store(now)
	}
}

// news handles messages that do not belong to one request.
func (p *Pool) news(s *session, reply *tangramv1.ServeReply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch body := reply.Body.(type) {
	case *tangramv1.ServeReply_World:
		p.worldLocked(s, body.World)
	case *tangramv1.ServeReply_Roster:
		p.rosterLocked(s, body.Roster)
	case *tangramv1.ServeReply_Load:
		p.prefixesLocked(s, body.Load.Prefixes)
		body.Load.Prefixes = nil
		s.load, s.loaded, s.sent = body.Load, time.Now(), 0
	}
}

func (p *Pool) token(s *session, r *request, t *tangramv1.Token) {
	if t.Finish == tangramv1.Finish_FINISH_CANCELLED {
		p.mu.Lock()
		defer p.mu.Unlock()
		r.mu.Lock()
		defer r.mu.Unlock()
		// The gateway did not cancel it, because the request is still registered: the engine did.
		if r.owner == s.frontend {
			p.replayLocked(r, causeCancelled)
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// A census that finds the request missing in a later epoch locks it, after that world became active.
	if f := p.force.Load(); f.has(s) && t.Epoch >= f.world.Epoch {
		r.found(s, t.Epoch)
	}
	r.token(t, p.o.Metrics, p.o.Log)
}
