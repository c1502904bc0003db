package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// flipRun takes one flip from intent to retire. It may also be a run of flips; the agents continue a run by themselves
// once its first flip has the permit (run.go).
type flipRun struct {
	d      *Driver
	truth  *truth // before the flip
	first  *tangramv1.Flip
	follow []*tangramv1.Flip // of a run: the flips after the first
	flip   *tangramv1.Flip   // the last flip
	target *tangramv1.Layout // target of the last flip
	// Target of the first flip of a run; nil: there is only one flip.
	firstTarget *tangramv1.Layout
	record      *Record
	event       Event
	fence       uint64 // of a repair: version of the membership record that it continues from
	pause       bool   // no rank computes a step until the flip ends

	header  *tangramv1.Header // of the first flip
	last    *tangramv1.Header
	agents  []int
	members map[string]bool
	board   *board
	doubts  doubts
	out     FlipRecord
	walked  []FlipRecord // of a run: completed flips
	moved   Bytes        // by the flips in walked
	took    AgentSeconds
	left    []FlipRecord // records that were added to the transition's record
	// Time at which the permit was recorded.
	permitted time.Time
}

func (r *flipRun) do(ctx context.Context) error {
	r.agents, r.members = r.truth.agentsOf(r.truth.layout, r.target), membersOf(r.truth.layout, r.target)
	if r.repairs() { // removed members take no part
		r.agents, r.members = r.truth.agentsOf(r.target), membersOf(nil, r.target)
	}
	intent, err := r.d.propose(ctx, r)
	if err != nil {
		return err
	}
	r.header = &tangramv1.Header{World: r.d.World, Epoch: r.truth.epoch(), Attempt: intent.Attempt}
	r.last = r.headerOf(len(r.follow))
	r.out = r.recordOf(0)
	board, stop := r.d.watch(ctx, r.agents, intent.Attempt)
	defer stop()
	r.board = board

	// A failure before the permit is undone, even if the caller's context has ended.
	if err := r.untilStaged(ctx); err != nil {
		return r.abort(context.WithoutCancel(ctx), err)
	}
	if err := r.mayPermit(ctx); err != nil {
		return r.abort(context.WithoutCancel(ctx), err)
	}
	if err := r.d.permit(ctx, intent); err != nil {
		return r.abort(context.WithoutCancel(ctx), fmt.Errorf("record the permit: %w", err))
	}
	r.record.Permits++
	began := time.Now()
	r.permitted = began
	if err := r.untilFlipped(ctx); err != nil {
		return err
	}
	if len(r.walked) == 0 {
		r.out.Seconds.Flip = time.Since(began).Seconds()
	}
	began = time.Now()
	err = r.retire(ctx)
	r.out.Seconds.Retire = time.Since(began).Seconds()
	r.leave(append(r.walked, r.out)...)
	if err != nil {
		return err
	}
	return r.d.concluded(ctx, r.last.Attempt)
}

// after returns the world view for the next flip. It is built from the agents' streams; if one of them is down, all
// agents are queried.
func (r *flipRun) after(ctx context.Context) (*truth, error) {
	latest, lost, _ := r.board.look()
	if len(lost) > 0 && r.event.Flip < r.event.Flips {
		next, err := r.d.observe(ctx)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(next.hash, r.flip.TargetHash) {
			return nil, fmt.Errorf("the agents are at epoch %d, layout %x; check whether another driver is running", next.epoch(), next.hash)
		}
		return next, next.trouble()
	}
	next, err := r.truth.after(r.target, r.flip.TargetHash, latest)
	if err == nil && r.event.Flip < r.event.Flips {
		err = next.trouble()
	}
	return next, err
}

func (r *flipRun) repairs() bool { return r.flip.Kind == tangramv1.FlipKind_FLIP_KIND_REPAIR }

// mayPermit checks the membership record once more. A repair continues only from its own fence. A first layout is
// recorded before it can be active, so that no driver starts a second world while its members do not answer.
func (r *flipRun) mayPermit(ctx context.Context) error {
	now, err := r.d.membership(ctx)
	if err != nil {
		return err
	}
	if r.repairs() {
		if now.version != r.fence {
			return fmt.Errorf("membership is at version %d, but the fence was at version %d: %w", now.version, r.fence, store.ErrConflict)
		}
		return r.d.mayRepair(ctx, now, r.header.Attempt)
	}
	if r.flip.Kind != tangramv1.FlipKind_FLIP_KIND_FIRST {
		return nil
	}
	if now.Epoch != 0 {
		return fmt.Errorf("the record is already at epoch %d: %w", now.Epoch, store.ErrConflict)
	}
	return r.d.found(ctx, now, r.flip, r.target)
}

