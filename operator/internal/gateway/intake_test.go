package gateway

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/testkit"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// limited is a gateway with its own limits and one engine, as served in production.
func limited(t *testing.T, limits Limits, on func(*tangramv1.Submit, func(*tangramv1.ServeReply))) (address string, m *Metrics) {
	t.Helper()
	_, m, pool := open(t, Options{}, &engine{on: on})
	require.Eventually(t, pool.Ready, soon, time.Millisecond)
	s := byteServer(pool, "w", limits)
	address, _, _ = started(t, s, Drain{})
	return address, m
}

func one(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
	send(token(s, 0, 'z', tangramv1.Finish_FINISH_STOP))
}

// dialed is a raw client connection.
func dialed(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := testkit.Dial(t.Context(), address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(soon)))
	return c
}

func say(t *testing.T, c io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

func answered(t *testing.T, from io.Reader) (code int, body string) {
	t.Helper()
	reply, err := http.ReadResponse(bufio.NewReader(from), nil)
	require.NoError(t, err)
	text, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	return reply.StatusCode, string(text)
}

const head = "POST /v1/completions HTTP/1.1\r\nHost: w\r\n"

// Requests for unsupported features are rejected instead of being served without them.
func TestIntakeRejectsUnsupportedFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := serve(t, &engine{on: one})
		for body, want := range map[string]string{
			`"logit_bias":{"50256":-100}`: "logit_bias",
			`"frequency_penalty":0.5`:     "frequency_penalty",
			`"presence_penalty":-1`:       "presence_penalty",
			`"suffix":"end"`:              "suffix",
			`"best_of":2`:                 "best_of",
			`"n":2`:                       "n",
			`"echo":true`:                 "echo",
			`"logprobs":0`:                "logprobs",
			`"top_k":5`:                   "top_k",
			`"min_tokens":3`:              "min_tokens",
			`"min_p":0.1`:                 "min_p",
			`"repetition_penalty":1.1`:    "repetition_penalty",
			`"response_format":{"type":"json_object"}`: "response_format",
			`"Max_tokens":3`: "Max_tokens",
			`"stream_options":{"include_usage":true}`:                     "stream_options",
			`"stream":true,"stream_options":{"include_obfuscation":true}`: "stream_options",
			`"stop":["a","b","cd"]`:                                       "stop",
			`"seed":1.5`:                                                  "seed",
			`"cache_salt":""`:                                             "cache_salt",
			`"cache_salt":"` + strings.Repeat("s", maxSalt+1) + `"`:       "cache_salt",
		} {
			code, _, text := post(t, s, `{"prompt":"x",`+body+`}`)
			require.Equal(t, http.StatusBadRequest, code, "%s: %s", body, text)
			require.Contains(t, text, `"param":"`+want+`"`, body)
			require.Contains(t, text, `"type":"invalid_request_error"`, body)
		}
		_, _, text := post(t, s, `{"prompt":"x","use_beam_search":true,"ignore_eos":true}`)
		require.Contains(t, text, `"message":"Unrecognized request argument supplied: ignore_eos, use_beam_search"`)
		require.InDelta(t, 21, testutil.ToFloat64(m.requests.WithLabelValues("400")), 0)
	})
}

// Default fields of stock clients have no effect and are accepted.
func TestIntakeAcceptsDefaultFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := serve(t, &engine{on: one})
		for _, body := range []string{
			`"user":"somebody"`,
			`"n":1,"best_of":1,"echo":false,"logprobs":null,"suffix":null,"frequency_penalty":0,"presence_penalty":0.0,"logit_bias":{}`,
			`"min_tokens":0,"top_k":-1,"min_p":0,"repetition_penalty":1.0`, `"top_k":0,"min_tokens":null,"min_p":null,"repetition_penalty":null`,
			`"logit_bias":null,"stop":null,"seed":null,"max_tokens":null,"temperature":null,"top_p":null,"stream_options":null,"user":null,"cache_salt":null`,
			`"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}`,
		} {
			code, _, text := post(t, s, `{"prompt":"x",`+body+`}`)
			require.Equal(t, http.StatusOK, code, "%s: %s", body, text)
		}
	})
}

