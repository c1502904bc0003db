package gateway

import (
	"container/list"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/simulator"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// e2e/engine/kv/home_blocks_test.cc has the same numbers.
func TestPrefixHashesMatchEngine(t *testing.T) {
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 0xffffffff, 9}
	require.Equal(t, []uint64{0xf29244d744f324b9, 0x9f849e070058bd99}, chainOf(prompt, "", 4))
	require.Equal(t, []uint64{0x29d700c2cb6e3429, 0xced6da0b869cf12d}, chainOf(prompt, "tenant", 4))
	require.Len(t, chainOf(prompt[:8], "", 4), 1, "the last token is computed in any case")
	require.Empty(t, chainOf(prompt, "", 0), "nobody has told yet")
	require.Empty(t, chainOf(prompt[:1], "", 1))
	require.Len(t, chainOf(make([]uint32, 10*mostBlocks), "", 1), mostBlocks)
}

const ofBlock = 4 // tokens

// cached lets e report its cache, and waits until the gateway has received the report.
func (r *rig) cached(e *engine, load *tangramv1.Load) {
	r.t.Helper()
	step := rand.Uint64()
	load.Step = step
	if load.Prefixes != nil {
		load.Prefixes.BlockTokens = ofBlock
	}
	e.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Load{Load: load}})
	require.Eventually(r.t, func() bool {
		r.pool.mu.Lock()
		defer r.pool.mu.Unlock()
		s := r.pool.sessions[e.address]
		return s != nil && s.load.GetStep() == step
	}, soon, time.Millisecond)
}

// goes returns the engine that gets a request with this prompt.
func (r *rig) goes(prompt []uint32, salt string) *engine {
	r.t.Helper()
	ctx, leave := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.pool.Run(ctx, &tangramv1.Submit{Request: fmt.Sprint(rand.Uint64()), Prompt: prompt, CacheSalt: salt, MaxTokens: 2},
			func(*tangramv1.Token) error { return nil }, time.Hour, nil)
	}()
	home, _, _ := r.home()
	leave()
	<-ended
	for _, e := range r.engines { // it has ended there too
		r.pool.mu.Lock()
		r.pool.sessions[e.address].sent = 0
		r.pool.mu.Unlock()
	}
	return home
}

func TestRoutingPrefersCachedPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Minute)
		prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
		chain := chainOf(prompt, "", ofBlock)
		a, b := r.engines[0], r.engines[1]
		tell := func(e *engine, load uint32, generation uint64, here, gone []uint64) {
			r.cached(e, &tangramv1.Load{Running: load, Prefixes: &tangramv1.Prefixes{Generation: generation, Here: here, Gone: gone}})
		}
		tell(a, 4, 1, nil, nil)
		tell(b, 5, 1, chain[:1], nil)
		require.Same(t, b, r.goes(prompt, ""), "who has one block, and one request more")
		require.InDelta(t, ofBlock, testutil.ToFloat64(r.m.cached), 0)
		require.Same(t, a, r.goes(prompt, "another"), "what is cached of another salt is none of its")
		require.Same(t, a, r.goes([]uint32{9, 9, 9, 9, 9}, ""), "another prompt")
		tell(a, 5, 1, chain, nil)
		require.Same(t, a, r.goes(prompt, ""), "who has more")
		tell(b, 6, 1, chain, nil)
		tell(a, 4, 1, nil, chain)
		require.Same(t, a, r.goes(prompt, ""), "who has it has too much to do")
		tell(b, 1, 1, nil, nil)
		tell(a, 0, 1, nil, nil)
		require.Same(t, a, r.goes(prompt, ""), "who has nothing to do")

		// A flip: blocks change their owners.
		tell(b, 4, 2, nil, nil)
		tell(a, 5, 2, chain, nil)
		require.Same(t, a, r.goes(prompt, ""), "the new owner")

		// Its engine restarted and has reported nothing yet.
		r.pool.mu.Lock()
		p := r.pool.sessions[a.address]
		r.pool.mu.Unlock()
		r.pool.ended(p)
		require.Empty(t, p.cached.here)
	})
}

