package driver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/internal/driver/drivertest"
	"tangram.dev/operator/internal/store"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// odd agents replace some calls.
type odd struct {
	*drivertest.Agent
	permit func(ctx context.Context, h *tangramv1.Header) error
	retire func(ctx context.Context, h *tangramv1.Header) error
	abort  func(ctx context.Context, h *tangramv1.Header) (bool, error)
	tells  func(s *tangramv1.StatusResponse)
}

func (o *odd) Permit(ctx context.Context, h *tangramv1.Header) error {
	if o.permit != nil {
		return o.permit(ctx, h)
	}
	return o.Agent.Permit(ctx, h)
}

func (o *odd) Retire(ctx context.Context, h *tangramv1.Header) error {
	if o.retire != nil {
		return o.retire(ctx, h)
	}
	return o.Agent.Retire(ctx, h)
}

func (o *odd) Abort(ctx context.Context, h *tangramv1.Header, reason string) (bool, error) {
	if o.abort != nil {
		return o.abort(ctx, h)
	}
	return o.Agent.Abort(ctx, h, reason)
}

func (o *odd) Watch(ctx context.Context, world string, each func(*tangramv1.StatusResponse)) error {
	return o.Agent.Watch(ctx, world, func(s *tangramv1.StatusResponse) {
		if o.tells != nil {
			s = proto.CloneOf(s)
			o.tells(s)
		}
		each(s)
	})
}

// pair returns a world of two members, the second of which is odd, and a driver for its transition to a tensor layout.
func pair(t *testing.T) (*Driver, *bed, *odd) {
	d, w := setup(t, 2)
	_, err := d.Apply(t.Context(), expert(2))
	require.NoError(t, err)
	second := &odd{Agent: w.agents[1]}
	d.Agents[1] = second
	return d, w, second
}

var errLine = errors.New("connection reset")

// A latched agent delays its answer to an abort until it has the outcome. If another agent is dead, it cannot get it.
// The fence decides, and does not wait ten more seconds.
func TestAbortDoesNotWait_WhenAgentDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, second := pair(t)
		first := &odd{Agent: d.Agents[0].(*drivertest.Agent)}
		d.Agents[0] = first
		first.abort = func(ctx context.Context, _ *tangramv1.Header) (bool, error) {
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(10 * time.Second):
				return false, errors.New("ask again")
			}
		}
		second.abort = func(context.Context, *tangramv1.Header) (bool, error) { return false, errLine }
		began := time.Now()
		_, err := d.abortAll(t.Context(), []int{0, 1}, &tangramv1.Header{Attempt: 2}, "a test")
		require.Equal(t, errLine.Error(), err.Error(), "and nothing of those who were not waited for")
		require.LessOrEqual(t, time.Since(began), 2*DefaultLimits.Answer)
	})
}

