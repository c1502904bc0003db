package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tangram.dev/operator/internal/agentclient"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// flipRun takes one flip from intent to retire.
type flipRun struct {
	d      *Driver
	truth  *truth // before the flip
	flip   *tangramv1.Flip
	target *tangramv1.Layout
	record *Record
	event  Event

	header  *tangramv1.Header
	agents  []int
	members map[string]bool
	board   *board
	out     FlipRecord
}

func (r *flipRun) do(ctx context.Context) error {
	r.agents = r.truth.agentsOf(r.truth.layout, r.target)
	r.members = membersOf(r.truth.layout, r.target)
	intent, err := r.d.propose(ctx, r)
	if err != nil {
		return err
	}
	r.header = &tangramv1.Header{World: r.d.World, Epoch: r.truth.epoch(), Attempt: intent.Attempt}
	r.out = FlipRecord{Kind: r.event.Kind, Epoch: r.flip.Epoch, Attempt: intent.Attempt, TargetHash: short(r.flip.TargetHash)}
	board, stop := r.d.watch(ctx, r.agents)
	defer stop()
	r.board = board

	// Whatever fails before the permit is undone, also when the caller goes away.
	if err := r.untilStaged(ctx); err != nil {
		return r.abort(context.WithoutCancel(ctx), err)
	}
	if err := r.d.permit(ctx, intent); err != nil {
		return r.abort(context.WithoutCancel(ctx), fmt.Errorf("record the permit: %w", err))
	}
	began := time.Now()
	if err := r.untilFlipped(ctx); err != nil {
		return err
	}
	r.out.Seconds.Flip = time.Since(began).Seconds()
	began = time.Now()
	err = r.retire(ctx)
	r.out.Seconds.Retire = time.Since(began).Seconds()
	r.record.add(r.out)
	if err != nil {
		return err
	}
	return r.d.concluded(ctx, r.header.Attempt)
}