// A rank that reports prefixes that it lacks gets requests only up to the bound, and serves them.
func TestRouting_WhenRankReportsFalsePrefixes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Minute)
		prompt := []uint32{9, 8, 7, 6, 5}
		liar, other := r.engines[0], r.engines[1]
		r.cached(liar, &tangramv1.Load{Prefixes: &tangramv1.Prefixes{Generation: 1, Here: chainOf(prompt, "", ofBlock)}})
		at := map[*engine]int{}
		for range 10 { // none of them ends, and no load is reported meanwhile
			go func() {
				_ = r.pool.Run(t.Context(), &tangramv1.Submit{Request: fmt.Sprint(rand.Uint64()), Prompt: prompt, MaxTokens: 2}, func(*tangramv1.Token) error { return nil }, time.Hour, nil)
			}()
			home, _, _ := r.home()
			at[home]++
		}
		require.LessOrEqual(t, at[liar], at[other]+3)
		require.Positive(t, at[other])
	})
}

// A rank that will give its requests away gets none, unless there is no other.
func TestRoutingAvoidsLeavingRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Minute)
		prompt := []uint32{9, 8, 7, 6, 5}
		a, b := r.engines[0], r.engines[1]
		r.cached(a, &tangramv1.Load{Leaving: true, Prefixes: &tangramv1.Prefixes{Generation: 1, Here: chainOf(prompt, "", ofBlock)}})
		r.cached(b, &tangramv1.Load{Running: 30})
		require.Same(t, b, r.goes(prompt, ""))
		r.cached(b, &tangramv1.Load{Running: 30, Leaving: true})
		require.Same(t, a, r.goes(prompt, ""), "both leave")
		r.cached(a, &tangramv1.Load{}) // leaving was cancelled
		require.Same(t, a, r.goes(prompt, ""))
	})
}

func TestPrefixDirectoryIsBounded(t *testing.T) {
	w := newWide(t, 16, 0)
	hashes := make([]uint64, 3*mostPrefixes)
	for i := range hashes {
		hashes[i] = uint64(i)
	}
	sum := 0
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	for range 2 {
		sum = 0
		for _, s := range w.pool.sessions {
			s.gateway = w.pool.o.Gateway
			w.pool.prefixesLocked(s, &tangramv1.Prefixes{Generation: 1, BlockTokens: 16, Here: hashes, Gone: hashes[:10]})
			slices.Reverse(hashes[:100])
			sum += len(s.cached.here)
		}
	}
	require.LessOrEqual(t, sum, mostPrefixes)
	require.Greater(t, sum, mostPrefixes/2)
	for _, s := range w.pool.sessions {
		w.pool.prefixesLocked(s, &tangramv1.Prefixes{Generation: 2})
		require.Empty(t, s.cached.here)
	}
	asked := &session{gateway: "g/discover"} // a discovery session submits nothing
	w.pool.prefixesLocked(asked, &tangramv1.Prefixes{Generation: 1, Here: hashes})
	require.Empty(t, asked.cached.here)
}

// played is a simulated rank: its cached blocks (evicted in LRU order), and the ends of its requests.
type played struct {
	s     *session
	room  int
	last  *list.List // of uint64, most recently used first
	here  map[uint64]*list.Element
	ends  []float64
	news  map[uint64]bool
	later []computed
}

// computed are blocks that become cached at a time.
type computed struct {
	at    float64
	chain []uint64
}

func (e *played) cache(chain []uint64) {
	for _, hash := range slices.Backward(chain) {
		if at := e.here[hash]; at != nil {
			e.last.MoveToFront(at)
			continue
		}
		e.here[hash], e.news[hash] = e.last.PushFront(hash), true
	}
	for len(e.here) > e.room {
		hash := e.last.Remove(e.last.Back()).(uint64) //nolint:forcetypeassert // nothing else is in it
		delete(e.here, hash)
		e.news[hash] = false
	}
}

