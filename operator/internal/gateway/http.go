package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Handler serves the clients' HTTP API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathCompletions, s.completions)
	for _, path := range textPaths() {
		mux.HandleFunc("POST "+path, s.text)
	}
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		s.reply(w, http.StatusOK, map[string]any{"object": "list", "data": []any{s.modelObject()}})
	})
	mux.HandleFunc("GET /v1/models/{id...}", func(w http.ResponseWriter, r *http.Request) { // ids may have slashes
		if id := r.PathValue("id"); id != s.model {
			code, body := explain(&modelError{id, s.model})
			s.reply(w, code, errorOf(code, body))
			return
		}
		s.reply(w, http.StatusOK, s.modelObject())
	})
	mux.HandleFunc("GET /healthz", s.ready) // for load balancers outside of the cluster
	mux.HandleFunc("/", s.elsewhere)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		mux.ServeHTTP(w, r)
	})
}

// elsewhere answers all other requests: unknown paths, and known paths with a wrong method.
func (s *Server) elsewhere(w http.ResponseWriter, r *http.Request) {
	method := ""
	switch path := r.URL.Path; {
	case path == pathCompletions || slices.Contains(textPaths(), path):
		method = http.MethodPost
	case path == "/v1/models" || strings.HasPrefix(path, "/v1/models/"):
		method = http.MethodGet
	}
	code := http.StatusNotFound
	message := fmt.Sprintf("%s %s is not supported; send POST %s, POST %s or GET /v1/models", r.Method, r.URL.Path, pathCompletions, strings.Join(textPaths(), ", POST "))
	if method != "" {
		code, message = http.StatusMethodNotAllowed, fmt.Sprintf("%s does not support %s; send %s", r.URL.Path, r.Method, method)
		w.Header().Set("Allow", method)
	}
	s.reply(w, code, formOf(r.URL.Path).body(code, apiError{Type: "invalid_request_error", Message: message}))
}

func (s *Server) modelObject() map[string]any {
	return map[string]any{"id": s.model, "object": "model", "created": s.began.Unix(), "owned_by": "tangram"}
}

func (s *Server) reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	s.hurry(w)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client disconnected
}

// hurry limits the time in which the client must read the next write.
func (s *Server) hurry(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.limits.Write)) // else it waits forever
}

type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// statusClientLeft is nginx's status: the client closed the connection before it was answered.
const statusClientLeft = 499

// explain converts an error to OpenAI's form.
func explain(err error) (int, apiError) {
	var field *fieldError
	var large *tooLargeError
	var model *modelError
	switch {
	case errors.As(err, &model):
		code, param := "model_not_found", "model"
		return http.StatusNotFound, apiError{Message: err.Error(), Type: "invalid_request_error", Param: &param, Code: &code}
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, apiError{Message: err.Error(), Type: "invalid_request_error"}
	case errors.Is(err, errSlow):
		return http.StatusRequestTimeout, apiError{Message: err.Error(), Type: "invalid_request_error"}
	case errors.Is(err, context.Canceled): // no client reads it; the status is for the metrics
		return statusClientLeft, apiError{Message: err.Error(), Type: "invalid_request_error"}
	case errors.As(err, &field):
		return http.StatusBadRequest, apiError{Message: err.Error(), Type: "invalid_request_error", Param: &field.field}
	case errors.Is(err, ErrInvalid):
		return http.StatusBadRequest, apiError{Message: err.Error(), Type: "invalid_request_error"}
	case errors.Is(err, ErrBusy):
		return http.StatusTooManyRequests, apiError{Message: err.Error() + "; try again later", Type: "rate_limit_error"}
	case errors.Is(err, ErrNotReady), errors.Is(err, errCrowded), errors.Is(err, errFull), errors.Is(err, errText):
		return http.StatusServiceUnavailable, apiError{Message: err.Error() + "; try again later", Type: "server_error"}
	}
	return http.StatusInternalServerError, apiError{Message: err.Error(), Type: "server_error"}
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	code, body := explain(err)
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	s.count(code)
	s.reply(w, code, formOf(r.URL.Path).body(code, body))
}

func (s *Server) count(code int) { s.metrics.requests.WithLabelValues(strconv.Itoa(code)).Inc() }

