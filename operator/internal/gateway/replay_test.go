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

func TestReplay_WhenHomeDies(t *testing.T) {
	for tokens := range 6 { // delivered before
		t.Run(fmt.Sprint(tokens, " tokens before"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, 2, time.Hour)
				c := r.client()
				home, other, s := r.home()
				r.rest(s, 0)
				r.emit(home, 1, 2, 2+tokens)
				c.has(tokens)
				home.server.Stop()
				r.epoch(2, nil, other)
				r.rest(r.submitted(other), tokens)
				r.emit(other, 2, 2+tokens, 8)
				c.ends(map[string]int{causeRoster: 1})
			})
		})
	}
}

// Early tokens of later positions are kept: they are not requested again, and not delivered before the missing ones.
func TestReplayKeepsEarlyTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		c := r.client()
		home, other, _ := r.home()
		r.emit(other, 1, 4, 8) // it moved; the old home, which dies, has the two tokens before
		home.server.Stop()
		r.epoch(2, nil, other)
		r.rest(r.submitted(other), 0)
		r.emit(other, 2, 2, 8)
		c.ends(map[string]int{causeRoster: 1})
	})
}

// A flip moves the request, and its new home dies before its first token. The rank of the last token does not matter.
func TestReplay_WhenNewHomeDiesBeforeFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		c := r.client()
		home, other, _ := r.home()
		r.emit(home, 1, 2, 5)
		c.has(3)
		r.epoch(2, map[*engine][]string{other: {"r"}}, home, other)
		r.nothingMore(home, other)
		other.server.Stop()
		r.epoch(3, nil, home)
		r.rest(r.submitted(home), 3)
		r.emit(home, 3, 5, 8)
		c.ends(map[string]int{causeRoster: 1})
	})
}

func TestReplay_WhenTwoHomesDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, time.Hour)
		c := r.client()
		alive := append([]*engine(nil), r.engines...)
		for round := range 2 {
			home := -1
			require.Eventually(t, func() bool {
				for i, e := range alive {
					if len(e.got) > 0 {
						home = i
					}
				}
				return home >= 0
			}, soon, time.Millisecond)
			r.rest(<-alive[home].got, round*2)
			r.emit(alive[home], uint64(1+round), 2+round*2, 4+round*2)
			c.has(2 + round*2)
			alive[home].server.Stop()
			alive = append(alive[:home:home], alive[home+1:]...)
			r.epoch(uint64(2+round), nil, alive...)
		}
		r.rest(r.submitted(alive[0]), 4)
		r.emit(alive[0], 3, 6, 8)
		c.ends(map[string]int{causeRoster: 2})
	})
}

// Before all members have sent their rosters, no request is known to be unassigned.
func TestReplayWaitsForAllRosters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, time.Hour)
		c := r.client()
		require.Eventually(t, func() bool { return len(r.engines[0].got)+len(r.engines[1].got)+len(r.engines[2].got) == 1 }, soon, time.Millisecond)
		for _, e := range r.engines {
			for len(e.got) > 0 {
				<-e.got
			}
		}
		w := r.world(2, r.engines...)
		r.enter(r.engines[0], w)
		r.enter(r.engines[1], w)
		r.nothingMore(r.engines...)
		r.enter(r.engines[2], w, "r")
		r.counted(2)
		r.nothingMore(r.engines...)
		r.emit(r.engines[2], 2, 2, 8)
		c.ends(nil)
	})
}

// A flip begins while the previous census is open: the later census is enough.
func TestReplay_WhenNewerEpochSupersedesCensus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		c := r.client()
		home, other, _ := r.home()
		r.enter(home, r.world(2, r.engines...)) // the other's roster of epoch 2 never arrives
		r.epoch(3, nil, r.engines...)
		require.Empty(t, r.pool.censuses)
		r.rest(r.submitted(home), 0) // its previous rank is tried first
		r.nothingMore(other)
		r.emit(home, 3, 2, 8)
		c.ends(map[string]int{causeRoster: 1})
	})
}

