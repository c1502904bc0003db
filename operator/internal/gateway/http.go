package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// maxBody of a request, bytes.
const maxBody = 16 << 20

// Server of the HTTP side.
type Server struct {
	Pool     *Pool
	Model    string
	Gatherer prometheus.Gatherer
}

// Handler of all paths.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		s.reply(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": s.Model, "object": "model", "owned_by": "tangram"}}})
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.Pool.Ready() {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "no rank accepts requests", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Gatherer, promhttp.HandlerOpts{}))
	return mux
}

func (s *Server) reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // a client that left
}

type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// explain turns an error into OpenAI's form.
func explain(err error) (int, apiError) {
	var field *fieldError
	switch {
	case errors.As(err, &field):
		return http.StatusBadRequest, apiError{Message: err.Error(), Type: "invalid_request_error", Param: &field.field}
	case errors.Is(err, ErrInvalid):
		return http.StatusBadRequest, apiError{Message: err.Error(), Type: "invalid_request_error"}
	case errors.Is(err, ErrBusy):
		return http.StatusTooManyRequests, apiError{Message: err.Error() + "; try again later", Type: "rate_limit_error"}
	case errors.Is(err, ErrNotReady):
		return http.StatusServiceUnavailable, apiError{Message: err.Error() + "; try again later", Type: "server_error"}
	}
	return http.StatusInternalServerError, apiError{Message: err.Error(), Type: "server_error"}
}

func (s *Server) fail(w http.ResponseWriter, err error) {
	code, body := explain(err)
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	s.count(code)
	s.reply(w, code, map[string]any{"error": body})
}

func (s *Server) count(code int) { s.Pool.o.Metrics.requests.WithLabelValues(strconv.Itoa(code)).Inc() }

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	var request completionRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&request); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			s.fail(w, bad(kind.Field, "is a %s, want %s", kind.Value, kind.Type))
		} else {
			s.fail(w, bad("body", "is not JSON: %v", err))
		}
		return
	}
	if request.Model != "" && request.Model != s.Model {
		s.count(http.StatusNotFound)
		code, param := "model_not_found", "model"
		s.reply(w, http.StatusNotFound, map[string]any{"error": apiError{Message: fmt.Sprintf("model %q is not here, only %q", request.Model, s.Model),
			Type: "invalid_request_error", Param: &param, Code: &code}})
		return
	}
	world := s.Pool.World()
	if world == nil || world.MaxTokens == 0 {
		s.fail(w, ErrNotReady)
		return
	}
	submit, err := request.submit(world)
	if err != nil {
		s.fail(w, err)
		return
	}
	a := &answer{s: s, w: w, request: &request, last: time.Now(), head: completion{ID: "cmpl-" + submit.Request,
		Object: "text_completion", Created: time.Now().Unix(), Model: s.Model}, prompt: len(submit.Prompt)}
	a.finish(s.Pool.Run(r.Context(), submit, a.token))
}

// answer being written to one client.
type answer struct {
	s       *Server
	w       http.ResponseWriter
	request *completionRequest
	head    completion
	prompt  int
	last    time.Time // of the request, then of the token before

	bytes     []byte // not yet whole runes when streaming; everything when not
	ids       []uint32
	info      []tokenInfo
	reason    *string
	streaming bool
	tokens    int
}

func (a *answer) token(t *tangramv1.Token) error {
	now := time.Now()
	if a.tokens == 0 {
		a.s.Pool.o.Metrics.firstToken.Observe(now.Sub(a.last).Seconds())
	} else {
		a.s.Pool.o.Metrics.betweenTokens.Observe(now.Sub(a.last).Seconds())
	}
	a.last = now
	a.tokens++
	a.bytes = append(a.bytes, byte(t.Token))
	a.ids = append(a.ids, t.Token)
	a.reason = finishReason(t.Finish)
	if a.request.ReturnLogitHash {
		a.info = append(a.info, tokenInfo{LogitHash: fmt.Sprintf("%016x", t.LogitHash), Position: t.Position, Rank: t.Owner})
	}
	if !a.request.Stream {
		return nil
	}
	text := a.runes(a.reason != nil)
	chunk := a.head
	chunk.Choices = []choice{{Text: text, FinishReason: a.reason, TokenIDs: a.ids, Tangram: a.info}}
	a.ids, a.info = nil, nil
	return a.event(chunk)
}

// runes takes the whole runes; a cut one stays for the next token, unless it is the end.
func (a *answer) runes(end bool) string {
	n := 0
	for n < len(a.bytes) && (end || utf8.FullRune(a.bytes[n:])) {
		_, size := utf8.DecodeRune(a.bytes[n:])
		n += size
	}
	text := string(a.bytes[:n])
	a.bytes = append([]byte(nil), a.bytes[n:]...)
	return text
}

func (a *answer) event(body any) error {
	if !a.streaming {
		a.streaming = true
		a.w.Header().Set("Content-Type", "text/event-stream")
		a.w.Header().Set("Cache-Control", "no-cache")
		a.w.WriteHeader(http.StatusOK)
	}
	wire, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(a.w, "data: %s\n\n", wire); err != nil {
		return err
	}
	return http.NewResponseController(a.w).Flush()
}

func (a *answer) finish(err error) {
	total := &usage{PromptTokens: a.prompt, CompletionTokens: a.tokens, TotalTokens: a.prompt + a.tokens}
	switch {
	case err != nil && !a.streaming:
		a.s.fail(a.w, err)
	case err != nil: // too late for a status: an event says so
		code, body := explain(err)
		a.s.count(code)
		_ = a.event(map[string]any{"error": body})
	case a.request.Stream:
		if a.request.StreamOptions != nil && a.request.StreamOptions.IncludeUsage {
			last := a.head
			last.Choices, last.Usage = []choice{}, total
			_ = a.event(last)
		}
		_, _ = fmt.Fprint(a.w, "data: [DONE]\n\n")
		a.s.count(http.StatusOK)
	default:
		a.head.Choices = []choice{{Text: string(a.bytes), FinishReason: a.reason, TokenIDs: a.ids, Tangram: a.info}}
		a.head.Usage = total
		a.s.count(http.StatusOK)
		a.s.reply(a.w, http.StatusOK, a.head)
	}
}
