package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/semaphore"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Limits of what clients may take of a gateway. 0: the default.
type Limits struct {
	Body        int64         // bytes of one request's body (16 MiB)
	Bodies      int64         // bytes of all bodies that are held at a time; parsed, they are some 8 times as large (64 MiB)
	Answers     int64         // bytes that all requests may hold until they are answered: prompts, answers, tokens that clients have not taken (1 GiB)
	Connections int           // of clients, at a time; more wait to be accepted (16384)
	Read        time.Duration // for a request to come, from its first byte to its last (30 s)
	Write       time.Duration // for a client to take what was sent to it (30 s)
	Idle        time.Duration // of a connection between two requests; longer than clients keep theirs (120 s)
	Quiet       time.Duration // of a stream, after which a comment shows that it lives (15 s)
}

func (l *Limits) defaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&l.Read, 30 * time.Second}, {&l.Write, 30 * time.Second}, {&l.Idle, 2 * time.Minute}, {&l.Quiet, 15 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if l.Body == 0 {
		l.Body = 16 << 20
	}
	if l.Bodies == 0 {
		l.Bodies = 64 << 20
	}
	if l.Answers == 0 {
		l.Answers = 1 << 30
	}
	if l.Connections == 0 {
		l.Connections = 16384
	}
}

// Drain is how a gateway ends.
type Drain struct {
	// LameDuck: for so long it is unready and answers nevertheless, until nobody sends it anything any
	// more. A connection on which nothing comes for so long afterwards is closed.
	LameDuck time.Duration
	Grace    time.Duration // then requests that run have so long to end
}

// textzWithin: a text server that does not render one word for so long hangs. Shorter than the time that an answer has to be written (Limits.Write), and than the
// kubelet's patience.
const textzWithin = 20 * time.Second

// forsakenAfter: while it ends, a gateway that has reached no rank for so long waits for none.
const forsakenAfter = 30 * time.Second

// Server of the HTTP side.
type Server struct {
	pool     *Pool
	model    string
	limits   Limits
	log      *slog.Logger
	metrics  *Metrics
	room     *semaphore.Weighted // for bytes of bodies
	answers  *semaphore.Weighted // for bytes that requests hold until they are answered
	draining atomic.Bool
	lines    lines
	began    time.Time
	doors    doors
	door     *door // nil: there is no text server
	bytes    bool  // a token is a byte
}

// NewServer in front of a pool, for a model of this name.
func NewServer(pool *Pool, model string, limits Limits) *Server {
	limits.defaults()
	return &Server{pool: pool, model: model, limits: limits, log: pool.o.Log, metrics: pool.o.Metrics, room: semaphore.NewWeighted(limits.Bodies), answers: semaphore.NewWeighted(limits.Answers),
		lines: lines{states: map[net.Conn]http.ConnState{}}, began: time.Now(), doors: doors{why: map[string]error{}}}
}

// UseBytes has a token be a byte, in worlds whose vocabulary has 256 tokens. Before Handler and Serve.
func (s *Server) UseBytes() { s.bytes = true }

func (s *Server) bytesAreTokens(world *tangramv1.World) bool {
	return s.bytes && world.Vocabulary == byteVocabulary
}

// UseText has what needs a tokenizer answered by the text server behind this UNIX socket. Before Handler and Serve.
func (s *Server) UseText(socket string) {
	s.door = newDoor(s, func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", socket) })
}

// Operations are /livez, /readyz, /textz and /metrics: for kubelet and Prometheus, not for clients.
func (s *Server) Operations(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /textz", s.textz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	return mux
}

// textz says whether the text server renders a chat: a template that loops, or a server that hangs, is found by it.
func (s *Server) textz(w http.ResponseWriter, r *http.Request) {
	if s.door == nil {
		http.Error(w, "this gateway has no text server", http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), textzWithin)
	defer cancel()
	if err := s.door.renders(ctx); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// ready says whether to send requests here.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.draining.Load():
		http.Error(w, "this gateway is shutting down", http.StatusServiceUnavailable)
	case !s.pool.Ready():
		w.Header().Set("Retry-After", "1")
		http.Error(w, "no rank accepts requests", http.StatusServiceUnavailable)
	default:
		_, _ = fmt.Fprintln(w, "ok")
	}
}

// Serve clients, and operations if it is not nil, until ctx ends; then until all requests have ended, as Drain
// says. The listeners are closed; the pool is, too, if requests had to be cut.
func (s *Server) Serve(ctx context.Context, clients, operations net.Listener, g prometheus.Gatherer, d Drain) error {
	front := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: s.limits.Read, ReadTimeout: s.limits.Read, IdleTimeout: s.limits.Idle,
		MaxHeaderBytes: 64 << 10, ConnState: s.lines.note, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	ended := make(chan error, 2)
	var running sync.WaitGroup
	run := func(h *http.Server, l net.Listener) {
		running.Go(func() { ended <- h.Serve(l) })
	}
	defer running.Wait()
	run(front, netutil.LimitListener(clients, s.limits.Connections))
	defer func() { _ = front.Close() }()
	if operations != nil {
		back := &http.Server{Handler: s.Operations(g), ReadTimeout: s.limits.Read, WriteTimeout: s.limits.Write, IdleTimeout: s.limits.Idle, MaxHeaderBytes: 64 << 10}
		run(back, netutil.LimitListener(operations, 64))
		defer func() { _ = back.Close() }()
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	return s.drain(context.WithoutCancel(ctx), front, clients, d)
}

// drain as long as it takes, and no longer than d says.
func (s *Server) drain(ctx context.Context, front *http.Server, clients net.Listener, d Drain) error {
	s.draining.Store(true) // unready; each answer closes its connection
	s.log.Info("draining", "lameDuck", d.LameDuck, "grace", d.Grace)
	time.Sleep(d.LameDuck)
	if err := clients.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	grace, cancel := context.WithTimeout(ctx, d.Grace)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	// A stream that began before the drain did not tell its client that its connection closes: the client may send its
	// next request over it at once, and it is answered.
	for !s.lines.quiet(d.LameDuck) && !s.pool.forsaken(forsakenAfter) && grace.Err() == nil {
		select {
		case <-grace.Done():
		case <-tick.C:
		}
	}
	if n := s.lines.busy(); n > 0 {
		s.log.Warn("grace period ended, aborting requests", "requests", n)
		s.pool.Close() // they are told
	}
	last, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	// The listener is closed, and whether its server knows by now is open.
	if err := front.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	s.log.Info("drained")
	return nil
}

// lines are the connections of clients.
type lines struct {
	mu     sync.Mutex
	states map[net.Conn]http.ConnState
	active int       // with a request under way
	last   time.Time // when one became idle
}

func (l *lines) note(c net.Conn, now http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.states[c] == http.StateActive {
		l.active--
	}
	switch now {
	case http.StateClosed, http.StateHijacked:
		delete(l.states, c)
		return
	case http.StateActive:
		l.active++
	case http.StateIdle:
		l.last = time.Now()
	}
	l.states[c] = now
}

func (l *lines) busy() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active
}

// quiet: no request is under way, and none is to be expected on a connection that had one.
func (l *lines) quiet(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.states) == 0 || l.active == 0 && time.Since(l.last) >= d
}
