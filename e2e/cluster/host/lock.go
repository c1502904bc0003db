package host

import (
	"context"
	"fmt"
	"net"
	"time"
)

// lockName is an abstract socket's: it leaves no file, and goes with the process that holds it. Another in tests.
var lockName = "@tangram-cluster"

// Lock so that one command at a time changes the host; it waits for another one for at most limit.
// The lock is held until unlock is called or the process ends, however it ends.
func Lock(ctx context.Context, limit time.Duration) (unlock func(), err error) {
	var listener net.Listener
	err = Poll(ctx, 50*time.Millisecond, limit, func() (err error) {
		listener, err = net.Listen("unix", lockName)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("another tangram-cluster command is running, for more than %s: %w", limit, err)
	}
	return func() { _ = listener.Close() }, nil
}
