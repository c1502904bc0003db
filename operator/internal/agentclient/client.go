// Package agentclient is the client of one agent's control service over mTLS. Every call may be repeated within an
// attempt without harm, so gRPC retries after a lost connection. A rejection is never retried.
package agentclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/tcp"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// refusalKey is the trailing metadata that carries a Refusal.
const refusalKey = "tangram-refusal-bin"

// Prepare and Abort wait for the engine, so their deadlines are the longest.
const (
	statusDeadline  = 10 * time.Second
	prepareDeadline = 60 * time.Second
	callDeadline    = 20 * time.Second
)

// Retries of a broken connection take about two seconds in all, then the caller decides. Status is not retried: its
// callers poll, and a dead agent is news to them.
const serviceConfig = `{"methodConfig":[{"name":[{"service":"tangram.v1.Agent"}],
"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.1s","maxBackoff":"1s","backoffMultiplier":2,
"retryableStatusCodes":["UNAVAILABLE"]}},{"name":[{"service":"tangram.v1.Agent","method":"Status"}]}]}`

// reconnect soon: a stopped world waits for an agent that restarts.
var reconnect = grpc.ConnectParams{MinConnectTimeout: 2 * time.Second,
	Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}}

// silent is the timeout of a connection without traffic, and of a stream without messages. An agent sends its status
// every second.
const silent = 5 * time.Second

// Refused is an agent's rejection, with its current state.
type Refused struct {
	Agent, Call string
	Refusal     *tangramv1.Refusal
}

func (e *Refused) Error() string {
	current := e.Refusal.GetCurrent()
	return fmt.Sprintf("agent %s rejected %s (%s): %s [current: world %q, epoch %d, attempt %d]", e.Agent, e.Call,
		e.Refusal.GetCode(), e.Refusal.GetMessage(), current.GetWorld(), current.GetEpoch(), current.GetAttempt())
}

// RefusalCode returns the code of a rejection, or CODE_UNSPECIFIED for another error.
func RefusalCode(err error) tangramv1.Refusal_Code {
	var refused *Refused
	if errors.As(err, &refused) {
		return refused.Refusal.GetCode()
	}
	return tangramv1.Refusal_CODE_UNSPECIFIED
}

// Client is the client of one agent. It is safe for concurrent use.
type Client struct {
	address string
	conn    *grpc.ClientConn
	rpc     tangramv1.AgentClient
	known   atomic.Pointer[known]
	calls   atomic.Uint64
}

// Dial does not wait for the agent; the first call does.
func Dial(address string, config *tls.Config) (*Client, error) {
	return dialWith(address, config, tcp.Dialer(reconnect.MinConnectTimeout, silent))
}

func dialWith(address string, config *tls.Config, connect func(context.Context, string) (net.Conn, error)) (*Client, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithDefaultServiceConfig(serviceConfig), grpc.WithConnectParams(reconnect),
		grpc.WithContextDialer(connect),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, fmt.Errorf("agent %s: %w", address, err)
	}
	return &Client{address: address, conn: conn, rpc: tangramv1.NewAgentClient(conn)}, nil
}

// Address returns the dialled address.
func (c *Client) Address() string { return c.address }

// Calls returns the number of calls so far; an opened Watch is one.
func (c *Client) Calls() uint64 { return c.calls.Load() }

// Close ends all calls.
func (c *Client) Close() error { return c.conn.Close() }

// method is a generated call.
type method[Q, R any] func(context.Context, Q, ...grpc.CallOption) (R, error)

func call[Q, R any](ctx context.Context, c *Client, name string, deadline time.Duration, m method[Q, R], request Q) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	c.calls.Add(1)
	var trailer metadata.MD
	reply, err := m(ctx, request, grpc.Trailer(&trailer))
	return reply, c.explain(name, err, trailer)
}

func (c *Client) explain(name string, err error, trailer metadata.MD) error {
	if err == nil {
		return nil
	}
	if values := trailer.Get(refusalKey); len(values) > 0 {
		refusal := &tangramv1.Refusal{}
		if proto.Unmarshal([]byte(values[0]), refusal) == nil {
			return &Refused{Agent: c.address, Call: name, Refusal: refusal}
		}
	}
	return fmt.Errorf("agent %s: %s: %w", c.address, name, err)
}