// text serves a path that needs a tokenizer.
func (s *Server) text(w http.ResponseWriter, r *http.Request) {
	if s.door == nil {
		s.textIsMissing(w, r)
		return
	}
	body, free, err := s.read(w, r)
	defer free()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.door.relay(w, r, body)
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	body, free, err := s.read(w, r)
	defer func() { free() }()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if s.door != nil && isText(body) {
		s.door.relay(w, r, body)
		return
	}
	request, err := parse(body)
	if err == nil && request.Model != "" && request.Model != s.model {
		err = &modelError{request.Model, s.model}
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	world, err := s.pool.AwaitWorld(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	submit, err := request.submit(world, s.bytesAreTokens(world))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	a := &answer{s: s, w: w, r: r, stream: request.Stream, usage: request.usage(),
		hashes: request.ReturnLogitHash, hasText: s.bytesAreTokens(world), prompt: len(submit.Prompt),
		head: completion{ID: "cmpl-" + submit.Request, Object: "text_completion", Created: time.Now().Unix(), Model: s.model}}
	bytes := a.holds(submit)
	if !s.answers.TryAcquire(bytes) {
		s.fail(w, r, errFull)
		return
	}
	defer s.answers.Release(bytes)
	free() // the answer has copies; the body is no longer needed
	free = func() {}
	a.finish(s.pool.Run(r.Context(), submit, a.token, s.limits.Quiet, a.quiet))
}

// usageWanted selects the chunks of a stream that have token counts.
type usageWanted int

const (
	usageNever usageWanted = iota
	usageLast              // one extra chunk at the end
	usageAlways
)

func (r *completionRequest) usage() usageWanted {
	switch o := r.StreamOptions; {
	case o == nil || !o.IncludeUsage:
		return usageNever
	case o.ContinuousUsage:
		return usageAlways
	}
	return usageLast
}

// answer is the answer that is being written to one client.
type answer struct {
	s       *Server
	w       http.ResponseWriter
	r       *http.Request
	stream  bool // a chunk per token
	usage   usageWanted
	hashes  bool // of the logits, per token
	head    completion
	prompt  int
	hasText bool // tokens are bytes of text; otherwise the answer's text is empty
	tokens  int  // delivered

	bytes     []byte // streaming: an incomplete rune; otherwise the whole text
	ids       []uint32
	info      []tokenInfo
	reason    *string
	streaming bool
}

func (a *answer) token(t *tangramv1.Token) error {
	a.tokens++
	if a.hasText {
		a.bytes = append(a.bytes, byte(t.Token))
	}
	a.ids = append(a.ids, t.Token)
	a.reason = finishReason(t.Finish)
	if a.hashes {
		a.info = append(a.info, tokenInfo{LogitHash: fmt.Sprintf("%016x", t.LogitHash), Position: t.Position, Rank: t.Owner})
	}
	if !a.stream {
		return nil
	}
	text := a.runes(a.reason != nil)
	chunk := a.head
	chunk.Choices = []choice{{Text: text, FinishReason: a.reason, TokenIDs: a.ids, Tangram: a.info}}
	switch a.usage {
	case usageNever:
	case usageLast:
		chunk.Usage = notYet
	case usageAlways:
		chunk.Usage = a.total()
	}
	a.ids, a.info = nil, nil
	return a.event(chunk)
}

// runes returns the complete runes. A partial one stays for the next token, unless this is the end.
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

// quiet sends a comment when no token came for a while: proxies close connections that seem dead.
func (a *answer) quiet() error {
	if !a.stream {
		return nil
	}
	return a.send(": keep-alive\n\n")
}

func (a *answer) event(body any) error {
	wire, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return a.send("data: " + string(wire) + "\n\n")
}

// send writes a piece of the stream.
func (a *answer) send(text string) error {
	a.s.hurry(a.w)
	if !a.streaming {
		a.streaming = true
		a.w.Header().Set("Content-Type", "text/event-stream")
		a.w.Header().Set("Cache-Control", "no-cache")
		a.w.Header().Set("X-Accel-Buffering", "no") // nginx then forwards without buffering
		a.w.WriteHeader(http.StatusOK)
	}
	if _, err := io.WriteString(a.w, text); err != nil {
		return err
	}
	return http.NewResponseController(a.w).Flush()
}

func (a *answer) total() *usage {
	return &usage{PromptTokens: a.prompt, CompletionTokens: a.tokens, TotalTokens: a.prompt + a.tokens}
}

func (a *answer) finish(err error) {
	switch {
	case err != nil && !a.streaming:
		a.s.fail(a.w, a.r, err)
	case err != nil: // too late for an HTTP status: send an error event
		code, body := explain(err)
		a.s.count(code)
		_ = a.event(errorOf(code, body))
	case a.stream:
		if a.usage != usageNever {
			last := a.head
			last.Choices, last.Usage = []choice{}, a.total()
			_ = a.event(last)
		}
		_ = a.send("data: [DONE]\n\n")
		a.s.count(http.StatusOK)
	default:
		a.head.Choices = []choice{{Text: string(a.bytes), FinishReason: a.reason, TokenIDs: a.ids, Tangram: a.info}}
		a.head.Usage = a.total()
		a.s.count(http.StatusOK)
		a.s.reply(a.w, http.StatusOK, a.head)
	}
}
