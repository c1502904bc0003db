package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"tangram.dev/operator/internal/agentclient"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// settle queries the agents and ends what an earlier driver left open. An attempt rolls forward if a rank flipped it;
// any other is aborted. It returns the world view without open attempts, or ErrNeedsRepair.
func (d *Driver) settle(ctx context.Context, record *Record) (*truth, error) {
	for range 8 { // a chain leaves one attempt; a few more for odd mixes
		truth, err := d.observe(ctx)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(truth.odd...); err != nil {
			return nil, err
		}
		if wrong := truth.trouble(); wrong == nil || !truth.evident(d.Complete) {
			switch ended, err := d.endRuns(ctx, truth); {
			case err != nil:
				return nil, err
			case ended:
				record.Retries++
				continue
			}
		}
		left := findLeftover(truth.agents)
		if left == nil || truth.layout != nil { // the record may be that of an open first layout
			if err := truth.trouble(); err != nil {
				return nil, err
			}
		}
		if left == nil {
			if err := truth.strangers(); err != nil {
				return nil, err
			}
			return truth, nil
		}
		record.Retries++
		d.Log.Warn("ending an unfinished attempt", "attempt", left.attempt, "flipped", left.anyFlipped)
		if err := d.end(ctx, truth, left); err != nil {
			return nil, fmt.Errorf("end the earlier attempt %d: %w", left.attempt, err)
		}
	}
	return nil, fmt.Errorf("agents are still in an attempt after 8 attempts were ended; check whether another driver is running")
}

// strangers rejects a first layout while members of an ended world have not been released.
func (t *truth) strangers() error {
	if t.layout != nil {
		return nil
	}
	for _, a := range t.agents {
		for _, r := range a.GetRanks() {
			if t.outcast(r) && r.GetInWorld() {
				return fmt.Errorf("%w: member %s is still in an ended world (epoch %d) and must be released first", ErrNeedsRepair,
					r.GetMember().GetId(), a.GetEpoch())
			}
		}
	}
	return nil
}

// part is a rank's role in the wait.
type part int

const (
	noPart       part = iota
	joinerPart        // no layout is active for it yet
	memberPart        // of an active layout
	repairedPart      // it is stopped, as expected
)

// brokenMembers reports a lost participant: its engine is detached, or is stopped although it should run.
func brokenMembers(latest map[int]*tangramv1.StatusResponse, partOf func(*tangramv1.StatusResponse, *tangramv1.RankStatus) part) error {
	for _, agent := range slices.Sorted(maps.Keys(latest)) {
		s := latest[agent]
		for _, rank := range s.GetRanks() {
			part, id := partOf(s, rank), rank.GetMember().GetId()
			switch gone := !rank.GetEngine().GetAttached(); {
			case part == joinerPart && gone:
				return fmt.Errorf("the engine of joining member %s is detached", id)
			case part != noPart && gone:
				return fmt.Errorf("%w: the engine of member %s is detached", ErrNeedsRepair, id)
			case part == memberPart && rank.GetEngine().GetStopped():
				return fmt.Errorf("%w: the engine of member %s is stopped", ErrNeedsRepair, id)
			}
		}
	}
	return nil
}

func (d *Driver) end(ctx context.Context, truth *truth, left *leftover) error {
	header := &tangramv1.Header{World: d.World, Epoch: left.targetEpoch - 1, Attempt: left.attempt}
	if !left.anyFlipped {
		// The proposing driver may be alive and permit the attempt while this abort is on its way. Then the abort would
		// withdraw a joiner, while members that had not received the attempt at our query, and get no abort, flip. Now
		// no permit can follow, and the next query shows an earlier permit.
		if err := d.burnProposal(ctx); err != nil {
			return err
		}
		var err error
		if truth, err = d.observe(ctx); err != nil {
			return err
		}
		now := findLeftover(truth.agents)
		if now == nil || now.attempt != left.attempt || now.anyFlipped {
			return nil // it ended meanwhile, or rolls forward: the caller queries again
		}
		left = now
		joiners, members := truth.joinersFirst(left.agents)
		flipped, err := d.abortInOrder(ctx, members, joiners, header, "a new driver found the attempt unfinished")
		if err != nil {
			return err
		}
		if !flipped {
			if left.targetEpoch == 1 {
				if err := d.unfound(ctx, left.attempt, &tangramv1.Flip{Epoch: left.targetEpoch, TargetHash: left.targetHash}); err != nil {
					return err
				}
			}
			return d.burned(ctx, left.attempt)
		}
	}
	// A flip is the outcome. Ranks that have not flipped yet will flip at their gate.
	board, stop := d.watch(ctx, left.agents, left.attempt)
	defer stop()
	lost := func(latest map[int]*tangramv1.StatusResponse) error {
		return brokenMembers(latest, func(_ *tangramv1.StatusResponse, r *tangramv1.RankStatus) part {
			if layout.RankOf(truth.layout, r.GetMember().GetId()) < 0 {
				return noPart
			}
			return memberPart
		})
	}
	err := board.until(ctx, "flip", d.Limits.Outcome, func(latest map[int]*tangramv1.StatusResponse) (bool, uint64, error) {
		open, flipped := 0, uint64(0)
		if len(latest) < len(left.agents) {
			return false, 0, nil
		}
		if err := lost(latest); err != nil {
			return false, 0, err
		}
		for _, s := range latest {
			for _, r := range s.Ranks {
				switch p := r.GetTransition().GetPhase(); {
				case r.GetTransition().GetAttempt() != left.attempt:
				case p == tangramv1.Phase_PHASE_FLIPPED:
					flipped++
				case r.GetEngine().GetStopped(): // a lost leaver: no rank waits for it
				case p != tangramv1.Phase_PHASE_IDLE:
					open++
				}
			}
		}
		return open == 0, flipped, nil
	})
	if err != nil {
		return err
	}
	guarded, done := board.guard(ctx, lost)
	_, err = d.retireAll(guarded, left.agents, header)
	if why := done(); err != nil && why != nil {
		err = fmt.Errorf("retire attempt %d: %w", left.attempt, why)
	}
	if err != nil {
		return err
	}
	return d.concluded(ctx, left.attempt)
}