// Status returns the status of the agent and its ranks. Layout and inventories are large, so the agent sends them only
// after changes. Statuses share them; do not modify them.
func (c *Client) Status(ctx context.Context, world string) (*tangramv1.StatusResponse, error) {
	known := c.known.Load()
	s, err := call(ctx, c, "Status", statusDeadline, c.rpc.Status, known.request(world))
	if err != nil {
		return nil, err
	}
	if known, err = known.complete(s); err != nil {
		return nil, fmt.Errorf("agent %s: Status: %w", c.address, err)
	}
	c.known.Store(known)
	return s, nil
}

// Load returns the tokens that this agent's ranks routed to the experts and executed.
func (c *Client) Load(ctx context.Context, world string) (*tangramv1.ExpertLoadResponse, error) {
	return call(ctx, c, "Load", statusDeadline, c.rpc.ExpertLoad, &tangramv1.ExpertLoadRequest{World: world})
}

// Prepare checks the plan and reserves memory.
func (c *Client) Prepare(ctx context.Context, request *tangramv1.PrepareRequest) error {
	_, err := call(ctx, c, "Prepare", prepareDeadline, c.rpc.Prepare, request)
	return err
}

// Stage starts the fetches.
func (c *Client) Stage(ctx context.Context, header *tangramv1.Header) error {
	_, err := call(ctx, c, "Stage", callDeadline, c.rpc.Stage, &tangramv1.StageRequest{Header: header})
	return err
}

// Permit allows the agent's ranks to flip at a gate.
func (c *Client) Permit(ctx context.Context, header *tangramv1.Header) error {
	_, err := call(ctx, c, "Permit", callDeadline, c.rpc.Permit, &tangramv1.PermitRequest{Header: header})
	return err
}

// Abort ends an attempt. It returns true if the agent has flipped already.
func (c *Client) Abort(ctx context.Context, header *tangramv1.Header, reason string) (bool, error) {
	reply, err := call(ctx, c, "Abort", callDeadline, c.rpc.Abort, &tangramv1.AbortRequest{Header: header, Reason: reason})
	return reply.GetFlipped(), err
}

// Retire frees the old pieces.
func (c *Client) Retire(ctx context.Context, header *tangramv1.Header) error {
	_, err := call(ctx, c, "Retire", callDeadline, c.rpc.Retire, &tangramv1.RetireRequest{Header: header})
	return err
}

// Resolve sends a survivor of a fence the outcome of an attempt, and the removed members.
func (c *Client) Resolve(ctx context.Context, header *tangramv1.Header, outcome tangramv1.Outcome, reason string, lost ...string) error {
	_, err := call(ctx, c, "Resolve", callDeadline, c.rpc.Resolve,
		&tangramv1.ResolveRequest{Header: header, Outcome: outcome, Reason: reason, Lost: lost})
	return err
}

// Release reports to an agent that these of its members were removed permanently.
func (c *Client) Release(ctx context.Context, header *tangramv1.Header, members []string, worldEnds bool, reason string) error {
	_, err := call(ctx, c, "Release", callDeadline, c.rpc.Release,
		&tangramv1.ReleaseRequest{Header: header, Members: members, WorldEnds: worldEnds, Reason: reason})
	return err
}

// Watch calls each for every status until the stream ends. It never returns nil.
func (c *Client) Watch(ctx context.Context, world string, each func(*tangramv1.StatusResponse)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hangs := time.AfterFunc(silent, func() { cancel(fmt.Errorf("the agent sent nothing for %v", silent)) })
	defer hangs.Stop()
	explain := func(err error, trailer metadata.MD) error {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return c.explain("Watch", err, trailer)
	}
	c.calls.Add(1)
	stream, err := c.rpc.Watch(ctx, &tangramv1.WatchRequest{World: world})
	if err != nil {
		return explain(err, nil)
	}
	for {
		reply, err := stream.Recv()
		if err != nil {
			return explain(err, stream.Trailer())
		}
		hangs.Reset(silent)
		each(reply.GetStatus())
	}
}