// Fields that the world's engines support reach them, after validation.
func TestSampling_WhenEngineSupportsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		submits := make(chan *tangramv1.Submit, 2)
		e := &engine{on: func(r *tangramv1.Submit, send func(*tangramv1.ServeReply)) { submits <- r; one(r, send) }}
		e.can = []string{"min_tokens", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"}
		s, _ := serve(t, e)
		code, _, text := post(t, s, `{"prompt":"x","min_tokens":2,"top_k":5,"min_p":0.25,"presence_penalty":0.5,"frequency_penalty":-1,"repetition_penalty":1.5,"logit_bias":{"7":-100}}`)
		require.Equal(t, http.StatusOK, code, text)
		got := <-submits
		require.EqualValues(t, 2, got.MinTokens)
		require.EqualValues(t, 5, got.TopK)
		require.Equal(t, []float32{0.25, 0.5, -1, 1.5}, []float32{got.MinP, got.PresencePenalty, got.FrequencyPenalty, got.RepetitionPenalty})
		require.Equal(t, map[uint32]float32{7: -100}, got.LogitBias)
		code, _, text = post(t, s, `{"prompt":"x","min_tokens":17}`)
		require.Equal(t, http.StatusBadRequest, code, text)
		require.Contains(t, text, "min_tokens: 17 is out of range; send a value from 0 to 16")
		for body, want := range map[string]string{
			`"top_k":-2`: "top_k", `"top_k":4294967297`: "top_k", `"min_p":1.5`: "min_p",
			`"presence_penalty":2.5`: "presence_penalty", `"frequency_penalty":-3`: "frequency_penalty", `"repetition_penalty":0`: "repetition_penalty",
			`"logit_bias":{"256":1}`: "logit_bias", `"logit_bias":{"-1":1}`: "logit_bias", `"logit_bias":{"x":1}`: "logit_bias",
			`"logit_bias":{"1":101}`: "logit_bias", `"logit_bias":{"1":null}`: "logit_bias", `"top_k":1.5`: "top_k",
		} {
			code, _, text := post(t, s, `{"prompt":"x",`+body+`}`)
			require.Equal(t, http.StatusBadRequest, code, "%s: %s", body, text)
			require.Contains(t, text, want, body)
		}
	})
}

// A prompt's cache stays isolated by its salt.
func TestCacheSaltReachesEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		salts := make(chan string, 2)
		s, _ := serve(t, &engine{on: func(r *tangramv1.Submit, send func(*tangramv1.ServeReply)) { salts <- r.CacheSalt; one(r, send) }})
		for body, want := range map[string]string{`{"prompt":"x","cache_salt":"tenant"}`: "tenant", `{"prompt":"x"}`: ""} {
			code, _, text := post(t, s, body)
			require.Equal(t, http.StatusOK, code, text)
			require.Equal(t, want, <-salts)
		}
	})
}

func TestBody_WhenNotOneJSONObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := serve(t, &engine{on: one})
		for _, body := range []string{``, `null`, `[]`, `"x"`, `{"prompt":"x"} {}`, `{"prompt":"x"}x`} {
			code, _, text := post(t, s, body)
			require.Equal(t, http.StatusBadRequest, code, "%q: %s", body, text)
		}
	})
}

func TestUnsupportedPathErrorListsSupportedPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := serve(t, &engine{on: one})
		ask := func(method, path string) (int, http.Header, string) {
			r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(`{}`))
			require.NoError(t, err)
			reply, err := caller(t).Do(r)
			require.NoError(t, err)
			defer func() { require.NoError(t, reply.Body.Close()) }()
			text, err := io.ReadAll(reply.Body)
			require.NoError(t, err)
			return reply.StatusCode, reply.Header, string(text)
		}
		code, _, text := ask("POST", "/v1/embeddings")
		require.Equal(t, http.StatusNotFound, code)
		require.Contains(t, text, "POST /v1/embeddings is not supported; send POST /v1/completions, POST /tokenize, POST /v1/chat/completions, POST /v1/messages, POST /v1/messages/count_tokens, POST /v1/responses or GET /v1/models")
		code, _, text = ask("POST", "/v1/chat/completions")
		require.Equal(t, http.StatusNotFound, code)
		require.Contains(t, text, "needs a tokenizer, but this gateway has none; set spec.gateway.text")
		for path, method := range map[string]string{"/v1/completions": "GET", "/v1/chat/completions": "PUT", "/v1/models": "POST", "/v1/models/a/b": "DELETE"} {
			code, head, text := ask(method, path)
			require.Equal(t, http.StatusMethodNotAllowed, code, path)
			require.Contains(t, []string{"GET", "POST"}, head.Get("Allow"))
			require.Contains(t, text, path+" does not support "+method+"; send "+head.Get("Allow"))
		}
	})
}

