// Package tcp dials connections that do not outlive their path: a node that is cut off or lost its power closes nothing.
package tcp

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Dialer for gRPC: it connects within `connect`, and a connection ends once nothing has come through for `silent`, whether
// or not something is sent. The other program need not take part in that, its kernel does.
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
