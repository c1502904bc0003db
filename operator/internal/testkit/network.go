// Package testkit has what tests of several packages share: an in-memory network, for tests in a bubble of
// testing/synctest, and the seed of randomized tests. Only tests import it.
package testkit

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
)

const backlog = 128 // connections that wait to be accepted

// network has all in-memory listeners by address. Its own state belongs to no bubble.
var network = struct {
	mu        sync.Mutex
	last      int
	listeners map[string]*listener
}{listeners: map[string]*listener{}}

// listener queues connections until they are accepted, as a kernel does.
type listener struct {
	address address
	queue   chan *conn
	mu      sync.Mutex
	closed  bool // and then the queue is closed too; guarded by mu
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// Listen listens in memory, at a free address of an earlier listener, or at a new one if `at` is empty.
func Listen(at string) (net.Listener, error) {
	network.mu.Lock()
	defer network.mu.Unlock()
	if at == "" {
		network.last++
		at = fmt.Sprintf("10.%d.%d.%d:80", network.last>>16&255, network.last>>8&255, network.last&255)
	}
	if network.listeners[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: address(at), Err: syscall.EADDRINUSE}
	}
	l := &listener{address: address(at), queue: make(chan *conn, backlog)}
	network.listeners[at] = l
	return l, nil
}

// Dial connects to a listener of Listen.
func Dial(_ context.Context, at string) (net.Conn, error) {
	network.mu.Lock()
	l := network.listeners[at]
	network.mu.Unlock()
	if l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.closed && len(l.queue) < backlog {
			there, back := newStream(), newStream()
			l.queue <- &conn{in: there, out: back, address: l.address}
			return &conn{in: back, out: there, address: l.address}, nil
		}
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: address(at), Err: syscall.ECONNREFUSED}
}

func (l *listener) Addr() net.Addr { return l.address }

func (l *listener) Accept() (net.Conn, error) {
	c, open := <-l.queue
	if !open {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: net.ErrClosed}
	}
	return c, nil
}

func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	network.mu.Lock()
	delete(network.listeners, string(l.address))
	network.mu.Unlock()
	close(l.queue)
	for c := range l.queue {
		_ = c.Close()
	}
	return nil
}
