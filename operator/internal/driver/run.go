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

// DefaultRun is the maximum number of flips under one permit. A superseded run abandons the flips that it has not
// begun, so its length only costs the size of the Prepare request.
const DefaultRun = 32

// flipsFrom returns the run that starts with the flip of this index: it and the following flips that share its permit,
// up to the next join or leave.
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

// headerOf returns the header of the flip at this index of the run, from 0.
func (r *flipRun) headerOf(place int) *tangramv1.Header {
	return &tangramv1.Header{World: r.header.World, Epoch: r.header.Epoch + uint64(place), Attempt: r.header.Attempt + uint64(place)}
}

// requestFor returns an agent's Prepare request for the first flip and those that follow it.
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

// errNoFurther: the flip in progress ends, and the rest of the run is not started.
var errNoFurther = errors.New("the rest of the run is no longer needed")

// stride is the progress of a run's members.
type stride struct {
	known   bool   // all members report the run
	done    bool   // and all have flipped the last flip
	behind  uint64 // lowest epoch of a member
	sum     uint64 // grows while any member makes progress
	bytes   verdict
	trouble error // of a member that cannot continue
}

// strideOf computes a run's progress from the members' latest reports. It is pure.
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

// recordOf returns an empty record of the flip at this index of the run, from 0.
func (r *flipRun) recordOf(place int) FlipRecord {
	flip := r.first
	if place > 0 {
		flip = r.follow[place-1]
	}
	return FlipRecord{Kind: r.event.Kind, Epoch: flip.Epoch, Attempt: r.headerOf(place).Attempt, TargetHash: short(flip.TargetHash)}
}

// measure sets the bytes and times of this flip: the totals minus those of the earlier flips of the run.
func (r *flipRun) measure(latest map[int]*tangramv1.StatusResponse) {
	moved, took, peak := measured(r.header.Attempt, r.last.Attempt, latest)
	r.out.Bytes, r.out.AgentSeconds = moved.minus(r.moved), took.minus(r.took)
	r.moved, r.took, r.out.PeakBytes = moved, took, peak
}

// leave adds the records of completed flips to the transition's record.
func (r *flipRun) leave(records ...FlipRecord) {
	r.left = records
	for _, f := range records {
		r.record.add(f)
	}
}

// told calls the hook for each completed flip.
func (r *flipRun) told() {
	for _, f := range r.left {
		if r.d.Hooks.FlipDone != nil {
			r.d.Hooks.FlipDone(f)
		}
	}
}

// next records the flip that all members completed and continues with the following one.
func (r *flipRun) next(latest map[int]*tangramv1.StatusResponse, took time.Duration) {
	r.measure(latest)
	r.out.Seconds.Flip += took.Seconds()
	r.walked = append(r.walked, r.out)
	r.out = r.recordOf(len(r.walked))
	r.event.Flip++
	r.event.Epoch++
}

// walk waits while the agents go through a run whose first flip is done. Flips that completed stay, so every end of a
// run leaves a valid layout.
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

// endRun makes every agent end the run, then ends the flip in progress: forward if a rank flipped it, back otherwise.
// The world then serves with the layout that it has.
func (r *flipRun) endRun(ctx context.Context, cause error) error {
	if _, err := r.d.abortAll(ctx, r.agents, r.last, cause.Error()); err != nil {
		return fmt.Errorf("the outcome of attempt %d is unknown; run again when all agents respond: %w (run up to attempt %d; first error: %w)", r.header.Attempt, err,
			r.last.Attempt, cause)
	}
	if err := r.d.burned(ctx, r.header.Attempt); errors.Is(err, store.ErrConflict) {
		return errors.Join(cause, err) // another driver is active
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

// endRuns ends runs without a driver in each agent that would continue. Their flips in progress then end like any
// attempt. It returns false if there are none.
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