// A request submitted after its engine reported the epoch cannot have been lost in it.
func TestReplayIgnoresRequestSubmittedInNewEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		w := r.world(2, r.engines...)
		for _, e := range r.engines { // both have reported the world; no roster has arrived
			e.setWorld(w)
			e.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_World{World: w}})
		}
		require.Eventually(t, func() bool {
			r.pool.mu.Lock()
			defer r.pool.mu.Unlock()
			return r.pool.sessions[r.engines[0].address].told.Epoch == 2 && r.pool.sessions[r.engines[1].address].told.Epoch == 2
		}, soon, time.Millisecond)
		c := r.client()
		home, other, _ := r.home()
		r.epoch(2, nil, r.engines...)
		r.nothingMore(home, other)
		r.emit(home, 2, 2, 8)
		c.ends(nil)
	})
}

// The request was in the inbox when the roster was written: the rank reports that it has it.
func TestReplay_WhenRankAlreadyRunsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		c := r.client()
		home, other, _ := r.home()
		r.epoch(2, nil, r.engines...)
		r.submitted(home)
		home.say(refused(tangramv1.Refused_CODE_RUNNING, ""))
		r.nothingMore(home, other)
		r.emit(home, 2, 2, 8)
		c.ends(map[string]int{causeRoster: 1})
	})
}

func refused(code tangramv1.Refused_Code, why string) *tangramv1.ServeReply {
	return &tangramv1.ServeReply{Body: &tangramv1.ServeReply_Refused{Refused: &tangramv1.Refused{Request: "r", Code: code, Message: why}}}
}

// A request that was accepted once waits; its client gets no error when ranks are busy.
func TestReplayRetries_WhenRanksAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		c := r.client()
		home, other, _ := r.home()
		r.emit(home, 1, 2, 3)
		c.has(1)
		home.server.Stop()
		r.epoch(2, nil, other)
		for i := range 5 {
			r.rest(r.submitted(other), 1)
			other.say(refused([]tangramv1.Refused_Code{tangramv1.Refused_CODE_BUSY, tangramv1.Refused_CODE_NOT_READY}[i%2], "no"))
		}
		r.submitted(other)
		r.emit(other, 2, 3, 8)
		c.ends(map[string]int{causeRoster: 1})
	})
}

func TestReplay_WhenRankRejectsRequestAsInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		c := r.client()
		home, other, _ := r.home()
		home.server.Stop()
		r.epoch(2, nil, other)
		r.submitted(other)
		other.say(refused(tangramv1.Refused_CODE_INVALID, "max_tokens: too many for what is left"))
		err := <-c.err
		require.ErrorIs(t, err, ErrLost)
		require.ErrorContains(t, err, "too many for what is left")
		require.InDelta(t, 1, testutil.ToFloat64(r.m.lost), 0)
	})
}

// Two homes give equal tokens; each position is delivered once.
func TestReplay_WhenTwoHomesSendTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, 50*time.Millisecond)
		c := r.client()
		home, other, _ := r.home()
		r.emit(home, 1, 2, 4)
		c.has(2)
		address := home.address
		home.server.Stop() // only the connection: the engine continues, and the world still lists it
		r.rest(r.submitted(other), 2)
		home.listen(t, address)
		require.Eventually(t, func() bool { return r.inside() == 2 }, soon, time.Millisecond)
		r.emit(home, 1, 4, 7) // tokens that it kept for this gateway
		r.emit(other, 1, 4, 8)
		c.ends(map[string]int{causeCut: 1})
		select { // the other home need not continue
		case <-home.canceled:
		case <-time.After(soon):
			t.Fatal("no cancel came")
		}
	})
}

// A member that is cut off sends no roster; those of the others are enough.
func TestCensusSkipsRosterOfDisconnectedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 3, 50*time.Millisecond)
		c := r.client()
		require.Eventually(t, func() bool { return len(r.engines[0].got)+len(r.engines[1].got)+len(r.engines[2].got) == 1 }, soon, time.Millisecond)
		var alive []*engine
		for _, e := range r.engines {
			if len(e.got) == 0 {
				alive = append(alive, e)
			} else {
				e.server.Stop()
			}
		}
		w := r.world(2, r.engines...)
		r.enter(alive[0], w)
		r.enter(alive[1], w)
		r.counted(2)
		require.Eventually(t, func() bool { return len(alive[0].got)+len(alive[1].got) == 1 }, soon, time.Millisecond)
		for _, e := range alive {
			if len(e.got) > 0 {
				r.emit(e, 2, 2, 8)
			}
		}
		c.ends(map[string]int{causeCut: 1})
	})
}

