package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// gather is the wait for the other tokens of a step, which ranks send one by one. One message per token would cost the
// text server more than processing the tokens.
const gather = 2 * time.Millisecond

// worldEvery is the interval at which a text server's session checks whether the world's limits have changed.
const worldEvery = time.Second

// ServeTokens serves text servers (front.proto) until ctx ends. Any process that reaches the UNIX socket `l` may
// submit.
func (s *Server) ServeTokens(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxSubmit))
	tangramv1.RegisterFrontServer(server, &front{s: s})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

type front struct {
	tangramv1.UnimplementedFrontServer
	s *Server
}

// Session serves one text server. It ends when the text server disconnects, and then its requests end too.
func (f *front) Session(stream tangramv1.Front_SessionServer) error {
	world, err := f.s.pool.AwaitWorld(stream.Context())
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	limits := &tangramv1.FrontWorld{MaxTokens: world.MaxTokens, Vocabulary: world.Vocabulary}
	if err := stream.Send(&tangramv1.FrontReply{Body: &tangramv1.FrontReply_World{World: limits}}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	a := &asked{s: f.s, running: map[string]context.CancelFunc{}, pieces: map[string]*tangramv1.Piece{}, news: make(chan struct{}, 1)}
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- a.receive(ctx, stream) }()
	tick := time.NewTicker(worldEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-received:
			return err
		case <-tick.C:
			if w := f.s.pool.World(); w != nil && w.MaxTokens > 0 && (w.MaxTokens != limits.MaxTokens || w.Vocabulary != limits.Vocabulary) {
				return status.Error(codes.FailedPrecondition, "the limits of the world have changed; submit the request again")
			}
		case <-a.news:
			select {
			case err := <-received:
				return err
			case <-time.After(gather):
			}
			if err := stream.Send(&tangramv1.FrontReply{Body: &tangramv1.FrontReply_Pieces{Pieces: a.take()}}); err != nil {
				return err
			}
		}
	}
}

// asked has the requests of one session.
type asked struct {
	s    *Server
	news chan struct{} // one slot: there are pieces to send

	mu      sync.Mutex
	running map[string]context.CancelFunc
	pieces  map[string]*tangramv1.Piece // by request: tokens to send
	order   []*tangramv1.Piece
}

func (a *asked) receive(ctx context.Context, stream tangramv1.Front_SessionServer) error {
	for {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case r.GetSubmit() != nil:
			a.start(ctx, r.GetSubmit())
		case r.GetCancel() != nil:
			a.mu.Lock()
			cancel := a.running[r.GetCancel().Request]
			a.mu.Unlock()
			if cancel != nil {
				cancel()
			}
		}
	}
}

func (a *asked) start(ctx context.Context, submit *tangramv1.Submit) {
	ctx, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	_, twice := a.running[submit.Request]
	if !twice {
		a.running[submit.Request] = cancel
	}
	a.mu.Unlock()
	if twice { // a bug of the text server; the running request is not touched
		cancel()
		return
	}
	go func() {
		defer cancel()
		err := a.run(ctx, submit)
		a.mu.Lock()
		delete(a.running, submit.Request)
		a.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			a.s.doors.failed(submit.Request, err)
			a.add(submit.Request, func(p *tangramv1.Piece) { p.Error = err.Error() })
		}
	}()
}

// run runs a request to its end. It, or the ranks, find the errors that the text server does not check for.
func (a *asked) run(ctx context.Context, submit *tangramv1.Submit) error {
	world, err := a.s.pool.AwaitWorld(ctx)
	if err != nil {
		return err
	}
	if err := supported(submit, world); err != nil {
		return err
	}
	if err := fits(submit); err != nil {
		return err
	}
	bytes := holdsStreamed(submit)
	if !a.s.answers.TryAcquire(bytes) {
		return errFull
	}
	defer a.s.answers.Release(bytes)
	token := func(t *tangramv1.Token) error {
		a.add(submit.Request, func(p *tangramv1.Piece) {
			p.Tokens, p.Finish = append(p.Tokens, t.Token), t.Finish
			if t.Logprobs != nil {
				p.Logprobs = append(p.Logprobs, t.Logprobs)
			}
		})
		return nil
	}
	return a.s.pool.Run(ctx, submit, token, a.s.limits.Quiet, func() error { return nil })
}

// add changes the pending piece of a request.
func (a *asked) add(request string, change func(*tangramv1.Piece)) {
	a.mu.Lock()
	p := a.pieces[request]
	if p == nil {
		p = &tangramv1.Piece{Request: request}
		a.pieces[request] = p
		a.order = append(a.order, p)
	}
	change(p)
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default:
	}
}

// take returns all pieces to send.
func (a *asked) take() *tangramv1.Pieces {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := &tangramv1.Pieces{Pieces: a.order}
	a.order = nil
	clear(a.pieces)
	return out
}