// After a broken connection the permit is retried until the limit of a flip. A rejection or a long silence ends the
// retries. Then the attempt is aborted, and the record says so.
func TestPermitRetryLimits(t *testing.T) {
	world := func(do func(t *testing.T, d *Driver, w *bed, second *odd)) {
		synctest.Test(t, func(t *testing.T) {
			d, w, second := pair(t)
			d.Limits.Flip = 5 * time.Second
			do(t, d, w, second)
		})
	}
	const over = "aborted after its permit, the old layout stays active"
	world(func(t *testing.T, d *Driver, _ *bed, second *odd) {
		tried := 0
		second.permit = func(context.Context, *tangramv1.Header) error { tried++; return errLine }
		began := time.Now()
		record, err := d.Apply(t.Context(), tensor(2))
		require.ErrorIs(t, err, errLine)
		require.ErrorContains(t, err, over)
		require.Greater(t, tried, 20)
		require.Equal(t, tried-1, record.Retries)
		require.InDelta(t, 5, time.Since(began).Seconds(), 0.5)
	})
	world(func(t *testing.T, d *Driver, _ *bed, second *odd) {
		no := refusal(tangramv1.Refusal_CODE_ENGINE)
		second.permit = func(context.Context, *tangramv1.Header) error { return no }
		d.Store = failing{d.Store, Aborted}
		began := time.Now()
		record, err := d.Apply(t.Context(), tensor(2))
		require.ErrorIs(t, err, no)
		require.ErrorContains(t, err, over)
		require.ErrorIs(t, err, errUnreadable, "and that it is burned could not be written")
		require.Zero(t, record.Retries)
		require.Less(t, time.Since(began), time.Second)
	})
	world(func(t *testing.T, d *Driver, _ *bed, second *odd) {
		second.permit = func(ctx context.Context, _ *tangramv1.Header) error {
			second.Deaf(true) // this ends its stream, too
			<-ctx.Done()
			return ctx.Err()
		}
		second.abort = func(context.Context, *tangramv1.Header) (bool, error) { return false, errLine }
		began := time.Now()
		record, err := d.Apply(t.Context(), tensor(2))
		require.ErrorContains(t, err, "the outcome of attempt 2 is unknown; run again when all agents respond")
		require.ErrorIs(t, err, errLine)
		require.ErrorContains(t, err, "a call: no progress")
		require.Zero(t, record.Retries)
		require.Less(t, time.Since(began), 4*time.Second)
	})
	world(func(t *testing.T, d *Driver, w *bed, second *odd) { // the caller goes away
		ctx, leave := context.WithCancel(t.Context())
		second.permit = func(ctx context.Context, h *tangramv1.Header) error {
			time.AfterFunc(time.Second, leave)
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		record, err := d.Apply(ctx, tensor(2))
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "interrupted after the permit of attempt 2; the agents continue")
		require.Zero(t, record.Retries)
		require.Less(t, time.Since(began), 2*time.Second)
		require.NotContains(t, w.agents[0].Calls(), "abort")
	})
}

// A call to a dead agent fails immediately, before the board has checked the silence. The silence counts anyway, so the
// caller does not retry.
func TestFailedCallCountsSilenceOfAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{lost: map[int]silence{0: {why: errLine, since: time.Now()}}, changed: make(chan struct{}), patience: 2 * time.Second}
		var lost error
		fails := func() error {
			_, done := b.guard(t.Context(), func(map[int]*tangramv1.StatusResponse) error { return lost })
			return done()
		}
		require.NoError(t, fails(), "it may come back")
		time.Sleep(2 * time.Second)
		require.ErrorContains(t, fails(), "a call: no progress for 2s")
		lost = ErrNeedsRepair
		require.ErrorIs(t, fails(), ErrNeedsRepair)
	})
}

// If a member dies at the gate, the driver aborts nothing that others may flip. The repair decides.
func TestFlip_WhenMemberDiesAtGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := setup(t, 3)
		_, err := d.Apply(t.Context(), expert(3))
		require.NoError(t, err)
		w.HoldGate(true)
		d.Limits.Flip = time.Minute
		d.Hooks.Progress = func(e Event) {
			if e.Phase == "flip" {
				time.AfterFunc(time.Second, func() { w.kill(2) })
			}
		}
		_, err = d.Apply(t.Context(), tensor(3))
		require.ErrorIs(t, err, ErrNeedsRepair)
		require.ErrorContains(t, err, "attempt 2 is left to the repair")
		require.NotContains(t, w.agents[0].Calls(), "abort")
	})
}

