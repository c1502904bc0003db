package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"tangram.dev/operator/internal/testkit"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// engine acts as one rank: `on` answers a submit over the stream.
type engine struct {
	tangramv1.UnimplementedServeServer
	address  string
	world    *tangramv1.World
	can      []string // of the world that open makes
	on       func(s *tangramv1.Submit, send func(*tangramv1.ServeReply))
	canceled chan string
	silent   bool                         // sends no world
	hangsUp  bool                         // disconnects after each submit; the next session sends tokens "ab"
	breaks   func(*tangramv1.Submit) bool // breaks the connection instead of answering
	kept     atomic.Pointer[tangramv1.Submit]
	submits  atomic.Pointer[string]           // name of the gateway whose session had the last submit
	identity credentials.TransportCredentials // nil: plain
	server   *grpc.Server

	mu     sync.Mutex
	stream tangramv1.Serve_SessionServer // of the gateway's last session
	got    chan *tangramv1.Submit        // where `on` is nil
}

// say sends the gateway a reply over its session.
func (e *engine) say(r *tangramv1.ServeReply) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stream != nil {
		_ = e.stream.Send(r)
	}
}

func (e *engine) setWorld(w *tangramv1.World) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.world = w
}

func (e *engine) Session(stream tangramv1.Serve_SessionServer) error {
	send := func(r *tangramv1.ServeReply) {
		e.mu.Lock()
		defer e.mu.Unlock()
		_ = stream.Send(r)
	}
	var gateway string
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch b := m.Body.(type) {
		case *tangramv1.ServeRequest_Hello:
			gateway = b.Hello.Gateway
			e.mu.Lock()
			e.stream = stream
			world := e.world
			e.mu.Unlock()
			if e.silent || world == nil {
				continue
			}
			send(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_World{World: world}})
			if kept := e.kept.Swap(nil); kept != nil {
				send(token(kept, 0, 'a', 0))
				send(token(kept, 1, 'b', tangramv1.Finish_FINISH_LENGTH))
			}
		case *tangramv1.ServeRequest_Submit:
			e.submits.Store(&gateway)
			if e.breaks != nil && e.breaks(b.Submit) {
				return errBroke
			}
			if e.on == nil {
				e.got <- b.Submit
				continue
			}
			e.on(b.Submit, send)
			if e.hangsUp {
				e.kept.Store(b.Submit)
				return errBroke
			}
		case *tangramv1.ServeRequest_Cancel:
			e.canceled <- b.Cancel.Request
		}
	}
}

func token(s *tangramv1.Submit, i int, id uint32, finish tangramv1.Finish) *tangramv1.ServeReply {
	return &tangramv1.ServeReply{Body: &tangramv1.ServeReply_Token{Token: &tangramv1.Token{Request: s.Request,
		Position: uint32(len(s.Prompt) + i), Token: id, LogitHash: 7, Owner: "m", Finish: finish}}}
}

func refuse(code tangramv1.Refused_Code) func(*tangramv1.Submit, func(*tangramv1.ServeReply)) {
	return func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
		send(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Refused{Refused: &tangramv1.Refused{Request: s.Request, Code: code}}})
	}
}

// serve starts a gateway with engines, which all know each other.
func serve(t *testing.T, engines ...*engine) (*httptest.Server, *Metrics) {
	t.Helper()
	server, metrics, pool := open(t, Options{}, engines...)
	require.Eventually(t, func() bool { return sessionsUp(pool) == len(engines) }, soon, time.Millisecond)
	return server, metrics
}

func sessionsUp(p *Pool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	up := 0
	for _, s := range p.sessions {
		if s.send != nil {
			up++
		}
	}
	return up
}

// open is serve with pool options. It does not wait for sessions.
func open(t *testing.T, o Options, engines ...*engine) (*httptest.Server, *Metrics, *Pool) {
	t.Helper()
	world := &tangramv1.World{World: "w", Epoch: 1, MaxTokens: 64, Vocabulary: 256, Can: engines[0].can}
	for i, e := range engines {
		e.listen(t, "")
		if e.world == nil {
			e.world = world
		}
		world.Members = append(world.Members, &tangramv1.WorldMember{Rank: uint32(i), Member: fmt.Sprintf("m%d", i), Frontend: e.address, Accepts: true})
	}
	return before(t, o, engines...)
}

