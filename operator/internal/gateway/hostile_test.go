package gateway

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// breaksAt is an engine whose connection breaks at each submit that matches `when`.
func breaksAt(when func(*tangramv1.Submit) bool) *engine {
	e := &engine{}
	e.breaks = when
	e.on = one
	return e
}

// A request that always breaks its rank's connection ends with an error after a limited number of tries.
func TestResubmission_WhenConnectionKeepsBreaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var submits atomic.Int32
		s, m := serve(t, breaksAt(func(*tangramv1.Submit) bool { submits.Add(1); return true }))
		code, _, body := post(t, s, `{"prompt":"x"}`)
		require.Equal(t, http.StatusInternalServerError, code)
		require.Contains(t, body, "submitted 17 times without a token")
		require.EqualValues(t, maxReplays+1, submits.Load())
		require.InDelta(t, maxReplays, testutil.ToFloat64(m.resends), 0)
		require.InDelta(t, 1, testutil.ToFloat64(m.lost), 0)
	})
}

// A rank whose connection keeps breaking does not count as idle: new requests go to another rank, with a warning.
func TestRoutingAvoidsFlappingRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bad atomic.Int32
		flapping := breaksAt(func(s *tangramv1.Submit) bool { bad.Add(1); return s.CacheSalt == "hostile" })
		var good atomic.Int32
		healthy := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) { good.Add(1); one(s, send) }}
		log := &syncBuffer{}
		s, m, pool := open(t, Options{Log: slog.New(slog.NewTextHandler(log, nil))}, flapping, healthy)
		require.Eventually(t, func() bool { return sessionsUp(pool) == 2 }, soon, time.Millisecond)
		// The healthy rank has a high load, so the other one is selected unless it is avoided.
		healthy.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_Load{Load: &tangramv1.Load{Running: 100}}})
		synctest.Wait()
		code, _, _ := post(t, s, `{"prompt":"x","cache_salt":"hostile"}`)
		require.Equal(t, http.StatusInternalServerError, code)
		breaks := testutil.ToFloat64(m.breaks.WithLabelValues(flapping.address))
		require.GreaterOrEqual(t, breaks, float64(flapBreaks))
		require.Contains(t, log.String(), "session to a rank broke again, new requests go to other ranks")
		require.Eventually(t, func() bool { return sessionsUp(pool) == 2 }, soon, time.Millisecond)
		synctest.Wait()
		for i, rank := range pool.Telemetry().Ranks {
			require.Equal(t, i == 0, rank.Flapping, "rank %d", i) // for the operator's event
		}
		before := bad.Load()
		for range 4 {
			code, _, body := post(t, s, `{"prompt":"x"}`)
			require.Equal(t, http.StatusOK, code, body)
		}
		require.Equal(t, before, bad.Load(), "requests went to the rank that flaps")
		require.EqualValues(t, 4, good.Load())
		time.Sleep(flapWindow) // no break in this window
		code, _, body := post(t, s, `{"prompt":"x"}`)
		require.Equal(t, http.StatusOK, code, body)
		require.Greater(t, bad.Load(), before, "the rank is used again")
	})
}

// Limits.Answers bounds the bytes that requests hold until they are answered, whatever their clients do.
func TestRequestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		go1 := make(chan func(), 1)
		address, m := limited(t, Limits{Answers: 60 << 10}, func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			go1 <- func() { one(s, send) }
		})
		request := func() io.ReadWriter {
			c := dialed(t, address)
			body := `{"prompt":"x","max_tokens":16}`
			say(t, c, fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body))
			return c
		}
		first := request()
		finish := <-go1 // it holds slightly more than 32 KiB
		code, body := answered(t, request())
		require.Equal(t, http.StatusServiceUnavailable, code, body)
		require.Contains(t, body, errFull.Error())
		require.InDelta(t, 1, testutil.ToFloat64(m.requests.WithLabelValues("503")), 0)
		finish()
		code, body = answered(t, first)
		require.Equal(t, http.StatusOK, code, body)
		third := request()
		(<-go1)()
		code, body = answered(t, third)
		require.Equal(t, http.StatusOK, code, body)
	})
}

