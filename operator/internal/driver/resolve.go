package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"tangram.dev/operator/internal/agentclient"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// resolve sends the outcome to the agents of all survivors until each has answered. Then, best effort, it ends the
// attempt at agents without survivors (joiners). An agent without an unfinished attempt gets nothing.
func (d *Driver) resolve(ctx context.Context, t *truth, f *Fence) error {
	var mu sync.Mutex
	var failures []error
	var wait sync.WaitGroup
	survive, told, lost := map[int]bool{}, map[int]bool{}, make([]string, 0, len(f.Lost))
	for _, l := range f.Lost {
		lost = append(lost, l.Member)
	}
	for _, id := range f.Survivors {
		rank := t.ranks[id]
		survive[rank.agent] = true
		if told[rank.agent] || !unfinished(rank.status) { // another rank of the agent may be unfinished
			continue
		}
		told[rank.agent] = true
		transition := rank.status.GetTransition()
		outcome := tangramv1.Outcome_OUTCOME_ABORT
		if f.forward() && transition.Attempt == f.Attempt {
			outcome = tangramv1.Outcome_OUTCOME_ROLL_FORWARD
		}
		header := &tangramv1.Header{World: d.World, Epoch: transition.TargetEpoch - 1, Attempt: transition.Attempt}
		wait.Go(func() {
			_, err := backoff.Retry(ctx, func() (struct{}, error) {
				err := d.Agents[rank.agent].Resolve(ctx, header, outcome, "a fence removed members", lost...)
				if agentclient.RefusalCode(err) != tangramv1.Refusal_CODE_UNSPECIFIED {
					err = backoff.Permanent(err)
				}
				return struct{}{}, err
			}, backoff.WithBackOff(pauses(20*time.Millisecond, 500*time.Millisecond)), backoff.WithMaxElapsedTime(d.Limits.answer()))
			if err != nil {
				mu.Lock()
				failures = append(failures, err)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if err := errors.Join(failures...); err != nil {
		return fmt.Errorf("%w: send outcome %s to the survivors: %w", errAgain, f.Outcome, err)
	}
	for i, a := range t.agents {
		left := slices.ContainsFunc(a.GetRanks(), func(r *tangramv1.RankStatus) bool { return f.lost(r.GetMember().GetId()) })
		if survive[i] || left || !slices.ContainsFunc(a.GetRanks(), unfinished) { // a removed member's release ends it
			continue
		}
		transition := a.GetRanks()[slices.IndexFunc(a.GetRanks(), unfinished)].GetTransition()
		header := &tangramv1.Header{World: d.World, Epoch: transition.TargetEpoch - 1, Attempt: transition.Attempt}
		if _, err := d.abortAll(ctx, []int{i}, header, "a fence has ended the attempt"); err != nil {
			d.Log.Warn("cannot end the attempt of an agent outside the world", "attempt", transition.Attempt, "error", err)
		}
	}
	return nil
}

// open says whether a survivor's attempt could still flip by other ranks' votes, or is flipped by only some ranks of
// its agent. Such an attempt is decided only after it is held.
func (t *truth) open(r ruling) bool {
	return slices.ContainsFunc(r.survivors, func(id string) bool {
		rank := t.ranks[id].status
		return t.halfFlipped(id) || unfinished(rank) && !rank.GetTransition().GetHeld()
	})
}

// halfFlipped says whether only some ranks of the member's agent have flipped; the agent reports only one layout. This
// also happens if a held agent's unresponsive engine wakes up and flips. On HOLD the agent flips its other ranks.
func (t *truth) halfFlipped(id string) bool {
	r := t.ranks[id]
	some, others := false, false
	for _, rank := range t.agents[r.agent].GetRanks() {
		if rank.GetTransition().GetAttempt() != r.status.GetTransition().GetAttempt() {
			continue
		}
		some = some || rank.GetTransition().GetPhase() == tangramv1.Phase_PHASE_FLIPPED
		others = others || unfinished(rank)
	}
	return some && others
}

// hold makes the survivors hold their open attempts. It returns whether there were any: then only another query shows
// which ranks had flipped.
func (d *Driver) hold(ctx context.Context, t *truth, r ruling) bool {
	if !t.open(r) {
		return false
	}
	told := map[int]bool{}
	var wait sync.WaitGroup
	for _, id := range r.survivors {
		rank := t.ranks[id]
		transition := rank.status.GetTransition()
		if told[rank.agent] || !t.halfFlipped(id) && (!unfinished(rank.status) || transition.GetHeld()) {
			continue
		}
		told[rank.agent] = true
		header := &tangramv1.Header{World: d.World, Epoch: transition.TargetEpoch - 1, Attempt: transition.Attempt}
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, d.Limits.answer())
			defer cancel()
			if err := d.Agents[rank.agent].Resolve(ctx, header, tangramv1.Outcome_OUTCOME_HOLD, "a fence is about to be decided"); err != nil {
				d.Log.Warn("hold request failed", "agent", d.Agents[rank.agent].Address(), "attempt", transition.Attempt, "error", err)
			}
		})
	}
	wait.Wait()
	return true
}

// endWorld ends the world: no member survives, or the survivors cannot hold the model. All its members are released, so
// that their ranks can be in the next world.
func (d *Driver) endWorld(ctx context.Context, t *truth, was Membership, lost []Lost, record *Record, why string) error {
	members := union(idsOf(t.layout), idsOf(t.older))
	members = union(members, was.Members)
	if was.Fence != nil {
		for _, l := range was.Fence.Lost {
			members = union(members, []string{l.Member})
		}
	}
	for i, a := range t.agents { // joiners that may have flipped
		for _, r := range a.GetRanks() {
			if id := r.GetMember().GetId(); t.believed[i] && r.GetInWorld() || unfinished(r) {
				members = union(members, []string{id})
			}
		}
	}
	record.WorldEnded = why
	now, err := d.ended(ctx, was, members, lost, max(t.epoch(), was.Epoch))
	if err != nil {
		record.WorldEnded = ""
		return err
	}
	d.Log.Error("world ended, the next one starts from the checkpoint", "error", why, "epoch", t.epoch(), "members", members)
	t.record = now
	d.releaseOutcasts(ctx, t, true)
	return nil
}

// releaseOutcasts releases, best effort, answering ranks that were removed permanently. Their memory is freed, and they
// may join under another name. The next Repair retries failures.
func (d *Driver) releaseOutcasts(ctx context.Context, t *truth, worldEnds bool) {
	var wait sync.WaitGroup
	for i, a := range t.agents {
		var out []string
		for _, r := range a.GetRanks() {
			if id := r.GetMember().GetId(); t.mustGo(i, r) {
				out = append(out, id)
			}
		}
		if len(out) == 0 {
			continue
		}
		epoch := max(t.epoch(), t.record.Epoch)
		if !t.believed[i] {
			epoch = max(epoch, a.GetEpoch()+1) // it may have flipped alone, to the same epoch as the others' repair
			for _, r := range a.GetRanks() {   // or only some ranks flipped: it reports the lowest epoch
				if now := r.GetTransition(); now.GetPhase() == tangramv1.Phase_PHASE_FLIPPED {
					epoch = max(epoch, now.GetTargetEpoch()+1)
				}
			}
		}
		ends := worldEnds
		for _, id := range out {
			ends = ends || contains(t.record.Ended, id)
		}
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, d.Limits.answer())
			defer cancel()
			header := &tangramv1.Header{World: d.World, Epoch: epoch}
			if err := d.Agents[i].Release(ctx, header, out, ends, "removed from the world by a fence"); err != nil {
				d.Log.Warn("release request failed", "members", out, "error", err)
				return
			}
			d.Log.Info("members released", "members", out)
		})
	}
	wait.Wait()
}

// mustGo: the rank must be released. It is not in the active layout, and it was removed permanently or has another
// layout and no attempt in progress that could take it out.
func (t *truth) mustGo(agent int, r *tangramv1.RankStatus) bool {
	id := r.GetMember().GetId()
	if contains(t.record.Ended, id) {
		return true
	}
	for _, m := range t.layout.GetMembers() {
		if m.Id == id {
			return false
		}
	}
	if t.record.Fence.lost(id) {
		return true
	}
	if !r.GetInWorld() && unfinished(r) && r.GetTransition().GetTargetEpoch() < t.epoch() {
		return true // an earlier fence removed it from a first layout; no other agent reports that the world continued
	}
	if !r.GetInWorld() {
		return r.GetEngine().GetStopped() // a fence before the last one removed it, and its agent continued without it
	}
	return !t.believed[agent] || r.GetEngine().GetStopped() || !unfinished(r)
}
