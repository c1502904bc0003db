package gateway

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	"tangram.dev/operator/internal/pki"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// A session that reconnects in time loses no tokens: the engine sends them again.
func TestSession_WhenReconnectedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{hangsUp: true, on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) { send(token(s, 0, 'a', 0)) }}
		s, m := serve(t, e)
		code, _, body := post(t, s, `{"prompt":"x"}`)
		require.Equal(t, http.StatusOK, code, body)
		require.Contains(t, body, `"text":"ab"`)
		require.InDelta(t, 1, testutil.ToFloat64(m.duplicates), 0)
		require.InDelta(t, 0, testutil.ToFloat64(m.lost), 0)
	})
}

func TestRequest_WhenNoWorldIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{silent: true}
		s, m, _ := open(t, Options{patience: 100 * time.Millisecond}, e)
		code, head, body := post(t, s, `{"prompt":"x"}`)
		require.Equal(t, http.StatusServiceUnavailable, code, body)
		require.Equal(t, "1", head.Get("Retry-After"))
		require.Contains(t, body, "no rank accepts requests; try again later")
		require.InDelta(t, 1, testutil.ToFloat64(m.requests.WithLabelValues("503")), 0)
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.URL+"/healthz", http.NoBody)
		require.NoError(t, err)
		reply, err := caller(t).Do(request)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, reply.Body)
		require.NoError(t, err)
		require.NoError(t, reply.Body.Close())
		require.Equal(t, http.StatusServiceUnavailable, reply.StatusCode)
	})
}

// A request that arrives before the gateway has received a world waits for it.
func TestRequestWaitsForFirstWorld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(s, 0, 'z', tangramv1.Finish_FINISH_STOP))
		}}
		e.listen(t, "")
		address := e.address
		e.server.Stop()
		e.world = &tangramv1.World{World: "w", Epoch: 1, MaxTokens: 64, Vocabulary: 256, Members: []*tangramv1.WorldMember{{Member: "m0", Frontend: address, Accepts: true}}}
		s, _, pool := before(t, Options{}, e)
		require.Nil(t, pool.World())
		c, status := caller(t), make(chan string, 1)
		go func() {
			reply, err := c.Post(s.URL+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x"}`))
			if err != nil {
				status <- err.Error()
				return
			}
			_ = reply.Body.Close() // only the status is checked
			status <- reply.Status
		}()
		time.Sleep(200 * time.Millisecond) // it waits during this time
		e.listen(t, address)
		require.Equal(t, "200 OK", <-status)
	})
}

// A gateway connects only to engines of its world, whichever other roles have certificates of the world.
func TestSessionAcceptsOnlyEngineCertificates(t *testing.T) {
	for role, believed := range map[string]bool{"engine/p0": true, "agent/p0": false, "driver": false} {
		t.Run(role, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				authority, err := pki.OpenFolder(t.TempDir(), "w")
				require.NoError(t, err)
				issue := func(name, role string) pki.Files {
					files, err := authority.Issue(name, role, []string{"127.0.0.1"})
					require.NoError(t, err)
					return files
				}
				gateway, err := pki.Client(issue("gateway", "gateway"), "w", "engine/")
				require.NoError(t, err)
				config, err := pki.Server(issue("server", role), "w", "gateway")
				require.NoError(t, err)
				e := &engine{identity: credentials.NewTLS(config), on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
					send(token(s, 0, 'z', tangramv1.Finish_FINISH_STOP))
				}}
				s, _, pool := open(t, Options{TLS: gateway, patience: 500 * time.Millisecond}, e)
				if believed {
					require.Eventually(t, pool.Ready, soon, time.Millisecond)
					code, _, body := post(t, s, `{"prompt":"x"}`)
					require.Equal(t, http.StatusOK, code, body)
					return
				}
				require.Never(t, func() bool { return sessionsUp(pool) > 0 || pool.World() != nil }, soon, 10*time.Millisecond)
				code, _, _ := post(t, s, `{"prompt":"x"}`)
				require.Equal(t, http.StatusServiceUnavailable, code)
			})
		})
	}
}

// The files get another authority and other certificates: the next connection uses them.
func TestSession_WhenAuthorityIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		made := func() (gateway, engine pki.Files) {
			authority, err := pki.OpenFolder(dir, "w")
			require.NoError(t, err)
			gateway, err = authority.Issue("gateway", "gateway", nil)
			require.NoError(t, err)
			engine, err = authority.Issue("engine", "engine/p0", nil)
			require.NoError(t, err)
			return gateway, engine
		}
		mine, theirs := made()
		client, err := pki.Client(mine, "w", "engine/")
		require.NoError(t, err)
		identity := func() credentials.TransportCredentials {
			config, err := pki.Server(theirs, "w", "gateway")
			require.NoError(t, err)
			return credentials.NewTLS(config)
		}
		e := &engine{identity: identity(), on: one}
		s, _, pool := open(t, Options{TLS: client}, e)
		require.Eventually(t, pool.Ready, soon, time.Millisecond)
		require.NoError(t, os.Remove(filepath.Join(dir, "ca.crt")))
		require.NoError(t, os.Remove(filepath.Join(dir, "ca.key")))
		made()
		code, _, body := post(t, s, `{"prompt":"x"}`) // over the open connection
		require.Equal(t, http.StatusOK, code, body)
		e.server.Stop()
		e.identity = identity() // an engine that starts after the change
		e.listen(t, e.address)
		require.Eventually(t, pool.Ready, soon, time.Millisecond)
		code, _, body = post(t, s, `{"prompt":"x"}`)
		require.Equal(t, http.StatusOK, code, body)
	})
}

// A Service's address leads to any engine; requests use only sessions with members.
func TestDiscoverySessionGetsNoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(s, 0, 'z', tangramv1.Finish_FINISH_STOP))
		}
		engines := []*engine{{on: done}, {on: done}}
		s, _, pool := open(t, Options{Discover: []string{"the first"}}, engines...)
		require.Eventually(t, func() bool { return sessionsUp(pool) == 3 }, soon, time.Millisecond)
		for range 4 {
			code, _, body := post(t, s, `{"prompt":"x"}`)
			require.Equal(t, http.StatusOK, code, body)
		}
		for _, e := range engines {
			require.NotNil(t, e.submits.Load(), "requests are spread")
			require.Equal(t, "g", *e.submits.Load())
		}
	})
}