// each calls the agents side by side; the first error ends it.
func (r *flipRun) each(ctx context.Context, agents []int, call func(context.Context, Agent, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, i := range agents {
		group.Go(func() error { return call(ctx, r.d.Agents[i], i) })
	}
	return group.Wait()
}

func (r *flipRun) tell(phase string, v verdict, began time.Time) {
	r.event.Phase, r.event.BytesDone, r.event.BytesTotal = phase, v.bytesDone, v.bytesTotal
	r.event.Rate = 0
	if s := time.Since(began).Seconds(); s > 0 {
		r.event.Rate = float64(v.bytesDone) / s
	}
	r.d.progress(r.event)
}

func (r *flipRun) untilStaged(ctx context.Context) error {
	began := time.Now()
	r.tell("prepare", verdict{}, began)
	err := r.each(ctx, r.agents, func(ctx context.Context, a Agent, i int) error {
		return a.Prepare(ctx, r.truth.prepareFor(i, r.header, r.flip, r.target))
	})
	if err != nil {
		return err
	}
	r.out.Seconds.Prepare = time.Since(began).Seconds()
	began = time.Now()
	err = r.each(ctx, r.agents, func(ctx context.Context, a Agent, _ int) error { return a.Stage(ctx, r.header) })
	if err != nil {
		return err
	}
	err = r.board.until(ctx, "stage", r.d.Limits.Stage, func(latest map[int]*tangramv1.StatusResponse) (bool, uint64, error) {
		v := judge(r.header.Attempt, r.members, latest)
		r.tell("stage", v, began)
		return v.staged == v.ranks, v.bytesDone + uint64(v.staged), v.failed
	})
	r.out.Seconds.Stage = time.Since(began).Seconds()
	return err
}

// permitAll permits joiners before the others: a member of the epoch that may flip must
// find them ready.
func (r *flipRun) permitAll(ctx context.Context) error {
	joiners, others := r.truth.joinersFirst(r.agents)
	for _, agents := range [][]int{joiners, others} {
		err := r.each(ctx, agents, func(ctx context.Context, a Agent, _ int) error {
			err := a.Permit(ctx, r.header)
			if agentclient.RefusalCode(err) == tangramv1.Refusal_CODE_WRONG_PHASE {
				return nil // flipped already: a repeated call; the board tells the outcome
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// untilFlipped goes on after the permit until the outcome is known: forward if any rank
// flipped, back only when every agent has said that it did not.
func (r *flipRun) untilFlipped(ctx context.Context) error {
	r.tell("flip", verdict{}, time.Now())
	var cause error
	permitBy := time.Now().Add(r.d.Limits.Flip)
	for {
		if cause = r.permitAll(ctx); cause == nil || ctx.Err() != nil || time.Now().After(permitBy) {
			break
		}
		if agentclient.RefusalCode(cause) != tangramv1.Refusal_CODE_UNSPECIFIED {
			break // a no, not a broken line
		}
		r.record.Retries++
		_ = sleep(ctx, 200*time.Millisecond)
	}
	if cause == nil {
		cause = r.waitFlipped(ctx, r.d.Limits.Flip)
	}
	if cause == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted after the permit of attempt %d; the agents go on, run again to learn the outcome: %w",
			r.header.Attempt, ctx.Err())
	}
	flipped, err := r.abortAll(ctx, fmt.Sprintf("permitted but not flipped: %v", cause))
	if err != nil {
		return fmt.Errorf("outcome of attempt %d unknown, run again when all agents answer: %w (first: %w)", r.header.Attempt, err, cause)
	}
	if !flipped {
		if err := r.d.burned(ctx, r.header.Attempt); err != nil {
			cause = errors.Join(cause, err)
		}
		return fmt.Errorf("attempt %d aborted after its permit, the old layout serves on: %w", r.header.Attempt, cause)
	}
	r.d.Log.Info("an agent flipped before the abort reached it: forward", "attempt", r.header.Attempt)
	return r.waitFlipped(ctx, r.d.Limits.Outcome)
}

func (r *flipRun) waitFlipped(ctx context.Context, limit time.Duration) error {
	return r.board.until(ctx, "flip", limit, func(latest map[int]*tangramv1.StatusResponse) (bool, uint64, error) {
		v := judge(r.header.Attempt, r.members, latest)
		return v.flipped == v.ranks, uint64(v.flipped), v.failed
	})
}

// retire waits for a step of every member in the new epoch, then has the old places given
// back. Both may take several tries.
func (r *flipRun) retire(ctx context.Context) error {
	r.tell("retire", verdict{}, time.Now())
	err := r.board.until(ctx, "a step of the new epoch by every member", r.d.Limits.Retire,
		func(latest map[int]*tangramv1.StatusResponse) (bool, uint64, error) {
			v := judge(r.header.Attempt, r.members, latest)
			if v.stepped == v.ranks {
				r.out.Bytes, r.out.AgentSeconds = measured(r.header.Attempt, latest)
			}
			return v.stepped == v.ranks, uint64(v.stepped), nil
		})
	if err != nil {
		return err
	}
	retries, err := r.d.retireAll(ctx, r.agents, r.header)
	r.record.Retries += retries
	return err
}

// abort before the permit: nothing can have flipped.
func (r *flipRun) abort(ctx context.Context, cause error) error {
	flipped, err := r.abortAll(ctx, cause.Error())
	if err == nil && flipped {
		err = fmt.Errorf("an agent says that it flipped attempt %d, which was never permitted", r.header.Attempt)
	}
	if err == nil {
		err = r.d.burned(ctx, r.header.Attempt)
	}
	if err != nil {
		return fmt.Errorf("%w; and the abort: %w", cause, err)
	}
	r.d.Log.Warn("aborted", "attempt", r.header.Attempt, "cause", cause)
	return fmt.Errorf("attempt %d aborted, the old layout serves on: %w", r.header.Attempt, cause)
}

func (r *flipRun) abortAll(ctx context.Context, reason string) (flipped bool, err error) {
	joiners, members := r.truth.joinersFirst(r.agents)
	return r.d.abortInOrder(ctx, members, joiners, r.header, reason)
}
