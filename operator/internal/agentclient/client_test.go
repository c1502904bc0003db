package agentclient

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/pki"
	"tangram.dev/operator/internal/testkit"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// agent answers every call with err, and sets the trailer if there is one.
type agent struct {
	tangramv1.UnimplementedAgentServer
	err     func(call int64) error // by call, from 1
	trailer []byte
	calls   atomic.Int64
	last    proto.Message // of Resolve and Release
	hangs   bool          // after the third status
}

func (a *agent) answer(ctx context.Context) error {
	err := a.err(a.calls.Add(1))
	if err != nil && a.trailer != nil {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(refusalKey, string(a.trailer)))
	}
	return err
}

func (a *agent) Prepare(ctx context.Context, _ *tangramv1.PrepareRequest) (*tangramv1.PrepareResponse, error) {
	return &tangramv1.PrepareResponse{}, a.answer(ctx)
}

func (a *agent) Abort(ctx context.Context, _ *tangramv1.AbortRequest) (*tangramv1.AbortResponse, error) {
	return &tangramv1.AbortResponse{Flipped: true}, a.answer(ctx)
}

func (a *agent) Resolve(ctx context.Context, q *tangramv1.ResolveRequest) (*tangramv1.ResolveResponse, error) {
	a.last = q
	return &tangramv1.ResolveResponse{}, a.answer(ctx)
}

func (a *agent) Release(ctx context.Context, q *tangramv1.ReleaseRequest) (*tangramv1.ReleaseResponse, error) {
	a.last = q
	return &tangramv1.ReleaseResponse{}, a.answer(ctx)
}

func (a *agent) Status(ctx context.Context, _ *tangramv1.StatusRequest) (*tangramv1.StatusResponse, error) {
	return &tangramv1.StatusResponse{}, a.answer(ctx)
}

func (a *agent) Watch(_ *tangramv1.WatchRequest, stream tangramv1.Agent_WatchServer) error {
	for epoch := range uint64(3) {
		if err := stream.Send(&tangramv1.WatchResponse{Status: &tangramv1.StatusResponse{Epoch: epoch}}); err != nil {
			return err
		}
	}
	if a.hangs {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	return a.answer(stream.Context())
}

// listen serves an agent over mTLS as `role`, on a network in memory, and returns a driver's client of it.
func listen(t *testing.T, a *agent, role string) *Client {
	t.Helper()
	authority, err := pki.OpenFolder(t.TempDir(), "w")
	require.NoError(t, err)
	hosts := []string{"127.0.0.1"}
	served, err := authority.Issue("server", role, hosts)
	require.NoError(t, err)
	shown, err := authority.Issue("driver", "driver", hosts)
	require.NoError(t, err)
	serverTLS, err := pki.Server(served, "w", "driver")
	require.NoError(t, err)
	clientTLS, err := pki.Client(shown, "w", "agent/")
	require.NoError(t, err)
	l, err := testkit.Listen("")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(serverTLS)))
	tangramv1.RegisterAgentServer(server, a)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	c, err := dialWith(l.Addr().String(), clientTLS, testkit.Dial)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func always(err error) func(int64) error { return func(int64) error { return err } }

func TestRefusalIsDecoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := &tangramv1.Refusal{Code: tangramv1.Refusal_CODE_STALE_EPOCH, Message: "the active epoch is 7, the call is for epoch 6",
			Current: &tangramv1.Header{World: "w", Epoch: 7, Attempt: 12}}
		wire, err := proto.Marshal(want)
		require.NoError(t, err)
		a := &agent{err: always(status.Error(codes.FailedPrecondition, want.Message)), trailer: wire}
		c := listen(t, a, "agent/p0")

		err = c.Prepare(t.Context(), &tangramv1.PrepareRequest{})
		var refused *Refused
		require.ErrorAs(t, err, &refused)
		require.True(t, proto.Equal(want, refused.Refusal), "%v", refused.Refusal)
		require.Equal(t, c.Address(), refused.Agent)
		require.Equal(t, tangramv1.Refusal_CODE_STALE_EPOCH, RefusalCode(err))
		for _, text := range []string{c.Address(), "rejected Prepare", "CODE_STALE_EPOCH", want.Message, `world "w", epoch 7, attempt 12`} {
			require.ErrorContains(t, err, text)
		}
		require.EqualValues(t, 1, a.calls.Load(), "a refusal must not be tried again")

		seen := 0
		err = c.Watch(t.Context(), "w", func(*tangramv1.StatusResponse) { seen++ })
		require.Equal(t, 3, seen)
		require.Equal(t, tangramv1.Refusal_CODE_STALE_EPOCH, RefusalCode(err), "%v", err)
	})
}