// broken says why waiting for the members of the attempt is useless: a member is lost, or an agent restarted and has no
// record of the attempt.
func (r *flipRun) broken(latest map[int]*tangramv1.StatusResponse) error {
	if lost := r.gone(latest); lost != nil {
		return lost
	}
	return r.board.forgot()
}

// gone reports a lost member of the attempt. A stopped member breaks the attempt, except in a repair in which the
// others reach it. If a joiner is lost, only the attempt is lost.
func (r *flipRun) gone(latest map[int]*tangramv1.StatusResponse) error {
	lost := brokenMembers(latest, func(s *tangramv1.StatusResponse, rank *tangramv1.RankStatus) part {
		_, counted := r.members[rank.GetMember().GetId()]
		switch before := s.GetEpoch() < r.flip.Epoch; {
		case !counted:
			return noPart
		case before && r.repairs():
			return repairedPart
		case before && layout.RankOf(r.truth.layout, rank.GetMember().GetId()) < 0:
			return joinerPart
		}
		return memberPart
	})
	if lost != nil {
		return lost
	}
	if r.repairs() {
		return r.doubts.look(r.truth.layout, r.members, latest)
	}
	return nil
}

// each calls the agents concurrently. The first error ends it, and so does a lost member or an agent that does not
// answer. An agent without the attempt does not: it rejects the call itself with a better reason, and an agent drops an
// attempt before its rejection arrives.
func (r *flipRun) each(ctx context.Context, agents []int, call func(context.Context, Agent, int) error) error {
	ctx, done := r.board.guard(ctx, r.gone)
	group, calls := errgroup.WithContext(ctx)
	for _, i := range agents {
		group.Go(func() error { return call(calls, r.d.Agents[i], i) })
	}
	err := group.Wait()
	if why := done(); err != nil && why != nil {
		return why
	}
	return err
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
		return a.Prepare(ctx, r.requestFor(i))
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
		return v.staged == v.ranks, v.bytesDone + uint64(v.staged), errors.Join(v.failed, r.broken(latest))
	})
	r.out.Seconds.Stage = time.Since(began).Seconds()
	return err
}

