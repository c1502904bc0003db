package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/testkit"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// texter is a text server that answers a chat with one event per piece of tokens. It sends only what the tests check.
type texter struct {
	t       *testing.T
	session tangramv1.Front_SessionClient
	world   *tangramv1.FrontWorld
	bodies  chan string // as received
	stops   func(token uint32) bool
	breaks  bool // ends a stream early

	mu   sync.Mutex
	open map[string]chan *tangramv1.Piece
}

// withText starts a gateway with engines and a text server.
func withText(t *testing.T, engines ...*engine) (x *texter, address string, m *Metrics) {
	t.Helper()
	_, m, pool := open(t, Options{}, engines...)
	require.Eventually(t, pool.Ready, soon, time.Millisecond)
	s := NewServer(pool, "org/demo", Limits{})
	x = &texter{t: t, bodies: make(chan string, 16), open: map[string]chan *tangramv1.Piece{}}
	http1, err := testkit.Listen("")
	require.NoError(t, err)
	server := &http.Server{Handler: x, ReadHeaderTimeout: soon}
	go func() { _ = server.Serve(http1) }()
	t.Cleanup(func() { _ = server.Close() })
	s.door = newDoor(s, func(ctx context.Context) (net.Conn, error) { return testkit.Dial(ctx, http1.Addr().String()) })
	tokens, err := testkit.Listen("")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.ServeTokens(ctx, tokens) }()
	conn, err := grpc.NewClient("passthrough:tokens", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return testkit.Dial(ctx, tokens.Addr().String())
		}))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		require.NoError(t, <-served)
	})
	x.session, err = tangramv1.NewFrontClient(conn).Session(ctx)
	require.NoError(t, err)
	first, err := x.session.Recv()
	require.NoError(t, err)
	x.world = first.GetWorld()
	go x.listen()
	address, _, _ = started(t, s, Drain{})
	return x, address, m
}

func (x *texter) listen() {
	for {
		r, err := x.session.Recv()
		if err != nil {
			return
		}
		for _, p := range r.GetPieces().GetPieces() {
			x.mu.Lock()
			to := x.open[p.Request]
			x.mu.Unlock()
			if to != nil {
				to <- p
			}
		}
	}
}

func (x *texter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	x.bodies <- string(body)
	var asked struct {
		Messages []struct{ Content string }
		Prompt   string
		Input    string
		ID       string `json:"request_id"`
		TopK     uint32 `json:"top_k"`
		Stream   bool
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text := asked.Prompt + asked.Input
	for _, m := range asked.Messages {
		text += m.Content
	}
	if text == "" {
		w.Header().Set("Server", "uvicorn")
		http.Error(w, `{"error":{"message":"no text"}}`, http.StatusBadRequest)
		return
	}
	id, last := "chatcmpl-"+r.Header.Get("X-Request-Id")+"-0", doorPaths[r.URL.Path].last[1:]+"\n\n"
	if asked.ID != "" {
		id = asked.ID + "_0"
	}
	submit := &tangramv1.Submit{Request: id, MaxTokens: 8, Temperature: 1, TopP: 1, TopK: asked.TopK}
	for _, b := range []byte(text) {
		submit.Prompt = append(submit.Prompt, uint32(b))
	}
	pieces := make(chan *tangramv1.Piece, 16)
	x.mu.Lock()
	x.open[submit.Request] = pieces
	err := x.session.Send(&tangramv1.FrontRequest{Body: &tangramv1.FrontRequest_Submit{Submit: submit}})
	x.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		select {
		case <-r.Context().Done():
			x.cancel(submit.Request)
			return
		case p := <-pieces:
			if p.Error != "" {
				_, _ = fmt.Fprint(w, "data: {\"error\":{}}\n\n"+last)
				return
			}
			for _, token := range p.Tokens {
				_, _ = fmt.Fprintf(w, "data: %c\n\n", rune(token))
				if x.stops != nil && x.stops(token) {
					x.cancel(submit.Request)
					_, _ = fmt.Fprint(w, last)
					return
				}
			}
			_ = http.NewResponseController(w).Flush()
			if x.breaks {
				panic(http.ErrAbortHandler)
			}
			if p.Finish != tangramv1.Finish_FINISH_UNSPECIFIED {
				_, _ = fmt.Fprint(w, last)
				return
			}
		}
	}
}

func (x *texter) cancel(request string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	_ = x.session.Send(&tangramv1.FrontRequest{Body: &tangramv1.FrontRequest_Cancel{Cancel: &tangramv1.Cancel{Request: request}}})
}

