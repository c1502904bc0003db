// Package gateway holds clients' connections in front of a world: it keeps a session to
// every rank's engine, sends a request to the least loaded rank that accepts it, follows
// its tokens over whichever session they come, delivers each position once, in order, and
// submits a request again, with its tokens so far, when nobody has it any more.
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
	Gateway   string        // this gateway's name: engines keep its tokens for it across reconnects
	Seeds     []string      // frontends, host:port; the others are learned
	Discover  []string      // host:port behind which is some engine of the world, maybe another each time: only asked for the world
	TLS       *tls.Config   // of a client; nil: plain, for tests
	LostAfter time.Duration // a session down for so long is cut: its requests go to another rank
	// ByLoadAlone: what ranks have cached is not asked for.
	ByLoadAlone bool
	Log         *slog.Logger
	Metrics     *Metrics

	connect  func(context.Context, string) (net.Conn, error) // to an engine, for tests; nil: by TCP
	pause    time.Duration                                   // between two dials, for tests; 0: 50 ms, growing to a second
	patience time.Duration                                   // of a request that no rank takes, for tests; 0: notReadyFor
}

// mostGone: members of worlds that are over are known for so many, the last ones.
const mostGone = 1 << 14

// Pool of sessions and the requests that run over them. What comes for each token takes the lock
// of its request only; the pool's is for what comes with a request, a load report or a flip.
type Pool struct {
	o        Options
	ctx      context.Context
	cancel   context.CancelFunc
	wait     sync.WaitGroup
	born     time.Time
	heard    atomic.Int64          // the last word of a member of the world in force; since born
	force    atomic.Pointer[force] // as far as is known; nil: none yet. Changed under mu
	requests requests
	felt     felt

	blockTokens atomic.Uint32 // of what engines have cached; 0: not known

	incarnation uint64 // of its counters

	mu       sync.Mutex // before any request's
	gone     *lru.Cache // members of worlds that were replaced as a whole
	sessions map[string]*session
	waiting  map[*request]bool  // all that nobody has, and some that were found meanwhile
	censuses map[uint64]*census // by epoch, all after counted
	counted  uint64             // epoch of the last census that is complete
}

// force is the world in force.
type force struct {
	world   *tangramv1.World
	members map[string]string // by frontend
	names   map[string]bool   // of the members
}

func newForce(w *tangramv1.World) *force {
	f := &force{world: w, members: make(map[string]string, len(w.Members)), names: make(map[string]bool, len(w.Members))}
	for _, m := range w.Members {
		f.members[m.Frontend], f.names[m.Member] = m.Member, true
	}
	return f
}

// has: the engine behind the session is a member. Asked by the session's own goroutine, or under the pool's lock.
func (f *force) has(s *session) bool {
	return f != nil && s.told != nil && s.member != "" && f.members[s.frontend] == s.member
}

// disjoint: no member of w is one of it.
func (f *force) disjoint(w *tangramv1.World) bool {
	for _, m := range w.Members {
		if f.names[m.Member] {
			return false
		}
	}
	return true
}

// requests by id, read by all sessions at a time.
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

// NewPool begins to connect to the seeds.
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
			p.strangersLocked()
			p.mu.Unlock()
		}
	}
}

// World in force as the engines tell it; nil: none yet.
func (p *Pool) World() *tangramv1.World {
	if f := p.force.Load(); f != nil {
		return f.world
	}
	return nil
}

// AwaitWorld gives the world in force, and waits for one as long as a request waits for a rank: a gateway that has just begun, or whose
// world was started again, has none for a moment. ErrNotReady: none came.
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

// silence since something was heard at a time that is counted from born.
func (p *Pool) silence(heard *atomic.Int64) time.Duration {
	return time.Since(p.born) - time.Duration(heard.Load())
}

// Ready says whether some rank accepts requests.
func (p *Pool) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _, ready := p.pickLocked(nil, "", nil)
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

// news are what is not of one request.
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
		// Not by us, or the request would not be here: the engine gave it up.
		if r.owner == s.frontend {
			p.replayLocked(r, causeCancelled)
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Whoever counts the request out of a later epoch does so with its lock, after that world came into force.
	if f := p.force.Load(); f.has(s) && t.Epoch >= f.world.Epoch {
		r.found(s, t.Epoch)
	}
	r.token(t, p.o.Metrics, p.o.Log)
}