// permitAll permits joiners before the others: a member of the active epoch that flips must find them ready.
func (r *flipRun) permitAll(ctx context.Context) error {
	joiners, others := r.truth.joinersFirst(r.agents)
	for _, agents := range [][]int{joiners, others} {
		err := r.each(ctx, agents, func(ctx context.Context, a Agent, _ int) error {
			err := a.Permit(ctx, r.header)
			if agentclient.RefusalCode(err) == tangramv1.Refusal_CODE_WRONG_PHASE {
				return nil // flipped already, this is a repeated call; the board has the outcome
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// untilFlipped continues after the permit until the outcome is known: forward if any rank flipped, back only if every
// agent reported that it did not flip.
func (r *flipRun) untilFlipped(ctx context.Context) error {
	r.tell("flip", verdict{}, time.Now())
	var cause error
	permitBy := time.Now().Add(r.d.Limits.Flip)
	for {
		if cause = r.permitAll(ctx); cause == nil || ctx.Err() != nil || time.Now().After(permitBy) {
			break
		}
		latest, _, _ := r.board.look()
		if lost := r.broken(latest); lost != nil {
			cause = lost
			break // of a member or a joiner: retries would use up the whole limit
		}
		if silent := new(waitError); agentclient.RefusalCode(cause) != tangramv1.Refusal_CODE_UNSPECIFIED || errors.As(cause, &silent) {
			break // a rejection, or a long absence of an agent; not a broken connection
		}
		r.record.Retries++
		_ = sleep(ctx, 200*time.Millisecond)
	}
	if cause == nil {
		cause = r.waitFlipped(ctx, r.d.Limits.Flip)
	}
	if cause == nil && len(r.follow) > 0 {
		return r.walk(ctx)
	}
	if cause == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted after the permit of attempt %d; the agents continue, so run again to learn the outcome: %w",
			r.header.Attempt, ctx.Err())
	}
	if errors.Is(cause, ErrNeedsRepair) {
		return fmt.Errorf("attempt %d is left to the repair: %w", r.header.Attempt, cause)
	}
	if len(r.follow) > 0 {
		return r.endRun(ctx, cause)
	}
	flipped, err := r.abortAll(ctx, fmt.Sprintf("permitted but not flipped: %v", cause))
	if err != nil {
		return fmt.Errorf("the outcome of attempt %d is unknown; run again when all agents respond: %w (first error: %w)", r.header.Attempt, err, cause)
	}
	if !flipped {
		if err := r.burned(ctx); err != nil {
			cause = errors.Join(cause, err)
		}
		return fmt.Errorf("attempt %d aborted after its permit, the old layout stays active: %w", r.header.Attempt, cause)
	}
	r.d.Log.Info("an agent flipped before the abort arrived, rolling forward", "attempt", r.header.Attempt)
	return r.waitFlipped(ctx, r.d.Limits.Outcome)
}

func (r *flipRun) waitFlipped(ctx context.Context, limit time.Duration) error {
	return r.board.until(ctx, "flip", limit, func(latest map[int]*tangramv1.StatusResponse) (bool, uint64, error) {
		v := judge(r.header.Attempt, r.members, latest)
		if v.flipped+v.beyond == v.ranks {
			return true, 0, nil
		}
		return false, uint64(v.flipped + v.beyond), errors.Join(v.failed, r.broken(latest))
	})
}

// retire waits for a step of every member in the new epoch, then makes the agents free the old pieces. Both may take
// several tries.
func (r *flipRun) retire(ctx context.Context) error {
	r.tell("retire", verdict{}, time.Now())
	err := r.board.until(ctx, "a step of the new epoch by every member", r.d.Limits.Retire,
		func(latest map[int]*tangramv1.StatusResponse) (bool, uint64, error) {
			v := judge(r.last.Attempt, r.members, latest)
			if v.stepped == v.ranks {
				r.measure(latest)
				r.record.KVMaxTokens, r.record.KVMeanTokens = reserved(r.members, latest)
				return true, 0, nil
			}
			return false, uint64(v.stepped), r.broken(latest)
		})
	if err != nil {
		return err
	}
	guarded, done := r.board.guard(ctx, r.broken)
	retries, err := r.d.retireAll(guarded, r.agents, r.last)
	r.record.Retries += retries
	if why := done(); err != nil && why != nil {
		return fmt.Errorf("retire attempt %d: %w", r.last.Attempt, why)
	}
	return err
}

// abort ends an attempt before its permit, when nothing can have flipped. If members are lost, a repair does it.
func (r *flipRun) abort(ctx context.Context, cause error) error {
	if errors.Is(cause, ErrNeedsRepair) {
		return fmt.Errorf("attempt %d is left to the repair: %w", r.header.Attempt, cause)
	}
	flipped, err := r.abortAll(ctx, cause.Error())
	if err == nil && flipped {
		err = fmt.Errorf("an agent reports that it flipped attempt %d, which was never permitted", r.header.Attempt)
	}
	if err == nil {
		err = r.burned(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w; the abort also failed: %w", cause, err)
	}
	r.d.Log.Warn("attempt aborted", "attempt", r.header.Attempt, "error", cause)
	return fmt.Errorf("attempt %d aborted, the old layout stays active: %w", r.header.Attempt, cause)
}

// burned records the abort. It also removes the record of an aborted first layout.
func (r *flipRun) burned(ctx context.Context) error {
	if r.flip.Kind == tangramv1.FlipKind_FLIP_KIND_FIRST {
		if err := r.d.unfound(ctx, r.header.Attempt, r.flip); err != nil {
			return err
		}
	}
	return r.d.burned(ctx, r.header.Attempt)
}

func (r *flipRun) abortAll(ctx context.Context, reason string) (flipped bool, err error) {
	joiners, members := r.truth.joinersFirst(r.agents)
	return r.d.abortInOrder(ctx, members, joiners, r.header, reason)
}