func (x *texter) ask(address, path, body string) (int, http.Header, string) {
	x.t.Helper()
	reply, err := caller(x.t).Post("http://"+address+path, "application/json", strings.NewReader(body))
	require.NoError(x.t, err)
	defer func() { require.NoError(x.t, reply.Body.Close()) }()
	text, err := io.ReadAll(reply.Body)
	require.NoError(x.t, err)
	return reply.StatusCode, reply.Header, string(text)
}

// says sends abc and ends.
func says(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
	for i, c := range "abc" {
		finish := tangramv1.Finish_FINISH_UNSPECIFIED
		if c == 'c' {
			finish = tangramv1.Finish_FINISH_STOP
		}
		send(token(s, i, uint32(c), finish))
	}
}

func TestTextProxy_WhenChatIsRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompts := make(chan []uint32, 4)
		x, address, m := withText(t, &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) { prompts <- s.Prompt; says(s, send) }})
		require.EqualValues(t, 64, x.world.MaxTokens)
		require.EqualValues(t, 256, x.world.Vocabulary)
		code, head, text := x.ask(address, pathChat, `{"messages":[{"role":"user","content":"hi"}],"stream":true,"top_p":null,"n":1}`)
		require.Equal(t, http.StatusOK, code, text)
		require.Equal(t, "data: a\n\ndata: b\n\ndata: c\n\ndata: [DONE]\n\n", text)
		require.Equal(t, "no", head.Get("X-Accel-Buffering"))
		require.Equal(t, "no-cache", head.Get("Cache-Control"))
		require.Equal(t, []uint32{'h', 'i'}, <-prompts)
		require.JSONEq(t, `{"messages":[{"role":"user","content":"hi"}],"stream":true,"n":1,"model":"org/demo"}`, <-x.bodies, "null is absent, and the model has its name")
		code, _, text = x.ask(address, pathCompletions, `{"prompt":"yo","model":"org/demo"}`)
		require.Equal(t, http.StatusOK, code, text)
		require.Equal(t, []uint32{'y', 'o'}, <-prompts)
		<-x.bodies
		code, _, text = x.ask(address, pathCompletions, `{"prompt":[1,2]}`)
		require.Equal(t, http.StatusOK, code, text)
		require.Empty(t, x.bodies, "token ids need no text server")
		require.InDelta(t, 3, testutil.ToFloat64(m.requests.WithLabelValues("200")), 0)
		require.InDelta(t, 9, testutil.ToFloat64(m.generated), 0)
		code, head, text = x.ask(address, pathChat, `{"messages":[]}`)
		require.Equal(t, http.StatusBadRequest, code)
		require.Contains(t, text, "no text")
		require.Empty(t, head.Get("Server"))
	})
}

// The two other APIs have their own last events, errors and request ids.
func TestTextProxy_WhenResponsesOrMessagesIsRequested(t *testing.T) {
	for path, c := range map[string]struct{ body, last, wrong, busy string }{
		pathResponses: {`{"input":"hi","stream":true}`, "event: response.completed\n\n",
			`{"error":{"message":"Unrecognized request argument supplied: speed","type":"invalid_request_error","param":"speed","code":null}}`, `"type":"rate_limit_error"`},
		pathMessages: {`{"messages":[{"role":"user","content":"hi"}],"max_tokens":8,"stream":true}`, "event: message_stop\n\n",
			`{"type":"error","error":{"type":"invalid_request_error","message":"Unrecognized request argument supplied: speed"}}`, `{"error":{"message":"`},
	} {
		t.Run(strings.TrimPrefix(path, "/v1/"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				busy := false
				x, address, _ := withText(t, &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
					if busy {
						refuse(tangramv1.Refused_CODE_BUSY)(s, send)
						return
					}
					says(s, send)
				}})
				code, _, text := x.ask(address, path, c.body)
				require.Equal(t, http.StatusOK, code, text)
				require.Equal(t, "data: a\n\ndata: b\n\ndata: c\n\n"+c.last, text)
				code, _, text = x.ask(address, path, strings.Replace(c.body, `"stream"`, `"speed":1,"stream"`, 1))
				require.Equal(t, http.StatusBadRequest, code)
				require.JSONEq(t, c.wrong, text)
				busy = true
				code, head, text := x.ask(address, path, c.body)
				require.Equal(t, http.StatusTooManyRequests, code, text)
				require.Equal(t, "1", head.Get("Retry-After"))
				require.Contains(t, text, c.busy)
				busy, x.breaks = false, true
				reply, err := caller(t).Post("http://"+address+path, "application/json", strings.NewReader(c.body))
				require.NoError(t, err)
				broken, _ := io.ReadAll(reply.Body)
				require.NoError(t, reply.Body.Close())
				require.Contains(t, string(broken), "\n\nevent: error\ndata: {")
				require.NotContains(t, string(broken), c.last)
			})
		})
	}
}

