// Package testkit is what tests of several packages share: a network in memory, for tests in a bubble of
// testing/synctest, and the seed of tests that draw cases at random. Only tests import it.
package testkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"google.golang.org/grpc/test/bufconn"
)

const (
	bufferBytes = 64 << 10 // of each direction of a connection
	backlog     = 128      // connections that wait to be accepted
)

// network holds all listeners in memory by their address. Its own state belongs to no bubble.
var network = struct {
	mu        sync.Mutex
	last      int
	listeners map[string]*listener
}{listeners: map[string]*listener{}}

// listener queues connections until they are accepted, as a kernel does.
type listener struct {
	*bufconn.Listener
	address  address
	accepted chan net.Conn
	once     sync.Once
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// Listen in memory at an address that a listener had before, or, if it is empty, at a new one.
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
	l := &listener{Listener: bufconn.Listen(bufferBytes), address: address(at), accepted: make(chan net.Conn, backlog)}
	network.listeners[at] = l
	go func() {
		defer close(l.accepted)
		for {
			c, err := l.Listener.Accept()
			if err != nil {
				return
			}
			l.accepted <- c
		}
	}()
	return l, nil
}

// Dial a listener of Listen.
func Dial(ctx context.Context, at string) (net.Conn, error) {
	network.mu.Lock()
	l := network.listeners[at]
	network.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: address(at), Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	c, err := l.DialContext(ctx)
	if err != nil && ctx.Err() == nil {
		return nil, refused // it was closed meanwhile
	}
	if err != nil {
		return nil, err
	}
	return &conn{c, l.address}, nil
}

func (l *listener) Addr() net.Addr { return l.address }

func (l *listener) Accept() (net.Conn, error) {
	c, open := <-l.accepted
	if !open {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: net.ErrClosed}
	}
	return &conn{c, l.address}, nil
}

func (l *listener) Close() error {
	l.once.Do(func() {
		network.mu.Lock()
		delete(network.listeners, string(l.address))
		network.mu.Unlock()
		_ = l.Listener.Close()
		for c := range l.accepted {
			_ = c.Close()
		}
	})
	return nil
}

// conn tells of a deadline that is over as the package net does, and has the listener's address at both ends.
type conn struct {
	net.Conn
	address address
}

func (c *conn) LocalAddr() net.Addr  { return c.address }
func (c *conn) RemoteAddr() net.Addr { return c.address }

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, deadline(err)
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, deadline(err)
}

func deadline(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return os.ErrDeadlineExceeded
	}
	return err
}
