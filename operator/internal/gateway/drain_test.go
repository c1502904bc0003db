package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/testkit"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// started serves on the in-memory network. term acts like SIGTERM; ended then returns the result of Serve.
func started(t *testing.T, s *Server, d Drain) (address string, term func(), ended <-chan error) {
	t.Helper()
	l, err := testkit.Listen("")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { done <- s.Serve(ctx, l, nil, prometheus.NewRegistry(), d) })
	t.Cleanup(func() { // a bubble's time ends with its test, so the server must end first
		cancel()
		s.pool.Close()
		serving.Wait()
	})
	return l.Addr().String(), cancel, done
}

// balancer acts as a Service: it spreads connections over the gateways that were ready at its last probe.
type balancer struct {
	address string
	mu      sync.Mutex
	all     []*running
}

// running is a gateway.
type running struct {
	server  *Server
	address string
	term    func()
	ended   <-chan error
	ready   bool // in the balancer's view
}

func newBalancer(t *testing.T) *balancer {
	t.Helper()
	l, err := testkit.Listen("")
	require.NoError(t, err)
	b := &balancer{address: l.Addr().String()}
	var wait sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wait.Wait() })
	wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wait.Go(func() { b.carry(c) })
		}
	})
	over, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	wait.Go(func() {
		for tick := time.NewTicker(30 * time.Millisecond); ; { // as late as endpoint updates
			select {
			case <-over.Done():
				return
			case <-tick.C:
				b.probe()
			}
		}
	})
	return b
}

func (b *balancer) probe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.all {
		g.ready = !g.server.draining.Load() && g.server.pool.Ready()
	}
}

func (b *balancer) pick() *running {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ready []*running
	for _, g := range b.all {
		if g.ready {
			ready = append(ready, g)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	return ready[rand.IntN(len(ready))]
}

func (b *balancer) carry(c net.Conn) {
	defer func() { _ = c.Close() }()
	g := b.pick()
	if g == nil {
		return
	}
	up, err := testkit.Dial(context.Background(), g.address)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	go func() {
		_, _ = io.Copy(up, c)
		_ = up.(interface{ CloseWrite() error }).CloseWrite()
	}()
	_, _ = io.Copy(c, up)
}

// pages sends a token every 2 ms, as many as requested.
func pages(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for i := range int(s.MaxTokens) {
			<-tick.C
			finish := tangramv1.Finish_FINISH_UNSPECIFIED
			if i == int(s.MaxTokens)-1 {
				finish = tangramv1.Finish_FINISH_LENGTH
			}
			send(token(s, i, 'a'+uint32(i%26), finish))
		}
	}()
}

// wants requests a whole answer with a stock client.
func wants(ctx context.Context, c *http.Client, address string, tokens int, stream bool) error {
	body := fmt.Sprintf(`{"prompt":"x","max_tokens":%d,"stream":%t}`, tokens, stream)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	reply, err := c.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	switch {
	case err != nil:
		return err
	case reply.StatusCode != http.StatusOK:
		return fmt.Errorf("status %d: %s", reply.StatusCode, text)
	case stream && (strings.Count(string(text), `"token_ids"`) != tokens || !strings.HasSuffix(string(text), "data: [DONE]\n\n")):
		return fmt.Errorf("not %d tokens: %s", tokens, text)
	case !stream && !strings.Contains(string(text), fmt.Sprintf(`"completion_tokens":%d`, tokens)):
		return fmt.Errorf("not %d tokens: %s", tokens, text)
	}
	return nil
}

// Gateways are replaced one by one, as in a rollout. Meanwhile clients of net/http send requests over kept connections,
// or over a new one each time. No request is rejected or cut.
func TestRolloutUnderLoadLosesNoRequest(t *testing.T) {
	if raced {
		rollOut(t, 3*time.Second)
		return
	}
	synctest.Test(t, func(t *testing.T) { rollOut(t, time.Second) })
}

func rollOut(t *testing.T, lameDuck time.Duration) {
	t.Helper()
	engines := []*engine{{on: pages}, {on: pages}}
	_, _, first := open(t, Options{patience: soon}, engines...) // starts the engines
	require.Eventually(t, first.Ready, soon, time.Millisecond)
	b := newBalancer(t)
	names := 0
	add := func() *running {
		names++
		pool := NewPool(Options{World: "w", Gateway: fmt.Sprint("gateway-", names), Seeds: []string{engines[0].address}, connect: testkit.Dial, patience: soon, Log: first.o.Log, Metrics: NewMetrics(prometheus.NewRegistry(), "w")})
		g := &running{server: byteServer(pool, "w", Limits{})}
		g.address, g.term, g.ended = started(t, g.server, Drain{LameDuck: lameDuck, Grace: time.Minute})
		b.mu.Lock()
		b.all = append(b.all, g)
		b.mu.Unlock()
		require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return g.ready }, soon, time.Millisecond)
		return g
	}
	old := []*running{add(), add()}

	over, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var done atomic.Int64
	failed := make(chan error, 1024)
	for i := range 24 {
		clients.Go(func() {
			c := &http.Client{Transport: &http.Transport{DialContext: dialHTTP, DisableKeepAlives: i%3 == 0}}
			defer c.CloseIdleConnections()
			for over.Err() == nil {
				if err := wants(context.WithoutCancel(over), c, b.address, 1+rand.IntN(60), i%2 == 0); err != nil {
					failed <- err
					return
				}
				done.Add(1)
			}
		})
	}
	for range 2 { // two rollouts
		for i, g := range old {
			since := done.Load()
			old[i] = add() // a surge: no gateway ends before its replacement is ready
			g.term()
			require.NoError(t, <-g.ended)
			b.mu.Lock()
			b.all = slices.DeleteFunc(b.all, func(x *running) bool { return x == g })
			b.mu.Unlock()
			require.InDelta(t, 0, testutil.ToFloat64(g.server.metrics.lost), 0)
			require.Eventually(t, func() bool { return done.Load() > since+100 || len(failed) > 0 }, soon, time.Millisecond)
		}
	}
	stop()
	clients.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	t.Logf("%d requests", done.Load())
}