func TestTextProxy_WhenResponsesOrMessagesFieldIsUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, address, _ := withText(t, &engine{on: says})
		refused := func(path, with string, more map[string]string) {
			for body, says := range more {
				code, _, text := x.ask(address, path, `{`+with+body+`}`)
				require.Equal(t, http.StatusBadRequest, code, "%s: %s", body, text)
				require.Contains(t, text, says, body)
			}
		}
		refused(pathResponses, `"input":"hi",`, map[string]string{
			`"previous_response_id":"resp_1"`: "previous_response_id", `"store":true`: "store", `"background":true`: "background", `"request_id":"mine"`: "request_id",
			`"tools":[{"type":"web_search"}]`: `tools: has the unsupported type \"web_search\"; send function`, `"tool_choice":"required"`: "tool_choice",
			`"text":{"format":{"type":"json_object"}}`: "text", `"truncation":"auto"`: "truncation", `"reasoning":{"summary":"auto"}`: `reasoning: has the unsupported field \"summary\"`,
			`"input":[{"type":"item_reference","id":"x"}]`:                                     `item 0 has the unsupported type \"item_reference\"`,
			`"input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]`:     `item 0 has content of the unsupported type \"input_image\"`,
			`"input":[{"type":"function_call_output","output":[{"type":"input_file"}]}]`:       `item 0 has content of the unsupported type \"input_file\"`,
			`"include":["reasoning.encrypted_content"]`:                                        "include",
			`"tools":[` + strings.Repeat(`{"type":"function"},`, 128) + `{"type":"function"}]`: "tools: has 129 entries",
		})
		refused(pathMessages, `"messages":[{"role":"user","content":"hi"}],"max_tokens":8,`, map[string]string{
			`"thinking":{"type":"enabled","budget_tokens":2000}`: `thinking: has the unsupported type \"enabled\"; send disabled or adaptive`,
			`"tool_choice":{"type":"any"}`:                       "tool_choice", `"output_config":{"format":{}}`: "output_config",
			`"system":[{"type":"image"}]`: "system", `"stop_sequences":["a","b","c","d","e"]`: "stop_sequences", `"container":"x"`: "container",
			`"messages":[{"role":"user","content":[{"type":"image"}]}]`:                                        `message 0 has content of the unsupported type \"image\"`,
			`"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}]`:     `message 0 has content of the unsupported type \"image\"`,
			`"messages":[{"role":"user","content":[{"type":"document","source":{"url":"http://127.0.0.1"}}]}]`: `\"document\"`,
		})
		refused(pathChat, `"messages":[{"role":"user","content":"hi"}],`, map[string]string{`"thinking_token_budget":5`: "thinking_token_budget"})
	})
}

// Fields that vLLM would ignore, or that no rank supports, are rejected by name.
func TestTextProxy_WhenChatFieldIsUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, address, _ := withText(t, &engine{on: says})
		for body, param := range map[string]string{
			`"guided_json":{}`: "guided_json", `"response_format":{"type":"json_object"}`: "response_format", `"tool_choice":"required"`: "tool_choice",
			`"tool_choice":{"type":"function","function":{"name":"f"}}`: "tool_choice", `"n":9`: "n", `"logprobs":true,"top_logprobs":21`: "top_logprobs", `"chat_template":"x"`: "chat_template",
			`"stop":["a","b","c","d","e"]`: "stop", `"stop":"` + strings.Repeat("x", 257) + `"`: "stop", `"stop":3`: "stop", `"priority":1`: "priority",
			`"tools":[` + strings.Repeat("{},", 128) + `{}]`: "tools", `"stream_options":{"include_usge":true}`: "stream_options",
			`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://127.0.0.1/"}}]}]`: "messages",
			`"top_k":5`:       "top_k", // not supported by the engines of this world
			`"model":"gpt-4"`: "model", `"model":7`: "model",
		} {
			code, _, text := x.ask(address, pathChat, `{"messages":[{"role":"user","content":"hi"}],`+body+`}`)
			if param == "model" {
				require.Equal(t, http.StatusNotFound, code, "%s: %s", body, text)
			} else {
				require.Equal(t, http.StatusBadRequest, code, "%s: %s", body, text)
			}
			require.Contains(t, text, `"param":"`+param+`"`, body)
		}
		code, _, text := x.ask(address, pathCompletions, `{"prompt":["a","b"]}`)
		require.Equal(t, http.StatusBadRequest, code)
		require.Contains(t, text, `"param":"prompt"`)
		code, _, text = x.ask(address, pathChat, `{"messages":[{"role":"user","content":"\ud83d"}]}`)
		require.Equal(t, http.StatusBadRequest, code)
		require.Contains(t, text, "unpaired surrogate")
		for _, body := range []string{`"priority":0`, `"logprobs":false`, `"response_format":{ "type": "text" }`, `"tool_choice":"auto","tools":[]`, `"modalities":["text"],"store":false`} {
			code, _, text := x.ask(address, pathChat, `{"messages":[{"role":"user","content":"hi"}],`+body+`}`)
			require.Equal(t, http.StatusOK, code, "%s: %s", body, text)
		}
	})
}

