// Package tcp dials connections that end when their path breaks: a node that is cut off or has no power closes nothing.
package tcp

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Dialer is for gRPC. It connects within `connect`. A connection ends when nothing has arrived for `silent`, even if
// nothing is sent. Only the peer's kernel takes part, not its program.
func Dialer(connect, silent time.Duration) func(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: connect,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: max(silent/2, time.Second), Interval: time.Second, Count: 3},
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if e := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silent.Milliseconds()))
			}); e != nil {
				return e
			}
			return err
		}}
	return func(ctx context.Context, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}
}
