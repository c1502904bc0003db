package gateway

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

const soon = time.Minute // on a bubble's clock, nearly always: only a hang waits this long

// rig is a world of engines that send only what the test lets them send. It runs in a bubble.
type rig struct {
	t       *testing.T
	engines []*engine
	names   map[*engine]string // members
	pool    *Pool
	m       *Metrics
}

func newRig(t *testing.T, n int, lostAfter time.Duration) *rig {
	t.Helper()
	return newRigWith(t, n, Options{LostAfter: lostAfter})
}

func newRigWith(t *testing.T, n int, o Options) *rig {
	t.Helper()
	r := &rig{t: t, names: map[*engine]string{}}
	for i := range n {
		e := &engine{}
		e.listen(t, "")
		r.engines = append(r.engines, e)
		r.names[e] = fmt.Sprintf("m%d", i)
	}
	for _, e := range r.engines {
		e.world = r.world(1, r.engines...)
	}
	_, r.m, r.pool = before(t, o, r.engines...)
	require.Eventually(t, func() bool { return r.inside() == n }, soon, time.Millisecond)
	r.epoch(1, nil, r.engines...)
	return r
}

func (r *rig) inside() (n int) {
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	for _, s := range r.pool.sessions {
		if s.send != nil && r.pool.force.Load().has(s) {
			n++
		}
	}
	return n
}

func (r *rig) world(epoch uint64, members ...*engine) *tangramv1.World {
	w := &tangramv1.World{World: "w", Epoch: epoch, MaxTokens: 64, Vocabulary: 256}
	for i, e := range members {
		w.Members = append(w.Members, &tangramv1.WorldMember{Rank: uint32(i), Member: r.names[e], Frontend: e.address, Accepts: true})
	}
	return w
}

// enter lets one engine report an epoch, and its requests in it.
func (r *rig) enter(e *engine, w *tangramv1.World, requests ...string) {
	e.setWorld(w)
	e.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_World{World: w}})
	e.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Roster{Roster: &tangramv1.Roster{Epoch: w.Epoch, Member: r.names[e], Requests: requests}}})
}

// epoch lets all members report, and waits until the census is complete.
func (r *rig) epoch(epoch uint64, requests map[*engine][]string, members ...*engine) {
	r.t.Helper()
	w := r.world(epoch, members...)
	for _, e := range members {
		r.enter(e, w, requests[e]...)
	}
	r.counted(epoch)
}

func (r *rig) counted(epoch uint64) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		r.pool.mu.Lock()
		defer r.pool.mu.Unlock()
		return r.pool.counted == epoch
	}, soon, time.Millisecond)
}

func (r *rig) submitted(e *engine) *tangramv1.Submit {
	r.t.Helper()
	select {
	case s := <-e.got:
		return s
	case <-time.After(soon):
		r.t.Fatal("no submit came to ", r.names[e])
		return nil
	}
}

// home returns the home of the next submitted request.
func (r *rig) home() (home, other *engine, s *tangramv1.Submit) {
	r.t.Helper()
	select {
	case s = <-r.engines[0].got:
		return r.engines[0], r.engines[1], s
	case s = <-r.engines[1].got:
		return r.engines[1], r.engines[0], s
	case <-time.After(soon):
		r.t.Fatal("no submit came")
		return nil, nil, nil
	}
}

func (r *rig) nothingMore(engines ...*engine) {
	r.t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	for _, e := range engines {
		require.Empty(r.t, e.got)
	}
}

// id of the token at a position: as of a sampler that depends on seed and position only.
func id(position int) uint32 { return uint32(position*7+3) % 256 }

// emit lets e send the tokens of positions from..to-1 in an epoch. A request of 2 prompt tokens and 6 to generate ends
// with position 7.
func (r *rig) emit(e *engine, epoch uint64, from, to int) {
	for p := from; p < to; p++ {
		finish := tangramv1.Finish_FINISH_UNSPECIFIED
		if p == 7 {
			finish = tangramv1.Finish_FINISH_LENGTH
		}
		e.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Token{Token: &tangramv1.Token{Request: "r", Position: uint32(p), Token: id(p),
			Epoch: epoch, Owner: r.names[e], Finish: finish}}})
	}
}

// client of one request.
type client struct {
	r      *rig
	tokens chan uint32
	last   chan tangramv1.Finish
	err    chan error
	leave  context.CancelFunc
	n      int
}

func (r *rig) client() *client {
	ctx, leave := context.WithCancel(r.t.Context())
	c := &client{r: r, tokens: make(chan uint32, 64), last: make(chan tangramv1.Finish, 1), err: make(chan error, 1), leave: leave}
	go func() {
		c.err <- r.pool.Run(ctx, &tangramv1.Submit{Request: "r", Prompt: []uint32{9, 8}, MaxTokens: 6, Seed: 5, Temperature: 0.5, TopP: 0.25, StopTokens: []uint32{1}}, func(t *tangramv1.Token) error {
			c.tokens <- t.Token
			if t.Finish != tangramv1.Finish_FINISH_UNSPECIFIED {
				c.last <- t.Finish
			}
			return nil
		}, time.Hour, nil)
	}()
	return c
}

// has waits until the client has received n tokens in total, and checks them.
func (c *client) has(n int) {
	c.r.t.Helper()
	for ; c.n < n; c.n++ {
		select {
		case got := <-c.tokens:
			require.Equal(c.r.t, id(2+c.n), got, "token %d", c.n)
		case <-time.After(soon):
			c.r.t.Fatalf("token %d did not come", c.n)
		}
	}
}

// ends checks a good end: every token once, no request lost, no token different.
func (c *client) ends(replays map[string]int) {
	c.r.t.Helper()
	c.has(6)
	require.NoError(c.r.t, <-c.err)
	require.Equal(c.r.t, tangramv1.Finish_FINISH_LENGTH, <-c.last)
	require.Empty(c.r.t, c.tokens)
	require.Zero(c.r.t, testutil.ToFloat64(c.r.m.lost))
	require.Zero(c.r.t, testutil.ToFloat64(c.r.m.conflicts))
	for _, cause := range []string{causeRoster, causeCut, causeCancelled, causeRestart} {
		require.InDelta(c.r.t, replays[cause], testutil.ToFloat64(c.r.m.replays.WithLabelValues(cause)), 0, cause)
	}
}

// rest checks that a request was submitted again with its tokens so far, otherwise unchanged.
func (r *rig) rest(s *tangramv1.Submit, tokens int) {
	r.t.Helper()
	want := []uint32{9, 8}
	for p := 2; p < 2+tokens; p++ {
		want = append(want, id(p))
	}
	require.Equal(r.t, want, s.Prompt)
	require.EqualValues(r.t, 6, s.MaxTokens)
	require.EqualValues(r.t, tokens, s.Generated)
	require.Equal(r.t, "r", s.Request)
	require.EqualValues(r.t, 5, s.Seed)
	require.InDelta(r.t, 0.5, s.Temperature, 0)
	require.InDelta(r.t, 0.25, s.TopP, 0)
	require.Equal(r.t, []uint32{1}, s.StopTokens)
}