// The gateway knows why there is no answer; the text server sends 200 before its first event.
func TestTextProxy_WhenRanksReject(t *testing.T) {
	for name, c := range map[string]struct {
		code   tangramv1.Refused_Code
		status int
	}{
		"busy": {tangramv1.Refused_CODE_BUSY, http.StatusTooManyRequests}, "invalid": {tangramv1.Refused_CODE_INVALID, http.StatusBadRequest},
		"not ready": {tangramv1.Refused_CODE_NOT_READY, http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, address, m := withText(t, &engine{on: refuse(c.code)})
				code, head, text := x.ask(address, pathChat, `{"messages":[{"role":"user","content":"hi"}],"stream":true}`)
				require.Equal(t, c.status, code, text)
				require.NotEqual(t, c.status >= 429, head.Get("Retry-After") == "")
				require.InDelta(t, 1, testutil.ToFloat64(m.requests.WithLabelValues(fmt.Sprint(c.status))), 0)
			})
		})
	}
}

// The text server finds stop strings. The ranks get a cancel, whichever rank has the request.
func TestTextProxy_WhenStopStringMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(s, 0, 'a', tangramv1.Finish_FINISH_UNSPECIFIED))
		}}
		x, address, _ := withText(t, e)
		x.stops = func(token uint32) bool { return token == 'a' }
		code, _, text := x.ask(address, pathChat, `{"messages":[{"role":"user","content":"hi"}],"stream":true}`)
		require.Equal(t, http.StatusOK, code, text)
		require.Contains(t, <-e.canceled, "chatcmpl-")
	})
}

func TestTextProxy_WhenClientDisconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			send(token(s, 0, 'a', tangramv1.Finish_FINISH_UNSPECIFIED))
		}}
		_, address, _ := withText(t, e)
		c := dialed(t, address)
		body := `{"messages":[{"role":"user","content":"hi"}],"stream":true}`
		say(t, c, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n%s", pathChat, len(body), body))
		_, err := c.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.Contains(t, <-e.canceled, "chatcmpl-")
	})
}

// A text server that dies cuts its streams. Clients get an error: an incomplete answer must not look complete.
func TestTextProxy_WhenTextServerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, address, _ := withText(t, &engine{on: says})
		x.breaks = true
		reply, err := caller(t).Post("http://"+address+pathChat, "application/json", strings.NewReader(`{"messages":[{"role":"user","content":"hi"}],"stream":true}`))
		require.NoError(t, err)
		text, err := io.ReadAll(reply.Body)
		require.True(t, err == nil || errors.Is(err, io.ErrUnexpectedEOF), err)
		require.NoError(t, reply.Body.Close())
		require.Contains(t, string(text), "data: a\n\n")
		require.True(t, strings.HasSuffix(string(text), `{"error":{"message":"the text server of this gateway is unresponsive; try again later","type":"server_error","param":null,"code":null}}`+"\n\n"), string(text))
		require.NotContains(t, string(text), "[DONE]")
	})
}

func TestTextProxy_WhenTextServerIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, pool := open(t, Options{}, &engine{on: says})
		require.Eventually(t, pool.Ready, soon, time.Millisecond)
		s := NewServer(pool, "m", Limits{})
		s.door = newDoor(s, func(context.Context) (net.Conn, error) { return nil, errors.New("no such file") })
		address, _, _ := started(t, s, Drain{})
		x := &texter{t: t}
		code, head, text := x.ask(address, pathChat, `{"messages":[{"role":"user","content":"hi"}]}`)
		require.Equal(t, http.StatusServiceUnavailable, code)
		require.Equal(t, "1", head.Get("Retry-After"))
		require.Contains(t, text, "the text server of this gateway is unresponsive")
		code, _, text = x.ask(address, pathCompletions, `{"prompt":[1,2]}`)
		require.Equal(t, http.StatusOK, code, text)
	})
}

