package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// DefaultRun is how many flips have one permit at most. A run that is superseded gives up what it has not begun, so that
// its length costs nothing but the size of the request that brings it.
const DefaultRun = 32

// flipsFrom is what the flip with this index of a plan is done with: those that follow it under the same permit, as long as nobody
// joins or leaves.
func (d *Driver) flipsFrom(plan *planner.Result, index int) *flipRun {
	flips := plan.Plan.Flips
	end, most := index+1, d.Run
	if most == 0 {
		most = DefaultRun
	}
	for end < len(flips) && end-index < most && flips[index].Kind == tangramv1.FlipKind_FLIP_KIND_LAYOUT && flips[end].Kind == flips[index].Kind {
		end++
	}
	first := flips[index]
	return &flipRun{first: first, follow: flips[index+1 : end], flip: flips[end-1], target: plan.Layouts[end-1],
		firstTarget: plan.Layouts[index],
		event:       Event{Flip: index + 1, Flips: len(flips), Kind: kindName(first.Kind), Epoch: first.Epoch}}
}

// headerOf the flip with this place in the run, from 0.
func (r *flipRun) headerOf(place int) *tangramv1.Header {
	return &tangramv1.Header{World: r.header.World, Epoch: r.header.Epoch + uint64(place), Attempt: r.header.Attempt + uint64(place)}
}

// requestFor an agent: the first flip, and those that follow it.
func (r *flipRun) requestFor(agent int) *tangramv1.PrepareRequest {
	target := r.target
	if r.firstTarget != nil {
		target = r.firstTarget
	}
	request := r.truth.prepareFor(agent, r.header, r.first, target)
	request.PauseSteps = r.pause
	for i, flip := range r.follow {
		next := &tangramv1.PrepareRequest{Header: r.headerOf(i + 1), Kind: flip.Kind, TargetEpoch: flip.Epoch, TargetHash: flip.TargetHash,
			Target: &tangramv1.PrepareRequest_Delta{Delta: flip.Delta}}
		for _, part := range flip.Parts {
			if rank, ok := r.truth.ranks[part.Member]; ok && rank.agent == agent {
				next.Parts = append(next.Parts, part)
			}
		}
		request.Next = append(request.Next, next)
	}
	return request
}

// errNoFurther: what a run has begun is ended, the rest of it is not begun.
var errNoFurther = errors.New("the rest of the run is no longer needed")

// stride of a run: how far its members are.
type stride struct {
	known   bool   // all tell of it
	done    bool   // and have flipped the last
	behind  uint64 // epoch of the member that is behind
	sum     uint64 // of what grows while anybody gets on
	bytes   verdict
	trouble error // of one that can go no further
}

// strideOf a run, by what its members said last. Pure.
func (r *flipRun) strideOf(latest map[int]*tangramv1.StatusResponse) stride {
	s := stride{behind: r.flip.Epoch}
	known, flipped := 0, 0
	for _, status := range latest {
		for _, rank := range status.GetRanks() {
			t := rank.GetTransition()
			if _, counted := r.members[rank.GetMember().GetId()]; !counted || t.GetAttempt() < r.header.Attempt || t.GetAttempt() > r.last.Attempt {
				continue
			}
			known++
			s.behind = min(s.behind, status.GetEpoch())
			s.sum += status.GetEpoch() + t.GetBytesDone() + uint64(t.GetPhase())
			s.bytes.bytesDone += t.GetBytesDone()
			s.bytes.bytesTotal += t.GetBytesTotal()
			switch last := t.GetAttempt() == r.last.Attempt; {
			case last && (t.GetPhase() == tangramv1.Phase_PHASE_FLIPPED || t.GetPhase() == tangramv1.Phase_PHASE_IDLE && status.GetEpoch() >= r.flip.Epoch):
				flipped++
			case t.GetPhase() == tangramv1.Phase_PHASE_FAILED:
				s.trouble = fmt.Errorf("rank of member %s failed in attempt %d: %s", rank.GetMember().GetId(), t.GetAttempt(), t.GetError())
			case !last && t.GetRunLast() == 0:
				s.trouble = fmt.Errorf("the run stopped at member %s, attempt %d: %s", rank.GetMember().GetId(), t.GetAttempt(), t.GetError())
			}
		}
	}
	s.known = known == len(r.members)
	s.done = s.known && flipped == known
	return s
}

// recordOf the flip with this place in the run, from 0; nothing is counted yet.
func (r *flipRun) recordOf(place int) FlipRecord {
	flip := r.first
	if place > 0 {
		flip = r.follow[place-1]
	}
	return FlipRecord{Kind: r.event.Kind, Epoch: flip.Epoch, Attempt: r.headerOf(place).Attempt, TargetHash: short(flip.TargetHash)}
}

// measure what was moved since the flip before this one.
func (r *flipRun) measure(latest map[int]*tangramv1.StatusResponse) {
	moved, took, peak := measured(r.header.Attempt, r.last.Attempt, latest)
	r.out.Bytes, r.out.AgentSeconds = moved.minus(r.moved), took.minus(r.took)
	r.moved, r.took, r.out.PeakBytes = moved, took, peak
}