// No old piece is freed before every member has taken a step of the new epoch. A retire may take several tries.
func TestRetireWaitsForStepOfEveryMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w, second := pair(t)
		said := 0
		second.retire = func(ctx context.Context, h *tangramv1.Header) error {
			if said++; said <= 3 {
				return refusal(tangramv1.Refusal_CODE_WRONG_PHASE)
			}
			return second.Agent.Retire(ctx, h)
		}
		record, err := d.Apply(t.Context(), tensor(2))
		require.NoError(t, err)
		require.Equal(t, 3, record.Retries)

		second.retire = nil
		second.tells = func(s *tangramv1.StatusResponse) { s.Ranks[0].Transition.StepsSinceFlip = 0 }
		before := len(w.agents[0].Calls())
		record, err = d.Apply(t.Context(), expert(2))
		require.ErrorContains(t, err, "a step of the new epoch by every member: no progress")
		require.NotContains(t, w.agents[0].Calls()[before:], "retire")
		require.Len(t, record.Flips, 2)
		var intent Intent
		_, err = store.Load(t.Context(), d.Store, keyIntent, &intent)
		require.NoError(t, err)
		require.Equal(t, Permitted, intent.State)
		second.tells = nil
		_, err = d.Apply(t.Context(), expert(2))
		require.NoError(t, err)
	})
}

// An engine dies during Retire. The loss explains a failed call; a completed call counts.
func TestRetire_WhenEngineDies(t *testing.T) {
	retiring := func(t *testing.T, retire func(ctx context.Context, second *odd) error) error {
		d, _, second := pair(t)
		d.Hooks.Progress = func(e Event) {
			if e.Flip == e.Flips {
				second.retire = func(ctx context.Context, _ *tangramv1.Header) error { return retire(ctx, second) }
			}
		}
		_, err := d.Apply(t.Context(), tensor(2))
		return err
	}
	synctest.Test(t, func(t *testing.T) {
		err := retiring(t, func(ctx context.Context, second *odd) error {
			second.Detach(true)
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, ErrNeedsRepair)
		require.ErrorContains(t, err, "retire attempt ")
		err = retiring(t, func(_ context.Context, second *odd) error {
			second.Detach(true)
			time.Sleep(time.Millisecond)
			return nil
		})
		require.NoError(t, err)
		no := refusal(tangramv1.Refusal_CODE_ENGINE)
		err = retiring(t, func(_ context.Context, second *odd) error {
			second.Detach(true)
			time.Sleep(time.Millisecond)
			return no
		})
		require.ErrorIs(t, err, ErrNeedsRepair)
		require.ErrorContains(t, err, "retire attempt ")
		err = retiring(t, func(context.Context, *odd) error { return no })
		require.ErrorIs(t, err, no)
	})
}

// A completed call counts even if a member was lost meanwhile; the loss explains a failed call.
func TestCalls_WhenMemberLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		four, five := layoutOf(4, "a", "b"), layoutOf(5, "a", "b")
		r, _ := flipOf(t, kindLayout, five, stopped(says(four, "a")), says(four, "b"))
		calls := func(gives error) error {
			return r.each(t.Context(), r.agents, func(ctx context.Context, _ Agent, i int) error {
				time.Sleep(time.Second)
				return gives
			})
		}
		require.NoError(t, calls(nil))
		require.ErrorIs(t, calls(errLine), ErrNeedsRepair)
		r.board.put(0, says(four, "a"), nil)
		require.NoError(t, calls(nil))
		require.ErrorIs(t, calls(errLine), errLine)
		r.board.mu.Lock()
		r.board.forgotten = errors.New("the agent gave the attempt up, as it says in a moment")
		r.board.mu.Unlock()
		require.ErrorIs(t, calls(errLine), errLine)
	})
}

// A rejected Stage ends the attempt immediately.
func TestStage_WhenRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, second := pair(t)
		no := refusal(tangramv1.Refusal_CODE_NO_MEMORY)
		d.Agents[1] = unstaged{second, no}
		began := time.Now()
		_, err := d.Apply(t.Context(), tensor(2))
		require.ErrorIs(t, err, no)
		require.Less(t, time.Since(began), d.Limits.Stage)
	})
}

type unstaged struct {
	*odd
	why error
}

func (u unstaged) Stage(context.Context, *tangramv1.Header) error { return u.why }
