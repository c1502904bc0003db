package driver

import (
	"context"
	"errors"
	"sync"
)

// ErrAborted says that somebody asked an Apply to end.
var ErrAborted = errors.New("aborted by the user")

// Abort ends an Apply on request and never across a permit: a flip without one is aborted, one that has it goes on and is
// the last; of a run, what the agents have not begun is withdrawn. Nothing is permitted after Ask. It serves one Apply; its zero value is ready, and a nil one asks for nothing.
type Abort struct {
	mu        sync.Mutex
	wanted    bool
	permitted bool // an attempt has a permit, or may have, and is not over
	cancel    context.CancelFunc
}

// Ask for it, at any time, also before the Apply and more than once.
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

// guard gives the context of an Apply; the function returned ends it.
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

// permit writes the permit record: either that is begun before Ask, or it never is.
func (a *Abort) permit(write func() error) error {
	if a == nil {
		return write()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted {
		return ErrAborted
	}
	a.permitted = true // also after an error it may be written
	return write()
}

// over: the attempt has ended, so that nothing is permitted.
func (a *Abort) over() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.permitted = false
}