// listen on the in-memory network (again, after stop).
func (e *engine) listen(t *testing.T, address string) {
	t.Helper()
	l, err := testkit.Listen(address)
	require.NoError(t, err)
	e.address, e.canceled, e.got = l.Addr().String(), make(chan string, 64), make(chan *tangramv1.Submit, 64)
	if e.identity == nil {
		e.identity = insecure.NewCredentials()
	}
	e.server = grpc.NewServer(grpc.Creds(e.identity))
	tangramv1.RegisterServeServer(e.server, e)
	server := e.server
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

// byteServer is a server for models whose tokens are bytes.
func byteServer(pool *Pool, model string, limits Limits) *Server {
	s := NewServer(pool, model, limits)
	s.UseBytes()
	return s
}

// before starts a gateway with engines that already listen.
func before(t *testing.T, o Options, engines ...*engine) (*httptest.Server, *Metrics, *Pool) {
	t.Helper()
	// the other engines are discovered
	if o.Discover != nil {
		o.Discover = []string{engines[0].address}
	} else {
		o.Seeds = []string{engines[0].address}
	}
	registry := prometheus.NewRegistry()
	metrics := NewMetrics(registry, "w")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.World, o.Gateway, o.Metrics, o.connect = "w", "g", metrics, testkit.Dial
	pool := NewPool(o)
	t.Cleanup(pool.Close)
	l, err := testkit.Listen("")
	require.NoError(t, err)
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: byteServer(pool, "w", Limits{}).Handler(), ReadHeaderTimeout: soon}}
	server.Start()
	t.Cleanup(server.Close)
	return server, metrics, pool
}

// caller is a client of net/http on the in-memory network.
func caller(t *testing.T) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DialContext: dialHTTP}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func dialHTTP(ctx context.Context, _, address string) (net.Conn, error) {
	return testkit.Dial(ctx, address)
}

func post(t *testing.T, s *httptest.Server, body string) (int, http.Header, string) {
	t.Helper()
	reply, err := caller(t).Post(s.URL+"/v1/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer func() { require.NoError(t, reply.Body.Close()) }()
	text, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	return reply.StatusCode, reply.Header, string(text)
}

func TestTokensAreOrderedAndDeduplicated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(s, 1, 'b', 0))
			send(token(s, 0, 'a', 0))
			send(token(s, 0, 'a', 0))
			send(token(s, 1, 'x', 0)) // another token for a delivered position
			send(token(s, 2, 'c', tangramv1.Finish_FINISH_LENGTH))
		}}
		s, m := serve(t, e)
		code, _, body := post(t, s, `{"prompt":"hi","max_tokens":3,"return_logit_hash":true}`)
		require.Equal(t, http.StatusOK, code, body)
		require.Contains(t, body, `"text":"abc"`)
		require.Contains(t, body, `"logit_hash":"0000000000000007"`)
		require.InDelta(t, 2, testutil.ToFloat64(m.duplicates), 0)
		require.InDelta(t, 1, testutil.ToFloat64(m.conflicts), 0)
	})
}

func TestGatewayRetriesOtherRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(s, 0, 'z', tangramv1.Finish_FINISH_STOP))
		}
		s, _ := serve(t, &engine{on: refuse(tangramv1.Refused_CODE_NOT_READY)}, &engine{on: good})
		for range 4 {
			code, _, body := post(t, s, `{"prompt":[1,2],"stream":true}`)
			require.Equal(t, http.StatusOK, code)
			require.Contains(t, body, `"token_ids":[122]`)
			require.True(t, strings.HasSuffix(body, "data: [DONE]\n\n"))
		}
	})
}

func TestErrorStatusAndParameter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := serve(t, &engine{on: refuse(tangramv1.Refused_CODE_BUSY)})
		code, head, _ := post(t, s, `{"prompt":"x"}`)
		require.Equal(t, http.StatusTooManyRequests, code)
		require.NotEmpty(t, head.Get("Retry-After"))
		for body, field := range map[string]string{`{"prompt":""}`: "prompt", `{"prompt":[999]}`: "prompt", `{"prompt":"x","max_tokens":64}`: "max_tokens",
			`{"prompt":"x","n":2}`: "n", `{"prompt":"x","temperature":-1}`: "temperature", `{"prompt":"x","top_p":"a"}`: "top_p", `{`: "body"} {
			code, _, text := post(t, s, body)
			require.Equal(t, http.StatusBadRequest, code, body)
			require.Contains(t, text, `"param":"`+field+`"`)
		}
	})
}

func TestGatewayCancelsRequestOfDisconnectedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) { send(token(s, 0, 'a', 0)) }}
		s, _ := serve(t, e)
		reply, err := caller(t).Post(s.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","stream":true}`))
		require.NoError(t, err)
		_, err = reply.Body.Read(make([]byte, 10))
		require.NoError(t, err)
		require.NoError(t, reply.Body.Close())
		select {
		case <-e.canceled:
		case <-time.After(soon):
			t.Fatal("no cancel came")
		}
	})
}
