package gateway

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// wide is a pool without engines, in a world of many members, with many requests at the last member.
type wide struct {
	pool  *Pool
	last  *session
	reply []*tangramv1.ServeReply // the next token of each request
}

func newWide(tb testing.TB, members, requests int) *wide {
	tb.Helper()
	p := NewPool(Options{World: "w", Gateway: "g", LostAfter: time.Hour, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry(), "w")})
	tb.Cleanup(p.Close)
	w := &wide{pool: p}
	world := crowd(1, members)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range world.Members {
		w.last = &session{frontend: m.Frontend, told: world, member: m.Member, send: make(chan *tangramv1.ServeRequest, 1)}
		p.sessions[m.Frontend] = w.last
	}
	p.adoptLocked(world)
	for i := range requests {
		r := newRequest(&tangramv1.Submit{Request: fmt.Sprint("request-", i), Prompt: []uint32{1}, MaxTokens: 1 << 30}, time.Second)
		r.owner = w.last.frontend
		p.requests.Store(r.id, r)
		w.reply = append(w.reply, &tangramv1.ServeReply{Body: &tangramv1.ServeReply_Token{Token: &tangramv1.Token{Request: r.id, Position: 1, Epoch: 1}}})
	}
	return w
}

// crowd is a world that shares no member with a world of another number.
func crowd(number, members int) *tangramv1.World {
	w := &tangramv1.World{World: "w", Epoch: 1, MaxTokens: 1 << 20, Vocabulary: 256}
	for i := range members {
		w.Members = append(w.Members, &tangramv1.WorldMember{Rank: uint32(i), Member: fmt.Sprintf("0b6c6c2e-51b9-4c6e-%08d/%d/1", number, i), Frontend: fmt.Sprintf("10.0.%d.%d:7300", i/256, i%256), Accepts: true})
	}
	return w
}

// round gives each request one token.
func (w *wide) round() {
	for _, reply := range w.reply {
		w.pool.receive(w.last, reply)
		reply.GetToken().Position++
	}
}

// A token does not wait for work of other sessions.
func TestTokenTakesNoPoolLock(t *testing.T) {
	w := newWide(t, 256, 10)
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	done := make(chan struct{})
	go func() { w.round(); close(done) }()
	select {
	case <-done:
	case <-time.After(soon):
		t.Fatal("a token waits for the pool's lock")
	}
	require.Len(t, w.pool.requests.find("request-9").out, 1)
}

// A token does not walk over the members of its world: every list entry is nil here, so any read panics.
func TestTokenReadsNoMembers(t *testing.T) {
	w := newWide(t, 256, 10)
	clear(w.pool.World().Members)
	require.Panics(t, func() { w.pool.Ready() }, "which looks for a member")
	w.round()
	require.Len(t, w.pool.requests.find("request-9").out, 1)
}

// The time per token does not depend on the world's width: 10,000 requests in worlds of 1 and of 256 members.
func TestRealTime_TokenCostIsIndependentOfWorldSize(t *testing.T) {
	narrow, broad := newWide(t, 1, 10_000), newWide(t, 256, 10_000)
	fastest := func(w *wide, so time.Duration) time.Duration {
		began := time.Now()
		w.round()
		return min(so, time.Since(began))
	}
	one, many := time.Hour, time.Hour
	for range 15 { // alternating, so that other load on the machine affects both
		one, many = fastest(narrow, one), fastest(broad, many)
	}
	t.Logf("10,000 tokens: %v of a world of 1, %v of a world of 256", one, many)
	require.Less(t, many, 3*one)
}

func BenchmarkToken(b *testing.B) {
	for _, members := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(members, " members, 10000 requests"), func(b *testing.B) {
			w := newWide(b, members, 10_000)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				reply := w.reply[i%len(w.reply)]
				w.pool.receive(w.last, reply)
				reply.GetToken().Position++
			}
		})
	}
}

// Members of replaced worlds are remembered long enough, but not forever.
func TestMembersOfReplacedWorldsAreForgotten(t *testing.T) {
	const members = 256
	w := newWide(t, members, 0)
	p := w.pool
	for number := 2; number < 102; number++ {
		p.mu.Lock()
		world := crowd(number, members)
		for _, s := range p.sessions {
			s.told = nil
		}
		p.heard.Store(-int64(2 * time.Hour)) // no member sends anything
		w.last.told = world
		w.last.heard.Store(int64(time.Since(p.born))) // except this one
		p.strangersLocked()
		require.Same(t, world, p.World(), number)
		require.LessOrEqual(t, p.gone.Len(), mostGone)
		before := crowd(number-1, members)
		before.Epoch = 9
		require.False(t, p.isNewsLocked(before), "a rank of the world before changes nothing")
		p.mu.Unlock()
	}
}

// Members that left for good leave no metric series.
func TestSessionMetrics_WhenMemberIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, 50*time.Millisecond)
		require.Equal(t, 2, testutil.CollectAndCount(r.m.sessions))
		r.engines[1].server.Stop()
		r.epoch(2, nil, r.engines[0])
		require.Eventually(t, func() bool { return testutil.CollectAndCount(r.m.sessions) == 1 }, soon, time.Millisecond)
	})
}
