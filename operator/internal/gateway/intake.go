package gateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sync/semaphore"
)

// errCrowded: what clients send now is more than this gateway may hold.
var errCrowded = errors.New("this gateway holds as many bytes of requests as it may")

// errFull: the requests under way hold as much as they may.
var errFull = errors.New("the requests under way hold all the memory that this gateway gives them")

// errSlow: the body did not come in time.
var errSlow = errors.New("the body did not come in time")

// tooLargeError of a body.
type tooLargeError struct{ most int64 }

func (e *tooLargeError) Error() string { return fmt.Sprintf("the body has more than %d bytes", e.most) }

// metered counts what is read against the room that all bodies share. What is promised and does
// not come takes no room.
type metered struct {
	from io.Reader
	room *semaphore.Weighted
	held int64
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.from.Read(p)
	if n > 0 && !m.room.TryAcquire(int64(n)) {
		return 0, errCrowded
	}
	m.held += int64(n)
	return n, err
}

func (m *metered) free() { m.room.Release(m.held) }

// take reads and parses a request. The body's room is held until free is called, which is to be
// when nothing of the body is needed any more.
func (s *Server) take(w http.ResponseWriter, r *http.Request) (request *completionRequest, free func(), err error) {
	// For a refusal before the end of the body: without this header net/http waits for the rest of the body before it answers.
	unread := func() { w.Header().Set("Connection", "close") }
	if r.ContentLength > s.limits.Body {
		unread()
		return nil, func() {}, &tooLargeError{s.limits.Body}
	}
	m := &metered{from: http.MaxBytesReader(w, r.Body, s.limits.Body), room: s.room}
	body, err := io.ReadAll(m)
	var large *http.MaxBytesError
	switch {
	case err == nil:
	case errors.As(err, &large):
		return nil, m.free, &tooLargeError{s.limits.Body}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, m.free, fmt.Errorf("%w: %v", errSlow, s.limits.Read)
	case errors.Is(err, errCrowded):
		unread()
		return nil, m.free, err
	default:
		return nil, m.free, bad("body", "cannot be read: %v", err)
	}
	request, err = parse(body)
	return request, m.free, err
}

// understood are the names of all fields of completionRequest.
var understood = func() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[completionRequest]()) {
		if !f.Anonymous {
			names = append(names, f.Tag.Get("json"))
		}
	}
	return names
}()

// parse refuses what it does not know: a field that is ignored would be a promise that is not kept.
func parse(body []byte) (*completionRequest, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, bad("body", "is not a JSON object: %v", err)
	}
	var unknown []string
	for name := range fields {
		if !slices.Contains(understood, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, &fieldError{cmp.Or(short(unknown[0]), "body"), "Unrecognized request argument supplied: " + strings.Join(unknown, ", ")}
	}
	request := &completionRequest{}
	var kind *json.UnmarshalTypeError
	if err := json.Unmarshal(body, request); errors.As(err, &kind) {
		return nil, bad(kind.Field, "is a %s, want %s", kind.Value, kind.Type)
	} else if err != nil {
		return nil, bad("body", "is not JSON: %v", err)
	}
	return request, nil
}