// until applies all events up to a time.
func (e *played) until(now float64) {
	e.ends = slices.DeleteFunc(e.ends, func(at float64) bool { return at <= now })
	for len(e.later) > 0 && e.later[0].at <= now {
		e.cache(e.later[0].chain)
		e.later = e.later[1:]
	}
}

func (e *played) tell(p *Pool) {
	news := &tangramv1.Prefixes{Generation: 1, BlockTokens: simulator.BlockTokens}
	for hash, here := range e.news {
		if here {
			news.Here = append(news.Here, hash)
		} else {
			news.Gone = append(news.Gone, hash)
		}
	}
	clear(e.news)
	p.prefixesLocked(e.s, news)
	e.s.load, e.s.sent = &tangramv1.Load{Running: uint32(len(e.ends))}, 0
}

// play simulates the trace on `ranks` ranks with room for `room` blocks each. It returns the share of prompt tokens
// found in the home's cache, and the largest number of requests of a rank over the mean, averaged over arrivals. A
// request takes 30 ms per answer token and 1 s per 10,000 uncached prompt tokens. Load and prefixes are reported four
// times a second.
func play(t *testing.T, trace []simulator.Request, ranks, room int, byLoad bool) (share, lopsided float64) {
	t.Helper()
	w := newWide(t, ranks, 0)
	p := w.pool
	p.o.ByLoadAlone = byLoad
	p.mu.Lock()
	defer p.mu.Unlock()
	engines := map[*session]*played{}
	for _, s := range p.sessions {
		s.gateway = p.o.Gateway
		engines[s] = &played{s: s, room: room, last: list.New(), here: map[uint64]*list.Element{}, news: map[uint64]bool{}}
	}
	reused, all, told := 0, 0, -1.0
	for _, q := range trace {
		for _, e := range engines {
			e.until(q.At)
			if q.At >= told+0.25 {
				e.tell(p)
			}
		}
		if q.At >= told+0.25 {
			told = q.At
		}
		var chain []uint64
		for _, id := range q.Blocks[:min(len(q.Blocks), (q.Prompt-1)/simulator.BlockTokens)] {
			chain = append(chain, uint64(id))
		}
		asked := chain
		if byLoad {
			asked = nil
		}
		s, _, _ := p.pickLocked(nil, "", asked)
		s.sent++
		e := engines[s]
		found := 0
		for found < len(chain) && e.here[chain[found]] != nil {
			found++
		}
		reused, all = reused+found*simulator.BlockTokens, all+q.Prompt
		e.cache(chain[:found])
		done := q.At + float64(q.Prompt-found*simulator.BlockTokens)/10_000
		e.later = append(e.later, computed{done, chain})
		slices.SortStableFunc(e.later, func(a, b computed) int { return int(1e6 * (a.at - b.at)) })
		e.ends = append(e.ends, done+0.03*float64(q.Output))
		most, sum := 0, 0
		for _, e := range engines {
			most, sum = max(most, len(e.ends)), sum+len(e.ends)
		}
		lopsided += float64(most*ranks) / float64(sum)
	}
	return float64(reused) / float64(all), lopsided / float64(len(trace))
}

// An hour of chats (12,031 requests): the directory finds most of what one cache of the total size would.
func TestRoutingFindsPrefixesOfTrace(t *testing.T) {
	whole, err := simulator.Conversation()
	require.NoError(t, err)
	trace := whole.Requests[:len(whole.Requests)/3]
	for _, ranks := range []int{4, 8} {
		const room = 1000 // blocks of 512 tokens
		one, _ := play(t, trace, 1, ranks*room, true)
		alone, even := play(t, trace, ranks, room, true)
		found, lopsided := play(t, trace, ranks, room, false)
		t.Logf("%d ranks: %.1f %% of prompt tokens are found by load alone (fullest over mean %.2f), %.1f %% with the directory (%.2f), %.1f %% if all were one",
			ranks, 100*alone, even, 100*found, lopsided, 100*one)
		require.Greater(t, found, 1.2*alone)
		require.LessOrEqual(t, found, one+0.02)
		require.Less(t, lopsided, even+0.5)
	}
}