// Clients look up a model before they send anything. Ids may contain a slash, plain or escaped.
func TestModels_WhenRequestedByID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, pool := open(t, Options{}, &engine{on: one})
		address, _, _ := started(t, byteServer(pool, "org/demo", Limits{}), Drain{})
		for path, code := range map[string]int{"": 200, "/org/demo": 200, "/org%2Fdemo": 200, "/demo": 404, "/org/demo/": 404} {
			c := dialed(t, address)
			say(t, c, "GET /v1/models"+path+" HTTP/1.1\r\nHost: w\r\n\r\n")
			got, text := answered(t, c)
			require.Equal(t, code, got, "%s: %s", path, text)
			if code == 200 {
				require.Regexp(t, `"created":[0-9]{9,},"id":"org/demo","object":"model","owned_by":"tangram"`, text)
			} else {
				require.Contains(t, text, `"code":"model_not_found"`)
			}
		}
	})
}

// Invalid text would become another prompt.
func TestBody_WhenSurrogateIsUnpaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompts := make(chan []uint32, 8)
		s, _ := serve(t, &engine{on: func(r *tangramv1.Submit, send func(*tangramv1.ServeReply)) { prompts <- r.Prompt; one(r, send) }})
		for body, want := range map[string]string{
			`{"prompt":"a\ud83d"}`: `unpaired surrogate \\ud83d`, `{"prompt":"\ude00\ud83d"}`: "unpaired surrogate", `{"prompt":"\ud83dx\ude00"}`: "unpaired surrogate",
			`{"prompt":"\ud83d\n"}`: "unpaired surrogate", "{\"prompt\":\"\xff\"}": "is not valid UTF-8", `{"user":"\udfff","prompt":"x"}`: "unpaired surrogate",
		} {
			code, _, text := post(t, s, body)
			require.Equal(t, http.StatusBadRequest, code, "%s: %s", body, text)
			require.Contains(t, text, want, body)
		}
		require.Empty(t, prompts)
		for body, want := range map[string][]uint32{
			`{"prompt":"a\ud83d\ude00"}`: {'a', 0xf0, 0x9f, 0x98, 0x80}, `{"prompt":"\\ud83d"}`: {'\\', 'u', 'd', '8', '3', 'd'}, `{"prompt":"a\u0000b"}`: {'a', 0, 'b'},
		} {
			code, _, text := post(t, s, body)
			require.Equal(t, http.StatusOK, code, "%s: %s", body, text)
			require.Equal(t, want, <-prompts)
		}
	})
}

// Which chunks contain token counts.
func TestStream_WhenUsageIsRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := serve(t, &engine{on: func(r *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(r, 0, 'y', tangramv1.Finish_FINISH_UNSPECIFIED))
			send(token(r, 1, 'z', tangramv1.Finish_FINISH_STOP))
		}})
		for options, want := range map[string][]string{
			``: nil,
			`,"stream_options":{"include_usage":true}`: {"null", "null", `{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}`},
			`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`: {
				`{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}`, `{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}`, `{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}`},
		} {
			code, _, text := post(t, s, `{"prompt":"x","stream":true`+options+`}`)
			require.Equal(t, http.StatusOK, code, text)
			var got []string
			for line := range strings.Lines(text) {
				var chunk map[string]json.RawMessage
				if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &chunk) == nil && chunk["usage"] != nil {
					got = append(got, string(chunk["usage"]))
				}
			}
			require.Equal(t, want, got, options)
		}
		code, _, text := post(t, s, `{"prompt":"x","stream":true,"stream_options":{"include_usge":true}}`)
		require.Equal(t, http.StatusBadRequest, code)
		require.Contains(t, text, `stream_options: has the unsupported field \"include_usge\"`)
	})
}

