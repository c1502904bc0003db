package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Telemetry returns the last reports of the active members and the latencies of this gateway's clients. Its cost grows
// with the number of members. It delays a token no longer than a load report does.
func (p *Pool) Telemetry() *tangramv1.TelemetryReport {
	r := &tangramv1.TelemetryReport{World: p.o.World, Gateway: p.o.Gateway, Incarnation: p.incarnation, At: time.Since(p.born).Seconds()}
	p.felt.tell(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if f := p.force.Load(); f != nil {
		r.Epoch = f.world.Epoch
		for _, m := range f.world.Members {
			rank := &tangramv1.RankReport{Member: m.Member, Rank: m.Rank}
			if s := p.sessions[m.Frontend]; s != nil && s.member == m.Member && s.load != nil {
				rank.Load, rank.Age = s.load, now.Sub(s.loaded).Seconds()
			}
			if s := p.sessions[m.Frontend]; s != nil {
				rank.Flapping = s.breaks.flapping(now)
			}
			r.Ranks = append(r.Ranks, rank)
		}
	}
	for q := range p.waiting {
		q.mu.Lock()
		if q.owner == "" && !q.done {
			r.Unassigned++
			r.UnassignedAgeSeconds = max(r.UnassignedAgeSeconds, now.Sub(q.without).Seconds())
		}
		q.mu.Unlock()
	}
	return r
}

// telemetryServer answers the operator.
type telemetryServer struct {
	tangramv1.UnimplementedTelemetryServer
	pool *Pool
}

// Read implements the service.
func (s *telemetryServer) Read(_ context.Context, r *tangramv1.TelemetryRequest) (*tangramv1.TelemetryReport, error) {
	if r.World != s.pool.o.World {
		return nil, status.Errorf(codes.FailedPrecondition, "this gateway belongs to world %q, not %q", s.pool.o.World, r.World)
	}
	return s.pool.Telemetry(), nil
}

// ServeTelemetry serves peers that `config` accepts, until ctx ends. It closes the listener.
func (p *Pool) ServeTelemetry(ctx context.Context, l net.Listener, config *tls.Config) error {
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.MaxConcurrentStreams(16), grpc.MaxRecvMsgSize(64<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 5 * time.Minute, Time: time.Minute}))
	tangramv1.RegisterTelemetryServer(server, &telemetryServer{pool: p})
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
