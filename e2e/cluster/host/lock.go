package host

import (
	"context"
	"fmt"
	"net"
	"time"
)

// lockName is an abstract socket: it has no file, and ends with its process. Tests use another name.
var lockName = "@tangram-cluster"

// Lock serializes commands that change the host; it waits for another command for at most limit. The lock is held until
// unlock is called or the process ends in any way.
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
