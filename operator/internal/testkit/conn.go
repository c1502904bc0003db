package testkit

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const bufferBytes = 64 << 10 // capacity of a stream

// stream is one direction of a connection.
type stream struct {
	mu          sync.Mutex
	changed     *sync.Cond
	bytes       []byte
	ended       bool // the writer has closed
	gone        bool // the reader has closed
	read, write limit
}

// limit is the deadline of a call.
type limit struct {
	at    time.Time // zero: never
	timer *time.Timer
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// set sets a deadline. Only the clock decides whether it has passed; the timer just wakes the callers, so a late one
// does no harm.
func (s *stream) set(l *limit, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.at = at; !at.IsZero() {
		l.timer = time.AfterFunc(time.Until(at), s.wake)
	}
	s.changed.Broadcast()
}

func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

func (l *limit) over() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

func (s *stream) get(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.gone:
			return 0, net.ErrClosed
		case s.read.over():
			return 0, os.ErrDeadlineExceeded
		case len(s.bytes) > 0:
			n := copy(b, s.bytes)
			s.bytes = s.bytes[n:]
			s.changed.Broadcast()
			return n, nil
		case s.ended:
			return 0, io.EOF
		case len(b) == 0:
			return 0, nil
		}
		s.changed.Wait()
	}
}

func (s *stream) put(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.ended:
			return n, net.ErrClosed
		case s.gone:
			return n, syscall.EPIPE
		case s.write.over():
			return n, os.ErrDeadlineExceeded
		case len(b) == 0:
			return n, nil
		}
		if fit := min(len(b), bufferBytes-len(s.bytes)); fit > 0 {
			s.bytes = append(s.bytes, b[:fit]...)
			b, n = b[fit:], n+fit
			s.changed.Broadcast()
			continue
		}
		s.changed.Wait()
	}
}

// end closes the stream for its writer or its reader.
func (s *stream) end(which *bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*which = true
	for _, l := range []*limit{&s.read, &s.write} {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	s.changed.Broadcast()
}

// conn is one end of a connection; both ends return the listener's address.
type conn struct {
	in, out *stream
	address address
}

func (c *conn) Read(b []byte) (int, error)  { return c.in.get(b) }
func (c *conn) Write(b []byte) (int, error) { return c.out.put(b) }
func (c *conn) LocalAddr() net.Addr         { return c.address }
func (c *conn) RemoteAddr() net.Addr        { return c.address }

func (c *conn) SetReadDeadline(at time.Time) error {
	c.in.set(&c.in.read, at)
	return nil
}

func (c *conn) SetWriteDeadline(at time.Time) error {
	c.out.set(&c.out.write, at)
	return nil
}

func (c *conn) SetDeadline(at time.Time) error {
	return errors.Join(c.SetReadDeadline(at), c.SetWriteDeadline(at))
}

// CloseWrite closes the sending direction; this end can still read.
func (c *conn) CloseWrite() error {
	c.out.end(&c.out.ended)
	return nil
}

func (c *conn) Close() error {
	c.in.end(&c.in.gone)
	return c.CloseWrite()
}
