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
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"
)

// errCrowded: the request bodies would exceed this gateway's limit.
var errCrowded = errors.New("this gateway holds the maximum of bytes of request bodies")

// errFull: the running requests hold all the memory that they may.
var errFull = errors.New("the running requests use all memory that this gateway has for them")

// errSlow: the body did not arrive in time.
var errSlow = errors.New("the body did not arrive in time")

// tooLargeError is a 413 for a body.
type tooLargeError struct{ most int64 }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("the body has more than %d bytes; send a smaller request", e.most)
}

// metered counts the bytes read against the budget of all bodies. Announced bytes that never arrive take none of it.
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

// read reads the body of a request. Its bytes count until free is called; call free once the body is no longer needed.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (body []byte, free func(), err error) {
	// Before a rejection: without this header net/http reads the rest of the body before it answers.
	unread := func() { w.Header().Set("Connection", "close") }
	if r.ContentLength > s.limits.Body {
		unread()
		return nil, func() {}, &tooLargeError{s.limits.Body}
	}
	m := &metered{from: http.MaxBytesReader(w, r.Body, s.limits.Body), room: s.room}
	body, err = io.ReadAll(m)
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
	return body, m.free, nil
}

// understood has the names of all fields of completionRequest.
var understood = func() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[completionRequest]()) {
		if !f.Anonymous {
			names = append(names, f.Tag.Get("json"))
		}
	}
	return names
}()

// parse rejects unknown fields: to ignore a field would break a promise to the client.
func parse(body []byte) (*completionRequest, error) {
	fields, err := topFields(body)
	if err != nil {
		return nil, err
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
		return nil, bad(kind.Field, "has type %s; send type %s", kind.Value, kind.Type)
	} else if err != nil {
		return nil, bad("body", "is not valid JSON: %v", err)
	}
	if raw, there := fields["stream_options"]; there {
		if wrong := options("include_usage", "continuous_usage_stats")(raw); wrong != "" {
			return nil, bad("stream_options", "%s", wrong)
		}
	}
	return request, nil
}

// wholeText rejects invalid text. encoding/json would replace invalid UTF-8 and unpaired surrogates by U+FFFD, which
// changes the prompt.
func wholeText(body []byte) error {
	if !utf8.Valid(body) {
		return bad("body", "is not valid UTF-8; send UTF-8 text")
	}
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		first, size := escaped(body[i:])
		i += size - 1
		if !utf16.IsSurrogate(first) {
			continue
		}
		second, size := escaped(body[i+1:])
		if utf16.DecodeRune(first, second) == utf8.RuneError {
			return bad("body", "has the unpaired surrogate \\u%04x; send complete surrogate pairs", first)
		}
		i += size
	}
	return nil
}

// escaped reads one JSON escape. It returns the rune of a \uXXXX escape, else 0, and the size in bytes.
func escaped(text []byte) (r rune, size int) {
	if len(text) >= 6 && text[0] == '\\' && text[1] == 'u' {
		if n, err := strconv.ParseUint(string(text[2:6]), 16, 16); err == nil {
			return rune(n), 6
		}
	}
	return 0, 2
}