// The estimate of a request's bytes is an upper bound, for a stream that its client does not read and for a whole
// answer.
func TestRequestMemoryEstimateIsUpperBound(t *testing.T) {
	const requests, prompt, generated = 40, 2000, 2000
	for name, options := range map[string]string{"stream": `"stream":true,"return_logit_hash":true`, "whole": `"return_logit_hash":false`, "hashes": `"return_logit_hash":true`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int32
				e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
					for i := range generated - 1 {
						send(token(s, i, 'a', 0))
					}
					sent.Add(1)
				}}
				e.world = &tangramv1.World{World: "w", Epoch: 1, MaxTokens: 1 << 20, Vocabulary: 256, Members: []*tangramv1.WorldMember{{Member: "m", Accepts: true}}}
				e.listen(t, "")
				e.world.Members[0].Frontend = e.address
				_, _, pool := before(t, Options{}, e)
				require.Eventually(t, pool.Ready, soon, time.Millisecond)
				server := byteServer(pool, "w", Limits{Write: time.Hour})
				address, _, _ := started(t, server, Drain{})
				heap := func() int64 {
					synctest.Wait()
					runtime.GC()
					runtime.GC()
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					return int64(m.HeapAlloc)
				}
				start := heap()
				ids := strings.TrimSuffix(strings.Repeat("7,", prompt), ",")
				for range requests {
					c := dialed(t, address)
					body := fmt.Sprintf(`{"prompt":[%s],"max_tokens":%d,%s}`, ids, generated, options)
					say(t, c, fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body))
				}
				require.Eventually(t, func() bool { return sent.Load() == requests }, soon, time.Millisecond)
				if raced {
					t.Skip("the race detector's memory is not the product's")
				}
				held := heap() - start
				reserved := int64(1<<30) - available(server)
				t.Logf("%d requests hold %d bytes of %d", requests, held, reserved)
				require.LessOrEqual(t, held, reserved)
				require.Positive(t, reserved)
			})
		})
	}
}

// available returns the free bytes of Limits.Answers.
func available(s *Server) int64 {
	low, high := int64(0), int64(1<<30)
	for low < high {
		middle := (low + high + 1) / 2
		if s.answers.TryAcquire(middle) {
			s.answers.Release(middle)
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// Twenty hostile clients do not affect ten well-behaved ones: no session breaks, every good request is answered, and no
// bytes stay held.
func TestHostileClientsDoNotAffectOthers(t *testing.T) {
	if raced {
		t.Skip("too much for the race detector in a bubble")
	}
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			for i := range s.MaxTokens {
				finish := tangramv1.Finish_FINISH_UNSPECIFIED
				if i == s.MaxTokens-1 {
					finish = tangramv1.Finish_FINISH_LENGTH
				}
				send(token(s, int(i), 'a', finish))
			}
		}}
		e.world = &tangramv1.World{World: "w", Epoch: 1, MaxTokens: 1 << 23, Vocabulary: 151936, Members: []*tangramv1.WorldMember{{Member: "m", Accepts: true}}}
		e.listen(t, "") // default of grpc-go: messages above 4 MiB break the connection
		e.world.Members[0].Frontend = e.address
		_, m, pool := before(t, Options{}, e)
		require.Eventually(t, pool.Ready, soon, time.Millisecond)
		server := byteServer(pool, "w", Limits{Bodies: 1 << 30})
		address, _, _ := started(t, server, Drain{})
		list := func(item string, n int) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
		hostile := []string{
			`{"prompt":[1],"stop_token_ids":[` + list("19999", 2_000_000) + `]}`,
			`{"prompt":[1],"stop":[` + list(`"a"`, 2_000_000) + `]}`,
			`{"prompt":[` + list(`"a"`, 2_000_000) + `]}`,
			`{"prompt":[1],"logit_bias":{` + list(`"1":2`, 1_000_000) + `}}`,
			`{"prompt":[1],"user":"` + strings.Repeat("u", 8<<20) + `"}`,
			`{"prompt":[1],"cache_salt":"` + strings.Repeat("u", 8<<20) + `"}`,
			`{"prompt":[1],"model":"` + strings.Repeat("u", 8<<20) + `"}`,
			`{"prompt":[1],"suffix":"` + strings.Repeat("u", 8<<20) + `"}`,
			`{"prompt":[1],"` + strings.Repeat("u", 8<<20) + `":1}`,
			strings.Repeat(`{"prompt":`, 1_000_000),
		}
		var clients sync.WaitGroup
		send := func(body string) (int, string) {
			c := dialed(t, address)
			defer func() { _ = c.Close() }()
			_, err := fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
			if err != nil {
				return 0, err.Error()
			}
			return answered(t, c)
		}
		for i := range 20 {
			clients.Go(func() {
				code, text := send(hostile[i%len(hostile)])
				if code != http.StatusBadRequest && code != http.StatusNotFound || len(text) > 2048 {
					t.Errorf("hostile request %d: %d %.300s", i, code, text)
				}
			})
		}
		for i := range 10 {
			clients.Go(func() {
				for range 5 {
					if code, text := send(`{"prompt":[1,2,3],"max_tokens":50}`); code != http.StatusOK {
						t.Errorf("good client %d: %d %.300s", i, code, text)
					}
				}
			})
		}
		clients.Wait()
		synctest.Wait()
		require.InDelta(t, 0, testutil.ToFloat64(m.breaks.WithLabelValues(e.address)), 0)
		require.InDelta(t, 0, testutil.ToFloat64(m.lost), 0)
		require.EqualValues(t, 1<<30, available(server))
	})
}

// syncBuffer collects the output of a logger from many goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var errBroke = status.Error(codes.Unavailable, "the connection broke")
