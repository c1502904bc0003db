package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// errText: the text server cannot be reached, or its stream broke.
var errText = errors.New("the text server of this gateway is unresponsive")

// door forwards requests that need a tokenizer to the text server's UNIX socket. doorPaths has the allowed fields.
type door struct {
	s     *Server
	proxy *httputil.ReverseProxy
}

// doors has the requests at the text server by id, each with the error of its tokens, if any.
type doors struct {
	mu  sync.Mutex
	why map[string]error
}

func (d *doors) open() string {
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why[id] = nil
	return id
}

func (d *doors) close(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.why, id)
}

// failed records why a text server's request failed. vLLM's ids contain the door's id between dashes or underscores.
func (d *doors) failed(request string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for part := range strings.FieldsFuncSeq(request, func(r rune) bool { return r == '-' || r == '_' }) {
		if was, there := d.why[part]; there && was == nil {
			d.why[part] = err
		}
	}
}

func (d *doors) reason(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.why[id]
}

func newDoor(s *Server, dial func(context.Context) (net.Conn, error)) *door {
	d := &door{s: s}
	transport := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute,
	}
	d.proxy = &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "text", "text"
			p.Out.URL.RawQuery = ""
			p.Out.Header = http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {doorID(p.In.Context())}}
		},
		ModifyResponse: d.answer,
		ErrorHandler:   d.fail,
	}
	return d
}

// renders requests the tokens of the shortest chat. If the model has no chat template, it requests those of a text.
func (d *door) renders(ctx context.Context) error {
	for _, body := range []string{`{"messages":[{"role":"user","content":"."}]}`, `{"prompt":"."}`} {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://text"+pathTokenize, strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		reply, err := d.proxy.Transport.RoundTrip(r)
		if err != nil {
			return err
		}
		_ = reply.Body.Close()
		if reply.StatusCode == http.StatusOK {
			return nil
		}
		if reply.StatusCode >= 500 {
			return fmt.Errorf("the text server returned %s for %s", reply.Status, pathTokenize)
		}
	}
	return errText
}

type doorKey struct{}

func doorID(ctx context.Context) string { id, _ := ctx.Value(doorKey{}).(string); return id }

// relay forwards a request whose body was read.
func (d *door) relay(w http.ResponseWriter, r *http.Request, body []byte) {
	id := d.s.doors.open()
	defer d.s.doors.close(id)
	fields, err := topFields(body)
	if err == nil {
		body, err = doorPaths[r.URL.Path].check(fields, d.s.model, "resp_"+id)
	}
	if err != nil {
		d.s.fail(w, r, err)
		return
	}
	if !d.s.pool.Ready() {
		if _, err := d.s.pool.AwaitWorld(r.Context()); err != nil {
			d.s.fail(w, r, err)
			return
		}
	}
	out := r.WithContext(context.WithValue(r.Context(), doorKey{}, id))
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	d.proxy.ServeHTTP(&hurried{ResponseWriter: w, s: d.s}, out)
}

// refusal replaces a response of the text server by an error.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }

// answer reads the start of a response before any of it is sent. If the ranks failed, the client gets that error and
// its status instead.
func (d *door) answer(r *http.Response) error {
	id := doorID(r.Request.Context())
	stream := strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream")
	first := make([]byte, 4096)
	n, err := r.Body.Read(first)
	if why := d.s.doors.reason(id); why != nil {
		return &refusal{why}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	d.s.count(r.StatusCode)
	head := http.Header{"Content-Type": r.Header["Content-Type"]}
	if length := r.Header.Get("Content-Length"); length != "" {
		head.Set("Content-Length", length)
	}
	rest := io.MultiReader(bytes.NewReader(first[:n]), r.Body)
	if stream {
		head.Set("Cache-Control", "no-cache")
		head.Set("X-Accel-Buffering", "no")
		rest = &ending{from: rest, path: doorPaths[r.Request.URL.Path], why: func() error { return d.s.doors.reason(id) }}
	}
	r.Header = head
	r.Body = struct {
		io.Reader
		io.Closer
	}{rest, r.Body}
	return nil
}

func (d *door) fail(w http.ResponseWriter, r *http.Request, err error) {
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		d.s.fail(w, r, refused.err)
	case r.Context().Err() != nil:
		d.s.fail(w, r, context.Canceled)
	default:
		d.s.log.Warn("text server request failed", "error", err)
		d.s.fail(w, r, errText)
	}
}

// ending is an event stream that never ends silently: if the last event is missing, it appends an error event.
type ending struct {
	from io.Reader
	path doorPath
	why  func() error // the ranks' error; nil: the text server failed
	tail []byte
	done bool
	more *strings.Reader // the error event
}

func (e *ending) Read(p []byte) (int, error) {
	if e.more != nil {
		return e.more.Read(p)
	}
	n, err := e.from.Read(p)
	if e.tail == nil {
		e.tail = []byte("\n")
	}
	e.tail = append(e.tail, p[:n]...)
	e.done = e.done || bytes.Contains(e.tail, []byte(e.path.last))
	e.tail = e.tail[max(0, len(e.tail)-len(e.path.last)):]
	if err == nil || e.done {
		return n, err
	}
	why := e.why()
	if why == nil {
		why = errText
	}
	e.more = strings.NewReader("\n\n" + e.path.form.inStream(explain(why)))
	return n, nil
}

// hurried sets a write deadline for each piece of a response.
type hurried struct {
	http.ResponseWriter
	s *Server
}

func (h *hurried) Write(p []byte) (int, error) {
	h.s.hurry(h.ResponseWriter)
	return h.ResponseWriter.Write(p)
}

func (h *hurried) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// topFields parses a body. A null counts as absent.
func topFields(body []byte) (map[string]json.RawMessage, error) {
	if err := wholeText(body); err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, bad("body", "is not a JSON object: %v", err)
	} else if fields == nil {
		return nil, bad("body", "is not a JSON object: it is null")
	}
	maps.DeleteFunc(fields, func(_ string, raw json.RawMessage) bool { return isNull(raw) })
	return fields, nil
}

// isText: the prompt needs a tokenizer.
func isText(body []byte) bool {
	fields, err := topFields(body)
	if err != nil {
		return false
	}
	prompt := bytes.TrimLeft(bytes.TrimPrefix(bytes.TrimLeft(fields["prompt"], " \t\r\n"), []byte("[")), " \t\r\n")
	return len(prompt) > 0 && prompt[0] == '"'
}

// textIsMissing explains how to enable the text server.
func (s *Server) textIsMissing(w http.ResponseWriter, r *http.Request) {
	s.count(http.StatusNotFound)
	s.reply(w, http.StatusNotFound, formOf(r.URL.Path).body(http.StatusNotFound, apiError{Type: "invalid_request_error",
		Message: fmt.Sprintf("%s needs a tokenizer, but this gateway has none; set spec.gateway.text of the MoEDeployment or send token ids to %s", r.URL.Path, pathCompletions)}))
}
