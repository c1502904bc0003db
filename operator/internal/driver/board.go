package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// board keeps the latest status of some agents. Their Watch streams feed it and are reopened when they break.
type board struct {
	mu      sync.Mutex
	latest  map[int]*tangramv1.StatusResponse
	lost    map[int]silence // agents whose stream is down now
	changed chan struct{}   // closed and replaced at each change
	// A wait ends when an agent's stream has been down for this long.
	patience time.Duration

	attempt   uint64
	knew      map[string]bool // members that reported the attempt
	forgotten error           // a member that had reported the attempt restarted without it
}

// silence says why an agent's stream is down, and since when.
type silence struct {
	why   error
	since time.Time
}

func (d *Driver) watch(ctx context.Context, agents []int, attempt uint64) (*board, func()) {
	b := &board{latest: map[int]*tangramv1.StatusResponse{}, lost: map[int]silence{}, changed: make(chan struct{}),
		patience: d.Limits.answer(), attempt: attempt, knew: map[string]bool{}}
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	for _, i := range agents {
		wait.Go(func() {
			pause := pauses(50*time.Millisecond, time.Second)
			for ctx.Err() == nil {
				err := d.Agents[i].Watch(ctx, d.World, func(s *tangramv1.StatusResponse) {
					pause.Reset()
					b.put(i, s, nil)
				})
				if ctx.Err() == nil {
					b.put(i, nil, err)
				}
				_ = sleep(ctx, pause.NextBackOff())
			}
		})
	}
	return b, func() { cancel(); wait.Wait() }
}

func (b *board) put(agent int, s *tangramv1.StatusResponse, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s != nil {
		b.latest[agent] = s
		delete(b.lost, agent)
		b.remember(s)
	} else if _, already := b.lost[agent]; !already && err != nil {
		b.lost[agent] = silence{why: err, since: time.Now()}
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// remember records the members that know the attempt. A restarted agent does not, so no wait for it is useful.
func (b *board) remember(s *tangramv1.StatusResponse) {
	for _, r := range s.GetRanks() {
		switch id := r.GetMember().GetId(); {
		case r.GetTransition().GetAttempt() == b.attempt:
			b.knew[id] = true
		case b.knew[id] && r.GetTransition().GetAttempt() < b.attempt:
			b.forgotten = fmt.Errorf("the agent of member %s restarted and has no record of attempt %d", id, b.attempt)
		}
	}
}

// forgot reports an agent that restarted without the attempt; nil: none.
func (b *board) forgot() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.forgotten
}

// look returns a copy of the latest statuses, and a channel that closes at the next change.
func (b *board) look() (map[int]*tangramv1.StatusResponse, map[int]silence, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.latest), maps.Clone(b.lost), b.changed
}

// lookAtLeast is the poll interval while nothing changes.
const lookAtLeast = 100 * time.Millisecond

// until calls `done` on every change and every lookAtLeast, until it is ready or fails. `quiet` bounds the time in
// which the progress that `done` returns (a growing number) does not change; the timeout error contains `what`. An
// agent whose stream stays down ends the wait earlier.
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
		for _, s := range lost {
			left = min(left, b.patience-time.Since(s.since))
		}
		if left <= 0 {
			return &waitError{what: what, quiet: time.Since(since).Round(time.Millisecond), detail: describe(latest), lost: lost}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(min(left, lookAtLeast)): // conditions that depend on time, without a change
		}
	}
}

// guard returns a context for calls, which ends when `lost` reports an error or an agent does not answer. done ends it
// and returns the reason of an earlier end; nil: none. Known losses count before the call: a call to a dead agent fails
// immediately, before the goroutine checks.
func (b *board) guard(ctx context.Context, lost func(map[int]*tangramv1.StatusResponse) error) (guarded context.Context, done func() error) {
	guarded, end := context.WithCancelCause(ctx)
	if err := b.inVain(lost); err != nil {
		end(err)
		return guarded, func() error { return err }
	}
	over := make(chan error, 1)
	go func() {
		err := b.until(guarded, "a call", time.Hour, func(latest map[int]*tangramv1.StatusResponse) (bool, uint64, error) {
			return false, 0, lost(latest)
		})
		if guarded.Err() != nil {
			err = nil
		}
		over <- err
		end(err)
	}()
	return guarded, func() error { end(nil); return <-over }
}

// inVain says why a call is useless now; nil: no reason is known.
func (b *board) inVain(lost func(map[int]*tangramv1.StatusResponse) error) error {
	latest, silent, _ := b.look()
	if err := lost(latest); err != nil {
		return err
	}
	for _, s := range silent {
		if quiet := time.Since(s.since); quiet >= b.patience {
			return &waitError{what: "a call", quiet: quiet.Round(time.Millisecond), detail: describe(latest), lost: silent}
		}
	}
	return nil
}

// waitError says that a wait made no progress for a time.
type waitError struct {
	what, detail string
	quiet        time.Duration
	lost         map[int]silence
}

func (e *waitError) Error() string {
	text := fmt.Sprintf("%s: no progress for %v; %s", e.what, e.quiet, e.detail)
	for _, agent := range slices.Sorted(maps.Keys(e.lost)) {
		s := e.lost[agent]
		text += fmt.Sprintf("; unreachable for %v: %v", time.Since(s.since).Round(time.Millisecond), s.why)
	}
	return text
}

func describe(latest map[int]*tangramv1.StatusResponse) string {
	text := "ranks:"
	for _, agent := range slices.Sorted(maps.Keys(latest)) {
		for _, r := range latest[agent].GetRanks() {
			t := r.GetTransition()
			text += fmt.Sprintf(" %s=%s(attempt %d, steps %d)", r.GetMember().GetId(), t.GetPhase(), t.GetAttempt(), t.GetStepsSinceFlip())
			if t.GetError() != "" {
				text += fmt.Sprintf(" %q", t.GetError())
			}
		}
	}
	return text
}
