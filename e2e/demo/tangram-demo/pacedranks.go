package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// pacedRank replaces a rank: each step gives every request a token of a fixed text. It serves to measure the components
// in front of ranks.
type pacedRank struct {
	tangramv1.UnimplementedServeServer
	world  *tangramv1.World
	tokens []uint32 // repeated
	said   atomic.Int64
}

const pacedMember = "p0.0"

// servePaced serves ranks on a listener until stop is called, with the certificate of pod p0 in dir.
func servePaced(l net.Listener, dir string, world *tangramv1.World, tokens []uint32) (r *pacedRank, stop func(), err error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "engine-p0.crt"), filepath.Join(dir, "engine-p0.key"))
	if err != nil {
		return nil, nil, err
	}
	authority, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, nil, errors.New("ca.crt has no certificate")
	}
	world.Members = []*tangramv1.WorldMember{{Member: pacedMember, Frontend: l.Addr().String(), Accepts: true}}
	r = &pacedRank{world: world, tokens: tokens}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13})),
		grpc.MaxRecvMsgSize(64<<20))
	tangramv1.RegisterServeServer(server, r)
	go func() { _ = server.Serve(l) }()
	return r, server.Stop, nil
}

// pacedBeat is the duration of a step of a large model.
const pacedBeat = 20 * time.Millisecond

// Session serves one gateway.
func (r *pacedRank) Session(stream tangramv1.Serve_SessionServer) error {
	if first, err := stream.Recv(); err != nil || first.GetHello() == nil {
		return fmt.Errorf("no hello: %w", err)
	}
	for _, reply := range []*tangramv1.ServeReply{
		{Body: &tangramv1.ServeReply_World{World: r.world}},
		{Body: &tangramv1.ServeReply_Roster{Roster: &tangramv1.Roster{Epoch: r.world.Epoch, Member: pacedMember}}},
	} {
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	running := map[string]*tangramv1.Submit{}
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			mu.Lock()
			if s := m.GetSubmit(); s != nil {
				running[s.Request] = s
			} else if c := m.GetCancel(); c != nil {
				delete(running, c.Request)
			}
			mu.Unlock()
		}
	}()
	tick := time.NewTicker(pacedBeat)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-tick.C:
		}
		mu.Lock()
		var step []*tangramv1.Token
		for _, s := range running {
			s.Generated++ // of the answer, including this one
			t := &tangramv1.Token{Request: s.Request, Position: uint32(len(s.Prompt)) + s.Generated - 1, Token: r.tokens[int(s.Generated)%len(r.tokens)],
				Epoch: r.world.Epoch, Owner: pacedMember}
			if s.Generated == s.MaxTokens {
				t.Finish = tangramv1.Finish_FINISH_LENGTH
				delete(running, s.Request)
			}
			step = append(step, t)
		}
		mu.Unlock()
		for _, t := range step {
			if err := stream.Send(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Token{Token: t}}); err != nil {
				return err
			}
			r.said.Add(1)
		}
	}
}
