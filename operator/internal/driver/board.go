package driver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// board keeps the latest status of some agents, fed by their Watch streams, which are
// opened again when they break.
type board struct {
	mu      sync.Mutex
	latest  map[int]*tangramv1.StatusResponse
	lost    map[int]error // why an agent's stream is down now
	changed chan struct{} // closed and replaced at each change
}

func (d *Driver) watch(ctx context.Context, agents []int) (*board, func()) {
	b := &board{latest: map[int]*tangramv1.StatusResponse{}, lost: map[int]error{}, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	for _, i := range agents {
		wait.Go(func() {
			pause := backoff.NewExponentialBackOff()
			pause.InitialInterval, pause.MaxInterval = 50*time.Millisecond, time.Second
			for ctx.Err() == nil {
				err := d.Agents[i].Watch(ctx, d.World, func(s *tangramv1.StatusResponse) {
					pause.Reset()
					b.put(i, s, nil)
				})
				b.put(i, nil, err)
				_ = sleep(ctx, pause.NextBackOff())
			}
		})
	}
	return b, func() { cancel(); wait.Wait() }
}

func (b *board) put(agent int, s *tangramv1.StatusResponse, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost[agent] = err
	if s != nil {
		b.latest[agent] = s
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// look gives a copy of what is known, and a channel that closes at the next change.
func (b *board) look() (map[int]*tangramv1.StatusResponse, map[int]error, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	latest, lost := map[int]*tangramv1.StatusResponse{}, map[int]error{}
	for i, s := range b.latest {
		latest[i] = s
	}
	for i, err := range b.lost {
		if err != nil {
			lost[i] = err
		}
	}
	return latest, lost, b.changed
}

// until calls `done` on every change. `quiet` bounds the time in which `done` reports no
// progress (a growing number); its error says what was waited for.
func (b *board) until(ctx context.Context, what string, quiet time.Duration,
	done func(map[int]*tangramv1.StatusResponse) (bool, uint64, error)) error {
	last, since := uint64(0), time.Now()
	for {
		latest, lost, changed := b.look()
		ready, progress, err := done(latest)
		if err != nil || ready {
			return err
		}
		if progress != last {
			last, since = progress, time.Now()
		}
		left := quiet - time.Since(since)
		if left <= 0 {
			return &waitError{what: what, quiet: quiet, detail: describe(latest), lost: lost}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(left):
		}
	}
}

// waitError says that nothing moved for a time.
type waitError struct {
	what, detail string
	quiet        time.Duration
	lost         map[int]error
}

func (e *waitError) Error() string {
	text := fmt.Sprintf("%s: nothing new for %v; %s", e.what, e.quiet, e.detail)
	for _, err := range e.lost {
		text += fmt.Sprintf("; unreachable: %v", err)
	}
	return text
}

func describe(latest map[int]*tangramv1.StatusResponse) string {
	text := "ranks:"
	for _, s := range latest {
		for _, r := range s.Ranks {
			t := r.GetTransition()
			text += fmt.Sprintf(" %s=%s(attempt %d, steps %d)", r.GetMember().GetId(), t.GetPhase(), t.GetAttempt(), t.GetStepsSinceFlip())
			if t.GetError() != "" {
				text += fmt.Sprintf(" %q", t.GetError())
			}
		}
	}
	return text
}
