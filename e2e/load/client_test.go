package load

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const wait = 4 * time.Minute // only a hang reaches this limit

func gateway(t *testing.T, answer http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return &Client{URL: s.URL, Model: "m", HTTP: s.Client()}
}

const (
	tokenLine  = `data: {"choices":[{"finish_reason":null,"token_ids":[7],"tangram":[{"logit_hash":"aa"}]}]}` + "\n\n"
	finishLine = `data: {"choices":[{"finish_reason":"length","token_ids":[8],"tangram":[{"logit_hash":"bb"}]}]}` + "\n\n"
	doneLine   = "data: [DONE]\n\n"
)

func TestStreamIsRead(t *testing.T) {
	var calls atomic.Int64
	var body map[string]any
	c := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		_, _ = fmt.Fprint(w, tokenLine, finishLine, doneLine)
	})
	c.Counters = &Counters{}
	r := c.Do(t.Context(), Request{Prompt: []uint32{1, 2}, MaxTokens: 2, TopP: 1, Seed: 9})
	require.NoError(t, r.Err)
	require.Equal(t, Counts{Done: 1, Tokens: 2}, c.Counters.Now())
	require.EqualValues(t, 2, calls.Load(), "503 must be tried again")
	require.Equal(t, "length", r.Finish)
	require.Len(t, r.Tokens, 2)
	require.Equal(t, []any{uint32(7), "aa", uint32(8), "bb"}, []any{r.Tokens[0].ID, r.Tokens[0].Hash, r.Tokens[1].ID, r.Tokens[1].Hash})
	require.Equal(t, true, body["return_logit_hash"])
	require.Equal(t, []any{1.0, 2.0}, body["prompt"])
}

// A chat has text and tokens, in chunks of different sizes.
func TestChatIsRead(t *testing.T) {
	var path string
	var body map[string]any
	counters := &Counters{}
	begun := make(chan Counts, 1)
	c := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		_ = json.NewDecoder(r.Body).Decode(&body)
		_, _ = fmt.Fprint(w, `data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`+"\n\n"+
			`data: {"choices":[{"delta":{"content":"He"},"finish_reason":null,"token_ids":[7,9]}]}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		for counters.Now().Tokens < 2 { // until the client has received them
			time.Sleep(time.Millisecond)
		}
		begun <- counters.Now()
		_, _ = fmt.Fprint(w, `data: {"choices":[{"delta":{"content":"y"},"finish_reason":"length","token_ids":[8]}]}`+"\n\n"+doneLine)
	})
	c.Counters = counters
	r := c.Do(t.Context(), Request{Chat: "hi", MaxTokens: 3, TopP: 1})
	require.NoError(t, r.Err)
	require.Equal(t, "/v1/chat/completions", path)
	require.Equal(t, []any{map[string]any{"role": "user", "content": "hi"}}, body["messages"])
	require.NotContains(t, body, "prompt")
	require.Equal(t, "Hey", r.Text)
	require.Len(t, r.Tokens, 3)
	require.Equal(t, Counts{Open: 1, Streaming: 1, Tokens: 2}, <-begun)
	require.Equal(t, Counts{Done: 1, Tokens: 3}, counters.Now())
}

// An incomplete answer counts as lost.
func TestBrokenStreams(t *testing.T) {
	for want, text := range map[string]string{
		"the stream broke off":           tokenLine,
		"without a finish reason":        tokenLine + doneLine,
		"gone":                           tokenLine + `data: {"error":{"message":"gone"}}` + "\n\n",
		"1 tokens and 0 hashes":          `data: {"choices":[{"token_ids":[7]}]}` + "\n\n",
		"invalid character":              "data: {x\n\n",
		"HTTP 400: no":                   "",
		"HTTP 500: the request was lost": "",
	} {
		t.Run(want, func(t *testing.T) {
			c := gateway(t, func(w http.ResponseWriter, _ *http.Request) {
				switch want {
				case "HTTP 400: no":
					http.Error(w, "no", http.StatusBadRequest)
				case "HTTP 500: the request was lost":
					http.Error(w, "the request was lost", http.StatusInternalServerError)
				default:
					_, _ = fmt.Fprint(w, text)
				}
			})
			require.ErrorContains(t, c.Do(t.Context(), Request{}).Err, want)
		})
	}
}

func TestPlayAndRepeatKeepOrderAndLimit(t *testing.T) {
	const limit = 3
	var now, most atomic.Int64
	full := make(chan struct{}) // closed when the maximum number of requests is in progress
	c := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == limit {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		select {
		case <-full:
		case <-r.Context().Done():
			return
		}
		_, _ = fmt.Fprint(w, finishLine, doneLine)
	})
	trace := newTrace(t, 1)
	trace.span = time.Millisecond // all together
	stop := make(chan struct{})
	played := make(chan []*Result)
	go func() { played <- c.Play(t.Context(), trace, limit, stop) }()
	select {
	case <-full:
	case <-time.After(wait):
		t.Fatalf("%d requests under way, not %d", most.Load(), limit)
	}
	close(stop)
	for _, results := range [][]*Result{<-played, c.Repeat(t.Context(), trace, 20, limit)} {
		require.NotEmpty(t, results)
		for i, r := range results {
			require.NoError(t, r.Err)
			require.Equal(t, i, r.Request.Index)
		}
	}
	require.EqualValues(t, limit, most.Load())
}

// A request that is always rejected is finally lost, and every rejection is counted.
func TestRejectionsAreCountedAndBounded(t *testing.T) {
	var calls atomic.Int64
	c := gateway(t, func(w http.ResponseWriter, _ *http.Request) {
		status := http.StatusTooManyRequests
		if calls.Add(1) == 2 {
			status = http.StatusServiceUnavailable
		}
		http.Error(w, "later", status)
	})
	c.Patience = time.Millisecond
	for calls.Load() < 2 { // the first is rejected immediately, or waited for
		r := c.Do(t.Context(), Request{Prompt: []uint32{1}, MaxTokens: 1})
		require.ErrorContains(t, r.Err, "refused")
		require.NotEmpty(t, r.Refused)
	}
	accepted := gateway(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) <= 4 {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, tokenLine, finishLine, doneLine)
	})
	calls.Store(3)
	r := accepted.Do(t.Context(), Request{Prompt: []uint32{1}, MaxTokens: 2})
	require.NoError(t, r.Err)
	require.Len(t, r.Refused, 1)
	require.Equal(t, http.StatusServiceUnavailable, r.Refused[0].Status)
}