// abortInOrder aborts at the members of the epoch before the joiners. A member's vote is latched until its step's
// result. A joiner has no vote, so it could withdraw while the members flip to an epoch that contains it. So joiners
// may withdraw only after no member has flipped and none will.
func (d *Driver) abortInOrder(ctx context.Context, members, joiners []int, header *tangramv1.Header, reason string) (bool, error) {
	if flipped, err := d.abortAll(ctx, members, header, reason); err != nil || flipped {
		return flipped, err
	}
	return d.abortAll(ctx, joiners, header, reason)
}

// errOneIsSilent: the outcome stays unknown while an agent does not answer, whatever the others report.
var errOneIsSilent = errors.New("another agent is unresponsive")

// abortAll sends every agent an abort until each has answered or one has timed out. It returns true if an agent
// flipped. A rank that has voted and lacks another's vote delays its answer for up to ten seconds, to receive the
// others' votes. That is useless if the rank with the missing vote is dead.
func (d *Driver) abortAll(ctx context.Context, agents []int, header *tangramv1.Header, reason string) (bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var flipped bool
	var failures []error
	var wait sync.WaitGroup
	for _, i := range agents {
		wait.Go(func() {
			_, err := backoff.Retry(ctx, func() (bool, error) {
				yes, err := d.Agents[i].Abort(ctx, header, reason)
				switch agentclient.RefusalCode(err) {
				case tangramv1.Refusal_CODE_UNSPECIFIED:
				default:
					if code := agentclient.RefusalCode(err); code == tangramv1.Refusal_CODE_STALE_ATTEMPT || code == tangramv1.Refusal_CODE_STALE_EPOCH {
						return d.knowsOutcome(ctx, i, header, &mu, &flipped)
					}
					return false, backoff.Permanent(err)
				}
				if err == nil && yes {
					mu.Lock()
					flipped = true
					mu.Unlock()
				}
				return yes, err
			}, backoff.WithBackOff(pauses(50*time.Millisecond, time.Second)), backoff.WithMaxElapsedTime(min(d.Limits.Outcome, d.Limits.answer())))
			if err != nil && !errors.Is(context.Cause(ctx), errOneIsSilent) {
				mu.Lock()
				failures = append(failures, err)
				mu.Unlock()
				if agentclient.RefusalCode(err) == tangramv1.Refusal_CODE_UNSPECIFIED {
					cancel(errOneIsSilent)
				}
			}
		})
	}
	wait.Wait()
	return flipped, errors.Join(failures...)
}

// knowsOutcome queries the outcome of an attempt that has ended for the agent.
func (d *Driver) knowsOutcome(ctx context.Context, agent int, header *tangramv1.Header, mu *sync.Mutex, flipped *bool) (bool, error) {
	s, err := d.Agents[agent].Status(ctx, d.World)
	if err != nil {
		return false, err
	}
	if s.Epoch > header.Epoch {
		mu.Lock()
		*flipped = true
		mu.Unlock()
		return true, nil
	}
	return false, nil
}

// retireAll retries until each agent has retired the attempt, and returns the number of retries.
func (d *Driver) retireAll(ctx context.Context, agents []int, header *tangramv1.Header) (int, error) {
	var mu sync.Mutex
	var retries int
	var failures []error
	var wait sync.WaitGroup
	for _, i := range agents {
		wait.Go(func() {
			_, err := backoff.Retry(ctx, func() (struct{}, error) {
				err := d.Agents[i].Retire(ctx, header)
				switch agentclient.RefusalCode(err) {
				case tangramv1.Refusal_CODE_UNSPECIFIED, tangramv1.Refusal_CODE_WRONG_PHASE:
					if err != nil {
						mu.Lock()
						retries++
						mu.Unlock()
					}
				default:
					err = backoff.Permanent(err)
				}
				return struct{}{}, err
			}, backoff.WithBackOff(pauses(5*time.Millisecond, 500*time.Millisecond)), backoff.WithMaxElapsedTime(d.Limits.Retire))
			if err != nil {
				mu.Lock()
				failures = append(failures, err)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if err := errors.Join(failures...); err != nil {
		return retries, fmt.Errorf("retire attempt %d: %w", header.Attempt, err)
	}
	return retries, nil
}
