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

// Limits on clients' use of a gateway. 0: the default.
type Limits struct {
	Body        int64         // bytes of one request's body (16 MiB)
	Bodies      int64         // bytes of all bodies held; parsed, they are about 8 times as large (64 MiB)
	Answers     int64         // bytes that all requests hold until answered: prompts, answers, unread tokens (1 GiB)
	Connections int           // concurrent ones of clients; more wait to be accepted (16384)
	Read        time.Duration // to receive a request, from its first byte to its last (30 s)
	Write       time.Duration // for a client to read what was written (30 s)
	Idle        time.Duration // of a connection between two requests; longer than clients' own timeouts (120 s)
	Quiet       time.Duration // of a stream, after which a keep-alive comment is sent (15 s)
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

// Drain defines the shutdown of a gateway.
type Drain struct {
	// LameDuck is how long the gateway is unready but still accepts and answers requests, while clients and load
	// balancers stop sending them. After that, a connection that is idle for this long is closed.
	LameDuck time.Duration
	Grace    time.Duration // then running requests have this long to end
}

// textzWithin is the timeout of rendering one word: a slower text server is unresponsive. It is shorter than
// Limits.Write and than the kubelet's probe timeout.
const textzWithin = 20 * time.Second

// forsakenAfter: a draining gateway that has reached no rank for this long waits no longer.
const forsakenAfter = 30 * time.Second

// Server serves the HTTP API.
type Server struct {
	pool     *Pool
	model    string
	limits   Limits
	log      *slog.Logger
	metrics  *Metrics
	room     *semaphore.Weighted // bytes of request bodies
	answers  *semaphore.Weighted // bytes that requests hold until they are answered
	draining atomic.Bool
	lines    lines
	began    time.Time
	doors    doors
	door     *door // nil: no text server
	bytes    bool  // a token is a byte
}

// NewServer serves a pool, for a model of this name.
func NewServer(pool *Pool, model string, limits Limits) *Server {
	limits.defaults()
	return &Server{pool: pool, model: model, limits: limits, log: pool.o.Log, metrics: pool.o.Metrics, room: semaphore.NewWeighted(limits.Bodies), answers: semaphore.NewWeighted(limits.Answers),
		lines: lines{states: map[net.Conn]http.ConnState{}}, began: time.Now(), doors: doors{why: map[string]error{}}}
}

// UseBytes makes each byte a token, in worlds whose vocabulary has 256 tokens. Call it before Handler and Serve.
func (s *Server) UseBytes() { s.bytes = true }

func (s *Server) bytesAreTokens(world *tangramv1.World) bool {
	return s.bytes && world.Vocabulary == byteVocabulary
}

// UseText forwards requests that need a tokenizer to the text server at this UNIX socket. Before Handler and Serve.
func (s *Server) UseText(socket string) {
	s.door = newDoor(s, func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", socket) })
}

// Operations serves /livez, /readyz, /textz and /metrics, for kubelet and Prometheus, not for clients.
func (s *Server) Operations(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /textz", s.textz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	return mux
}

// textz reports whether the text server renders a chat. It detects a template that loops and an unresponsive server.
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

// ready reports whether to send requests here.
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

// Serve serves clients, and operations if it is not nil, until ctx ends; then it drains as d says. It closes the
// listeners, and the pool if requests had to be aborted.
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

// drain waits for the running requests, within the limits of d.
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
	// A stream that began before the drain did not announce that its connection closes. The client may send its next
	// request over it immediately, and that one is answered.
	for !s.lines.quiet(d.LameDuck) && !s.pool.forsaken(forsakenAfter) && grace.Err() == nil {
		select {
		case <-grace.Done():
		case <-tick.C:
		}
	}
	if n := s.lines.busy(); n > 0 {
		s.log.Warn("grace period ended, aborting requests", "requests", n)
		s.pool.Close() // clients get an error
	}
	last, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	// The listener is closed; its server may not have noticed yet.
	if err := front.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	s.log.Info("drained")
	return nil
}

// lines has the connections of clients.
type lines struct {
	mu     sync.Mutex
	states map[net.Conn]http.ConnState
	active int       // with a running request
	last   time.Time // when a connection last became idle
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

// quiet: no request is running, and none is expected on a connection that had one.
func (l *lines) quiet(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.states) == 0 || l.active == 0 && time.Since(l.last) >= d
}