// held is a stream that continues until finish is called.
func held(t *testing.T, d Drain) (address string, term func(), ended <-chan error, finish func(), rest *bufio.Reader, s *Server) {
	t.Helper()
	last := make(chan func(), 1)
	_, _, pool := open(t, Options{}, &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
		send(token(s, 0, 'a', 0))
		last <- func() { send(token(s, 1, 'b', tangramv1.Finish_FINISH_LENGTH)) }
	}})
	require.Eventually(t, pool.Ready, soon, time.Millisecond)
	s = byteServer(pool, "w", Limits{})
	address, term, ended = started(t, s, d)
	reply, err := caller(t).Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":2,"stream":true}`))
	require.NoError(t, err)
	t.Cleanup(func() { _ = reply.Body.Close() })
	rest = bufio.NewReader(reply.Body)
	line, err := rest.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, `"text":"a"`)
	return address, term, ended, <-last, rest, s
}

// A stream that outlasts the lame duck has the whole grace period.
func TestDrainWaitsForOpenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address, term, ended, finish, rest, s := held(t, Drain{LameDuck: 20 * time.Millisecond, Grace: time.Hour})
		term()
		require.Eventually(t, func() bool { // no new connections
			c, err := testkit.Dial(t.Context(), address)
			if err == nil {
				_ = c.Close()
			}
			return err != nil
		}, soon, time.Millisecond)
		require.Equal(t, 1, s.lines.busy())
		require.Empty(t, ended)
		finish()
		text, err := io.ReadAll(rest)
		require.NoError(t, err)
		require.Contains(t, string(text), `"text":"b"`)
		require.Contains(t, string(text), "data: [DONE]")
		require.NoError(t, <-ended)
	})
}

// After the grace period the client gets an error, not only a closed connection.
func TestDrain_WhenStreamExceedsGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, term, ended, _, rest, s := held(t, Drain{Grace: 50 * time.Millisecond})
		term()
		text, err := io.ReadAll(rest)
		require.NoError(t, err)
		require.Contains(t, string(text), `"error":{"message":"the request was lost: this gateway is shutting down"`)
		require.NoError(t, <-ended)
		require.InDelta(t, 1, testutil.ToFloat64(s.metrics.lost), 0)
	})
}

// A lame-duck gateway is unready, answers, and announces that it closes connections.
func TestLameDuckAnswersRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, pool := open(t, Options{}, &engine{on: one})
		require.Eventually(t, pool.Ready, soon, time.Millisecond)
		s := byteServer(pool, "w", Limits{})
		address, term, _ := started(t, s, Drain{LameDuck: time.Hour}) // not waited for
		kept := dialed(t, address)
		models := "GET /v1/models HTTP/1.1\r\nHost: w\r\n\r\n"
		say(t, kept, models)
		reply, err := http.ReadResponse(bufio.NewReader(kept), nil)
		require.NoError(t, err)
		require.NoError(t, reply.Body.Close())
		require.False(t, reply.Close)
		term()
		require.Eventually(t, s.draining.Load, soon, time.Millisecond)
		for name, c := range map[string]net.Conn{"new": dialed(t, address), "kept": kept} {
			say(t, c, "GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n")
			reply, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err, name)
			require.NoError(t, reply.Body.Close())
			require.Equal(t, http.StatusServiceUnavailable, reply.StatusCode)
			require.True(t, reply.Close, "the client is told to come back over another connection")
		}
		require.NoError(t, wants(t.Context(), &http.Client{Transport: &http.Transport{DialContext: dialHTTP, DisableKeepAlives: true}}, address, 1, false))
	})
}