func TestBody_WhenTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address, m := limited(t, Limits{Body: 1000}, one)
		big := `{"prompt":"` + strings.Repeat("x", 1000) + `"}`
		for name, text := range map[string]string{
			"by its length": fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(big), big),
			"in chunks":     fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, len(big), big),
		} {
			c := dialed(t, address)
			say(t, c, text)
			code, body := answered(t, c)
			require.Equal(t, http.StatusRequestEntityTooLarge, code, name)
			require.Contains(t, body, "more than 1000 bytes", name)
			require.Contains(t, body, `"type":"invalid_request_error"`, name)
		}
		require.InDelta(t, 2, testutil.ToFloat64(m.requests.WithLabelValues("413")), 0)
	})
}

// A client that sends its body a byte a minute holds a connection only for Limits.Read.
func TestBody_WhenReadTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address, m := limited(t, Limits{Read: time.Second}, one)
		c := dialed(t, address)
		say(t, c, head+"Content-Length: 20\r\n\r\n{\"prompt\":")
		code, body := answered(t, c)
		require.Equal(t, http.StatusRequestTimeout, code)
		require.Contains(t, body, "did not arrive in time")
		require.InDelta(t, 1, testutil.ToFloat64(m.requests.WithLabelValues("408")), 0)
	})
}

// The timeout for receiving a request does not apply to its answer.
func TestStream_WhenLongerThanReadTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		go1 := make(chan func(), 1)
		address, _ := limited(t, Limits{Read: time.Second, Write: time.Second, Quiet: 20 * time.Millisecond}, func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(s, 0, 'a', 0))
			go1 <- func() { send(token(s, 1, 'b', tangramv1.Finish_FINISH_LENGTH)) }
		})
		c := dialed(t, address)
		body := `{"prompt":"x","max_tokens":2,"stream":true}`
		say(t, c, fmt.Sprintf("%sContent-Length: %d\r\nConnection: close\r\n\r\n%s", head, len(body), body))
		lines := bufio.NewScanner(c)
		comments := 0
		for comments < 60 && lines.Scan() { // 1.2 s without a token
			if lines.Text() == ": keep-alive" {
				comments++
			}
		}
		(<-go1)()
		var rest strings.Builder
		for lines.Scan() {
			rest.WriteString(lines.Text())
		}
		require.NoError(t, lines.Err())
		require.Contains(t, rest.String(), `"text":"b"`)
		require.Contains(t, rest.String(), "data: [DONE]")
	})
}

// Partial bodies count against the limit; announced bytes that were not sent do not.
func TestBodiesShareMemoryLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address, m := limited(t, Limits{Bodies: 1000, Body: 1000, Read: time.Hour}, one)
		idle := dialed(t, address)
		say(t, idle, head+"Content-Length: 1000\r\n\r\n")
		var held net.Conn
		hold := func() {
			held = dialed(t, address)
			say(t, held, head+"Content-Length: 970\r\n\r\n{"+strings.Repeat(" ", 959))
		}
		hold()
		small := `{"prompt":"x","max_tokens":1,"user":"somebody whose name is rather long"}`
		try := func() (int, string) {
			c := dialed(t, address)
			defer func() { _ = c.Close() }()
			say(t, c, fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(small), small))
			return answered(t, c)
		}
		crowdedOut := func(c net.Conn) bool {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
			_, err := c.Read(make([]byte, 1)) // nothing yet; otherwise an answer
			require.NoError(t, c.SetReadDeadline(time.Now().Add(soon)))
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
		require.Eventually(t, func() bool { // once the large one is read
			code, body := try()
			if code == http.StatusServiceUnavailable && strings.Contains(body, "the maximum of bytes of request bodies") {
				return true
			}
			if crowdedOut(held) { // by the small one, which was read concurrently
				hold()
			}
			return false
		}, soon, time.Millisecond)
		require.Positive(t, testutil.ToFloat64(m.requests.WithLabelValues("503")))
		say(t, held, `"user":"x"`) // complete now, and rejected: it is no object with a prompt
		code, _ := answered(t, held)
		require.Equal(t, http.StatusBadRequest, code)
		code, body := try()
		require.Equal(t, http.StatusOK, code, body)
	})
}

