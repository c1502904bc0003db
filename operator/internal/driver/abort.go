package driver

import (
	"context"
	"errors"
	"sync"
)

// ErrAborted says that the user requested the end of an Apply.
var ErrAborted = errors.New("aborted by the user")

// Abort ends an Apply on request. A flip without a permit is aborted; a permitted one continues and is the last. Of a
// run, the flips that the agents have not begun are withdrawn. No permit follows Ask. An Abort serves one Apply. Its
// zero value is ready; a nil one requests nothing.
type Abort struct {
	mu        sync.Mutex
	wanted    bool
	permitted bool // an attempt has, or may have, a permit and has not ended
	cancel    context.CancelFunc
}

// Ask requests the abort. It may be called at any time, also before the Apply and more than once.
func (a *Abort) Ask() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted = true
	if !a.permitted && a.cancel != nil {
		a.cancel()
	}
}

func (a *Abort) asked() bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wanted
}

// guard returns the context of an Apply, and the function that ends it.
func (a *Abort) guard(ctx context.Context) (context.Context, func()) {
	if a == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel = cancel
	if a.wanted {
		cancel()
	}
	return ctx, cancel
}

// permit writes the permit record, unless Ask came first.
func (a *Abort) permit(write func() error) error {
	if a == nil {
		return write()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted {
		return ErrAborted
	}
	a.permitted = true // an error does not prove that it was not written
	return write()
}

// over: the attempt has ended, so no permit is open.
func (a *Abort) over() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.permitted = false
}