// leave the records of what is done.
func (r *flipRun) leave(records ...FlipRecord) {
	r.left = records
	for _, f := range records {
		r.record.add(f)
	}
}

// told tells of what is done.
func (r *flipRun) told() {
	for _, f := range r.left {
		if r.d.Hooks.FlipDone != nil {
			r.d.Hooks.FlipDone(f)
		}
	}
}

// next flip of the run: the one before it is done by all.
func (r *flipRun) next(latest map[int]*tangramv1.StatusResponse, took time.Duration) {
	r.measure(latest)
	r.out.Seconds.Flip += took.Seconds()
	r.walked = append(r.walked, r.out)
	r.out = r.recordOf(len(r.walked))
	r.event.Flip++
	r.event.Epoch++
}

// walk waits while the agents go through a run whose first flip is done. What it is ended by, other than its last flip, leaves a valid layout:
// what is flipped stays.
func (r *flipRun) walk(ctx context.Context) error {
	began, since := time.Now(), r.permitted
	err := r.board.until(ctx, "a flip of the run", r.d.Limits.Flip, func(latest map[int]*tangramv1.StatusResponse) (bool, uint64, error) {
		s := r.strideOf(latest)
		for s.known && r.event.Epoch <= s.behind && r.event.Epoch < r.flip.Epoch {
			r.next(latest, time.Since(since))
			since = time.Now()
			r.tell("flip", s.bytes, began)
		}
		if s.done {
			r.out.Seconds.Flip = time.Since(since).Seconds()
			return true, 0, nil
		}
		if r.d.Abort.asked() || r.d.Hooks.Continue != nil && !r.d.Hooks.Continue() {
			return false, 0, errNoFurther
		}
		return false, s.sum, errors.Join(r.broken(latest), s.trouble)
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted in the run of attempts %d to %d; the agents continue, so run again to learn the outcome: %w",
			r.header.Attempt, r.last.Attempt, ctx.Err())
	case errors.Is(err, ErrNeedsRepair):
		return fmt.Errorf("attempts %d to %d are left to the repair: %w", r.header.Attempt, r.last.Attempt, err)
	}
	return r.endRun(ctx, err)
}

// endRun has every agent go no further, then ends what is under way: forward what flipped, back what did not. The world serves on as
// it stands then.
func (r *flipRun) endRun(ctx context.Context, cause error) error {
	if _, err := r.d.abortAll(ctx, r.agents, r.last, cause.Error()); err != nil {
		return fmt.Errorf("the outcome of attempt %d is unknown; run again when all agents respond: %w (run up to attempt %d; first error: %w)", r.header.Attempt, err,
			r.last.Attempt, cause)
	}
	if err := r.d.burned(ctx, r.header.Attempt); errors.Is(err, store.ErrConflict) {
		return errors.Join(cause, err) // another driver acts
	} else if err != nil {
		cause = errors.Join(cause, err)
	}
	after, err := r.d.settle(ctx, r.record)
	if err != nil {
		return fmt.Errorf("%w; the following step also failed: %w", cause, err)
	}
	if after.epoch() == r.flip.Epoch {
		r.d.Log.Info("the interrupted flip was the last one of the run", "error", cause)
		return nil
	}
	done := after.epoch() - r.header.Epoch
	if done == 0 {
		return fmt.Errorf("attempt %d aborted after its permit, the old layout stays active: %w", r.header.Attempt, cause)
	}
	if !errors.Is(cause, errNoFurther) {
		cause = fmt.Errorf("the run ended at epoch %d, which stays active: %w", after.epoch(), cause)
	} else {
		cause = fmt.Errorf("after %d flips of a run of %d, at epoch %d: %w", done, 1+len(r.follow), after.epoch(), ErrSuperseded)
	}
	latest, _, _ := r.board.look()
	for r.event.Epoch < after.epoch() {
		r.next(latest, 0)
	}
	if r.event.Epoch == after.epoch() {
		r.measure(latest)
		r.walked = append(r.walked, r.out)
	}
	r.leave(r.walked...)
	r.told()
	return errors.Join(cause, r.d.saveMembership(ctx, after))
}

// endRuns ends those that nobody waits for, in each agent that would go on by itself: what they have begun ends like any attempt.
// False: there are none.
func (d *Driver) endRuns(ctx context.Context, t *truth) (bool, error) {
	last := map[uint64][]int{}
	for i, a := range t.agents {
		for _, rank := range a.GetRanks() {
			if end := rank.GetTransition().GetRunLast(); end != 0 && t.believed[i] {
				if in := last[end]; len(in) == 0 || in[len(in)-1] != i {
					last[end] = append(in, i)
				}
			}
		}
	}
	for end, agents := range last {
		d.Log.Warn("ending an unfinished run", "last_attempt", end)
		header := &tangramv1.Header{World: d.World, Epoch: t.epoch(), Attempt: end}
		if _, err := d.abortAll(ctx, agents, header, "a new driver found the run unfinished"); err != nil {
			return true, fmt.Errorf("end the run up to attempt %d: %w", end, err)
		}
	}
	return len(last) > 0, nil
}