// The engine restarts at its address. It is not a member until a repair; its requests are unassigned.
func TestReplay_WhenEngineRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, time.Hour)
		home := r.engines[0]
		c := r.client()
		r.submitted(home)
		r.emit(home, 1, 2, 4)
		c.has(2)
		address := home.address
		home.server.Stop()
		home.setWorld(nil)
		home.listen(t, address)
		require.Eventually(t, func() bool { return sessionsUp(r.pool) == 0 && !r.pool.Ready() }, soon, time.Millisecond)
		r.nothingMore(home) // the new process knows no world, and gets no request
		require.Eventually(t, func() bool { home.mu.Lock(); defer home.mu.Unlock(); return home.stream != nil }, soon, time.Millisecond)
		require.Eventually(t, func() bool {
			r.enter(home, r.world(2, home))
			return r.pool.World().Epoch == 2
		}, soon, 20*time.Millisecond)
		r.rest(r.submitted(home), 2)
		r.emit(home, 2, 4, 8)
		c.ends(map[string]int{causeRoster: 1})
	})
}

// After a long downtime, an engine's session is rarely dialed. The others report a world with the engine as a member:
// it is dialed immediately, because its requests wait for its roster.
func TestPoolRedialsMemberOfNewWorldImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigWith(t, 2, Options{LostAfter: time.Hour, pause: time.Hour})
		c := r.client()
		home, other, _ := r.home()
		r.emit(home, 1, 2, 4)
		c.has(2)
		address := home.address
		home.server.Stop()
		home.setWorld(nil)
		require.Eventually(t, func() bool { return sessionsUp(r.pool) == 1 }, soon, time.Millisecond)
		home.listen(t, address)
		w := r.world(2, r.engines...)
		r.enter(other, w)
		require.Eventually(t, func() bool {
			r.enter(home, w) // over its new stream, once it exists
			r.pool.mu.Lock()
			defer r.pool.mu.Unlock()
			return r.pool.counted == 2
		}, soon, time.Millisecond)
		r.rest(r.submitted(home), 2)
		r.emit(home, 2, 4, 8)
		c.ends(map[string]int{causeRoster: 1})
	})
}

// A submit over a connection that broke may not have arrived. No rank dies, so there is no roster.
func TestPoolResendsUnansweredSubmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, time.Hour)
		home := r.engines[0]
		c := r.client()
		r.submitted(home) // and lost
		address := home.address
		home.server.Stop()
		home.listen(t, address)
		r.rest(r.submitted(home), 0)
		r.emit(home, 1, 2, 8)
		c.ends(nil)
	})
}

// Epochs start at 1 and no member is known: the world was restarted.
func TestReplay_WhenWorldRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, 50*time.Millisecond)
		r.epoch(7, nil, r.engines...)
		c := r.client()
		home, other, _ := r.home()
		r.emit(home, 7, 2, 4)
		c.has(2)
		fresh := &engine{}
		r.names[fresh] = "fresh"
		home.server.Stop()
		other.server.Stop()
		require.Eventually(t, func() bool { return testutil.ToFloat64(r.m.replays.WithLabelValues(causeCut)) == 1 }, soon, time.Millisecond)
		fresh.listen(t, r.engines[0].address) // the seed
		fresh.setWorld(r.world(1, fresh))
		r.rest(r.submitted(fresh), 2)
		require.EqualValues(t, 1, r.pool.World().Epoch)
		// A rank of the previous world returns and changes nothing.
		r.pool.mu.Lock()
		news := r.pool.isNewsLocked(r.world(9, home, other))
		r.pool.mu.Unlock()
		require.False(t, news)
		r.emit(fresh, 1, 4, 8)
		c.ends(map[string]int{causeCut: 1})
	})
}

// While a member of the world sends messages, another world of an unknown engine is not adopted.
func TestPoolIgnoresWorldOfUnknownEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, 200*time.Millisecond)
		r.epoch(7, nil, r.engines[0])
		stranger := r.engines[1]
		for range 40 {
			r.engines[0].say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Load{Load: &tangramv1.Load{}}})
			r.names[stranger] = "stranger"
			r.enter(stranger, r.world(1, stranger))
			time.Sleep(10 * time.Millisecond)
			require.EqualValues(t, 7, r.pool.World().Epoch)
		}
	})
}