// /textz on the operations port, for the kubelet, reports whether the text server renders.
func TestTextz_WhenTextServerIsUnresponsive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, pool := open(t, Options{}, &engine{on: says})
		s := NewServer(pool, "m", Limits{})
		ask := func() (int, string) {
			w := httptest.NewRecorder()
			s.Operations(prometheus.NewRegistry()).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/textz", nil))
			return w.Code, w.Body.String()
		}
		code, _ := ask()
		require.Equal(t, http.StatusNotFound, code)
		text, err := testkit.Listen("")
		require.NoError(t, err)
		type handler func(w http.ResponseWriter, r *http.Request, body string)
		var answer atomic.Pointer[handler] // a request that the gateway abandoned may still be in the previous handler
		answers := func(h handler) { answer.Store(&h) }
		server := &http.Server{ReadHeaderTimeout: soon, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			(*answer.Load())(w, r, string(body))
		})}
		go func() { _ = server.Serve(text) }()
		defer func() { _ = server.Close() }()
		s.door = newDoor(s, func(ctx context.Context) (net.Conn, error) { return testkit.Dial(ctx, text.Addr().String()) })
		for want, with := range map[int]handler{
			http.StatusOK: func(w http.ResponseWriter, _ *http.Request, body string) {
				if strings.Contains(body, "messages") { // a model without a chat template
					w.WriteHeader(http.StatusBadRequest)
				}
			},
			http.StatusServiceUnavailable: func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() }, // it hangs
		} {
			answers(with)
			code, said := ask()
			require.Equal(t, want, code, said)
		}
		answers(func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusInternalServerError) })
		code, said := ask()
		require.Equal(t, http.StatusServiceUnavailable, code)
		require.Contains(t, said, "returned 500 Internal Server Error for /tokenize")
	})
}

// The end of a session ends its requests.
func TestFront_WhenSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {}}
		x, _, _ := withText(t, e)
		submit := &tangramv1.Submit{Request: "r", Prompt: []uint32{1}, MaxTokens: 4, TopP: 1}
		require.NoError(t, x.session.Send(&tangramv1.FrontRequest{Body: &tangramv1.FrontRequest_Submit{Submit: submit}}))
		synctest.Wait()
		require.NoError(t, x.session.CloseSend())
		require.Equal(t, "r", <-e.canceled)
	})
}

// A token carries its log probabilities.
func TestFront_WhenLogprobsAreRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &tangramv1.Logprobs{Tokens: []uint32{'a', 'b'}, Values: []float32{-0.25, -2}, Rank: 1}
		e := &engine{can: []string{"logprobs"}, on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
			reply := token(s, 0, 'a', tangramv1.Finish_FINISH_STOP)
			reply.GetToken().Logprobs = told
			send(reply)
		}}
		x, _, _ := withText(t, e)
		pieces := make(chan *tangramv1.Piece, 4)
		x.mu.Lock()
		x.open["r"] = pieces
		x.mu.Unlock()
		submit := &tangramv1.Submit{Request: "r", Prompt: []uint32{1}, MaxTokens: 4, TopP: 1, Logprobs: proto.Uint32(1)}
		require.NoError(t, x.session.Send(&tangramv1.FrontRequest{Body: &tangramv1.FrontRequest_Submit{Submit: submit}}))
		piece := <-pieces
		require.Len(t, piece.Logprobs, 1)
		require.True(t, proto.Equal(told, piece.Logprobs[0]), piece)
	})
}

// The marker of the last event may arrive in two pieces, and an answer may quote it.
func TestStreamEnding_WhenMarkerIsSplit(t *testing.T) {
	for text, whole := range map[string]bool{"data: a\n\ndata: [DONE]\n\n": true, "data: [DONE]\n\n": true, "data: a\n\n": false, "": false, "data: [DON": false,
		`data: {"content":"data: [DONE]"}` + "\n\n": false} {
		for size := 1; size <= max(1, len(text)); size++ {
			got, err := io.ReadAll(&ending{from: &pieces{text, size}, path: doorPaths[pathChat], why: func() error { return nil }})
			require.NoError(t, err)
			require.Equal(t, whole, string(got) == text, "%q in pieces of %d: %q", text, size, got)
			require.True(t, strings.HasPrefix(string(got), text))
		}
	}
}

type pieces struct {
	text string
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.size)], p.text)
	p.text = p.text[n:]
	return n, nil
}