// An agent sends its status every second. An unresponsive agent closes no stream, so the stream ends by a timeout.
func TestWatchTimesOut_WhenAgentUnresponsive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := listen(t, &agent{hangs: true}, "agent/p0")
		began := time.Now()
		seen := 0
		err := c.Watch(t.Context(), "w", func(*tangramv1.StatusResponse) { seen++ })
		require.Equal(t, 3, seen)
		require.ErrorContains(t, err, "the agent sent nothing for 5s")
		require.Equal(t, silent, time.Since(began))
	})
}

func TestOtherErrorsAreNoRefusals(t *testing.T) {
	for name, trailer := range map[string][]byte{"no trailer": nil, "a trailer that is no Refusal": {0xff, 0xff, 0xff}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := listen(t, &agent{err: always(status.Error(codes.Internal, "disk on fire")), trailer: trailer}, "agent/p0")
				_, err := c.Abort(t.Context(), &tangramv1.Header{}, "because")
				require.Equal(t, tangramv1.Refusal_CODE_UNSPECIFIED, RefusalCode(err))
				require.Equal(t, codes.Internal, status.Code(err))
				require.ErrorContains(t, err, "agent "+c.Address()+": Abort")
				require.ErrorContains(t, err, "disk on fire")
			})
		})
	}
	require.Equal(t, tangramv1.Refusal_CODE_UNSPECIFIED, RefusalCode(nil))
	require.Equal(t, tangramv1.Refusal_CODE_UNSPECIFIED, RefusalCode(errors.New("x")))
}

func TestBrokenConnectionIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{err: func(call int64) error {
			if call < 3 {
				return status.Error(codes.Unavailable, "not yet")
			}
			return nil
		}}
		flipped, err := listen(t, a, "agent/p0").Abort(t.Context(), &tangramv1.Header{}, "because")
		require.NoError(t, err)
		require.True(t, flipped)
		require.EqualValues(t, 3, a.calls.Load())
	})
}

func TestClientRejectsCertificateOfOtherRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{err: always(nil)}
		c := listen(t, a, "engine/p0")
		err := c.Prepare(t.Context(), &tangramv1.PrepareRequest{})
		require.ErrorContains(t, err, "spiffe://tangram/w/agent/")
		require.Zero(t, a.calls.Load())
	})
}

func TestResolveAndReleaseSendAllFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{err: always(nil)}
		c := listen(t, a, "agent/p0")
		header := &tangramv1.Header{World: "w", Epoch: 7, Attempt: 12}
		require.NoError(t, c.Resolve(t.Context(), header, tangramv1.Outcome_OUTCOME_ROLL_FORWARD, "a fence"))
		require.True(t, proto.Equal(&tangramv1.ResolveRequest{Header: header, Outcome: tangramv1.Outcome_OUTCOME_ROLL_FORWARD, Reason: "a fence"}, a.last), "%v", a.last)
		require.NoError(t, c.Release(t.Context(), header, []string{"u0/0/1", "u0/1/1"}, true, "over"))
		require.True(t, proto.Equal(&tangramv1.ReleaseRequest{Header: header, Members: []string{"u0/0/1", "u0/1/1"}, WorldEnds: true, Reason: "over"}, a.last), "%v", a.last)
	})
}

// A caller of Status needs to know immediately that an agent is dead. Other calls are retried for a while.
func TestStatusIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{err: always(status.Error(codes.Unavailable, "not yet"))}
		_, err := listen(t, a, "agent/p0").Status(t.Context(), "w")
		require.ErrorContains(t, err, "not yet")
		require.EqualValues(t, 1, a.calls.Load())
	})
}