// A request that kills each of its homes ends after a limited number of replays.
func TestReplaysAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, time.Hour)
		c := r.client()
		for epoch := range uint64(maxReplays + 1) {
			r.submitted(r.engines[0])
			r.epoch(2+epoch, nil, r.engines[0])
		}
		err := <-c.err
		require.ErrorIs(t, err, ErrLost)
		require.ErrorContains(t, err, fmt.Sprintf("submitted %d times", maxReplays+1))
		require.InDelta(t, 1, testutil.ToFloat64(r.m.lost), 0)
		require.InDelta(t, maxReplays, testutil.ToFloat64(r.m.replays.WithLabelValues(causeRoster)), 0)
	})
}

// A request that kills its rank each time must not do so forever: all other requests die with it.
func TestReplay_WhenRequestKillsItsRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, time.Hour)
		home := r.engines[0]
		c := r.client()
		for death := range uint64(maxDeaths) {
			r.submitted(home)
			address := home.address
			home.server.Stop()
			home.setWorld(nil)
			home.listen(t, address)
			require.Eventually(t, func() bool { return !r.pool.Ready() }, soon, time.Millisecond)
			require.Eventually(t, func() bool { home.mu.Lock(); defer home.mu.Unlock(); return home.stream != nil }, soon, time.Millisecond)
			require.Eventually(t, func() bool {
				r.enter(home, r.world(2+death, home))
				return r.pool.World().Epoch == 2+death
			}, soon, 20*time.Millisecond)
		}
		err := <-c.err
		require.ErrorIs(t, err, ErrLost)
		require.ErrorContains(t, err, "3 ranks died while they had the request")
		require.InDelta(t, 1, testutil.ToFloat64(r.m.lost), 0)
		require.InDelta(t, maxDeaths-1, testutil.ToFloat64(r.m.resends), 0)
		r.nothingMore(home)
	})
}

// If an engine cancels a request that the gateway did not cancel, the request continues elsewhere.
func TestReplay_WhenEngineCancelsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		c := r.client()
		home, _, _ := r.home()
		r.emit(home, 1, 2, 4)
		c.has(2)
		home.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Token{Token: &tangramv1.Token{Request: "r", Position: 4, Epoch: 1, Finish: tangramv1.Finish_FINISH_CANCELLED}}})
		r.rest(r.submitted(home), 2)
		r.emit(home, 1, 4, 8)
		c.ends(map[string]int{causeCancelled: 1})
	})
}

// The last position ends the request even without a finish reason: no tokens are left to request.
func TestLastPositionEndsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, time.Hour)
		c := r.client()
		r.submitted(r.engines[0])
		for p := 2; p < 8; p++ {
			r.engines[0].say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Token{Token: &tangramv1.Token{Request: "r", Position: uint32(p), Token: id(p), Epoch: 1}}})
		}
		c.ends(nil)
	})
}

// A client disconnects while its request is unassigned. A rank that later lists the request gets a cancel.
func TestPoolCancelsUnknownRequestInRoster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, time.Hour)
		r.epoch(2, map[*engine][]string{r.engines[0]: {"old"}}, r.engines[0])
		select {
		case id := <-r.engines[0].canceled:
			require.Equal(t, "old", id)
		case <-time.After(soon):
			t.Fatal("no cancel came")
		}
	})
}

func TestReplay_WhenClientDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, time.Hour)
		c := r.client()
		home, other, _ := r.home()
		home.server.Stop()
		other.server.Stop()
		r.nothingMore(home, other)
		c.leave()
		require.ErrorIs(t, <-c.err, context.Canceled)
		require.Nil(t, r.pool.requests.find("r"))
		require.Empty(t, r.pool.waiting)
	})
}

// The world's ranks stay stopped; another world is alive.
func TestReplay_WhenStoppedWorldIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2, 200*time.Millisecond)
		old, fresh := r.engines[0], r.engines[1]
		r.epoch(7, nil, old)
		c := r.client()
		r.submitted(old)
		r.emit(old, 7, 2, 4)
		c.has(2)
		r.names[fresh] = "fresh"
		r.enter(fresh, r.world(1, fresh))
		for done := false; !done; { // it serves
			select {
			case s := <-fresh.got:
				r.rest(s, 2)
				done = true
			case <-time.After(10 * time.Millisecond):
				fresh.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Load{Load: &tangramv1.Load{}}})
			case <-t.Context().Done():
				return
			}
		}
		r.emit(fresh, 1, 4, 8)
		c.ends(map[string]int{causeRestart: 1})
	})
}