// Above the limit of connections, clients wait until one is closed.
func TestConnectionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address, _ := limited(t, Limits{Connections: 2}, one)
		models := "GET /v1/models HTTP/1.1\r\nHost: w\r\n\r\n"
		held := []net.Conn{dialed(t, address), dialed(t, address)}
		for _, c := range held {
			say(t, c, models)
			code, _ := answered(t, c)
			require.Equal(t, http.StatusOK, code)
		}
		third := dialed(t, address) // it waits in the listener's queue
		say(t, third, models)
		require.NoError(t, third.SetReadDeadline(time.Now().Add(soon)))
		_, err := third.Read(make([]byte, 1))
		require.ErrorContains(t, err, "timeout")
		require.NoError(t, held[0].Close())
		require.NoError(t, third.SetReadDeadline(time.Now().Add(soon)))
		code, _ := answered(t, third)
		require.Equal(t, http.StatusOK, code)
	})
}

// A client that does not read its answer is disconnected.
func TestGatewayDisconnectsClientWithStalledReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			for i := range 63 << 10 {
				send(token(s, i, 'a', 0))
			}
		}}
		e.world = &tangramv1.World{World: "w", Epoch: 1, MaxTokens: 1 << 20, Vocabulary: 256}
		_, _, pool := open(t, Options{}, e)
		e.say(&tangramv1.ServeReply{}) // empty: only proves that a session exists
		e.setWorld(&tangramv1.World{World: "w", Epoch: 1, MaxTokens: 1 << 20, Vocabulary: 256, Members: []*tangramv1.WorldMember{{Member: "m", Frontend: e.address, Accepts: true}}})
		require.Eventually(t, func() bool {
			e.mu.Lock()
			w := e.world
			e.mu.Unlock()
			e.say(&tangramv1.ServeReply{Body: &tangramv1.ServeReply_World{World: w}})
			return pool.Ready()
		}, soon, 10*time.Millisecond)
		address, _, _ := started(t, byteServer(pool, "w", Limits{Write: 100 * time.Millisecond}), Drain{})
		c := dialed(t, address)
		body := `{"prompt":"x","max_tokens":100000,"stream":true,"return_logit_hash":true}`
		say(t, c, fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body))
		select {
		case <-e.canceled:
		case <-time.After(soon):
			t.Fatal("the request of a client that does not read runs on")
		}
	})
}

// Metrics and probes have their own port, so that clients neither read nor crowd them.
func TestMetricsAreServedOnOperationsPortOnly(t *testing.T) {
	registry := prometheus.NewRegistry()
	pool := NewPool(Options{World: "w", Gateway: "g", Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(registry, "w")})
	t.Cleanup(pool.Close)
	s := byteServer(pool, "w", Limits{})
	get := func(h http.Handler, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		return w.Code, w.Body.String()
	}
	for _, path := range []string{"/metrics", "/livez", "/readyz"} {
		code, _ := get(s.Handler(), path)
		require.Equal(t, http.StatusNotFound, code, path)
	}
	operations := s.Operations(registry)
	code, text := get(operations, "/metrics")
	require.Equal(t, http.StatusOK, code)
	// Initialized, so that a rate includes the first increase.
	for _, series := range []string{`requests_total{code="200"} 0`, `requests_total{code="429"} 0`, `requests_total{code="503"} 0`, `replays_total{cause="cut"} 0`,
		`replays_total{cause="roster"} 0`, "conflicting_tokens_total 0", "lost_requests_total 0"} {
		require.Contains(t, text, "tangram_gateway_"+series)
	}
	code, _ = get(operations, "/livez")
	require.Equal(t, http.StatusOK, code)
	code, text = get(operations, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, text, "no rank accepts requests")
	code, _ = get(operations, "/v1/models")
	require.Equal(t, http.StatusNotFound, code)
}
