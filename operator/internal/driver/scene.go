package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/member"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// ErrNeedsRepair says that a member of the active layout is lost or stopped, so that only a repair can change the
// world.
var ErrNeedsRepair = errors.New("the world needs a repair")

// trouble reports what is wrong with the members of the active layout; nil: nothing.
func (t *truth) trouble() error {
	if t.layout == nil {
		if t.record.Epoch == 0 {
			return nil
		}
		return fmt.Errorf("%w: the record has epoch %d with %d members, but no responding agent is one of them: %w", ErrNeedsRepair,
			t.record.Epoch, len(t.record.Members), errors.Join(append(t.errors, errors.New("members: "+strings.Join(t.record.Members, ", ")))...))
	}
	var wrong []error
	for _, m := range t.layout.Members {
		r, here := t.ranks[m.Id]
		engine := r.status.GetEngine()
		switch {
		case !here:
			wrong = append(wrong, fmt.Errorf("member %s of epoch %d is unresponsive: %w", m.Id, t.epoch(), t.whyMissing()))
		case !engine.GetAttached():
			wrong = append(wrong, fmt.Errorf("the engine of member %s is detached", m.Id))
		case engine.GetStopped():
			text := "the engine of member " + m.Id + " is stopped"
			for i, of := range missedBy(m.Id, engine, t.agents[r.agent].GetLayout().GetMembers()) {
				text += [...]string{": ", ", "}[min(i, 1)] + of.String()
			}
			wrong = append(wrong, errors.New(text))
		case t.epochOf(r) != t.epoch() && r.status.GetTransition().GetTargetEpoch() != t.epoch():
			wrong = append(wrong, fmt.Errorf("member %s is at epoch %d, but others are at epoch %d", m.Id, t.epochOf(r), t.epoch()))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNeedsRepair, errors.Join(wrong...))
}

// evident says whether the trouble is certain: the world cannot take another step, or no process can be in it. A
// missing answer is no proof, because the querying driver may be cut off. Without trouble the result is meaningless.
func (t *truth) evident(complete bool) bool { return t.lost(complete) || t.lags(complete) }

// lost says whether a member is dead or stopped, or no process can be in the world.
func (t *truth) lost(complete bool) bool {
	if t.layout == nil {
		return !slices.ContainsFunc(t.record.Members, func(id string) bool { return t.tells(id) || !t.nobodyHas(member.PodOf(id), complete) })
	}
	for _, m := range t.layout.Members {
		r, here := t.ranks[m.Id]
		engine := r.status.GetEngine()
		switch {
		case !here:
			if t.nobodyHas(member.PodOf(m.Id), complete) {
				return true
			}
		case engine.GetStopped(), !engine.GetAttached():
			return true
		}
	}
	return false
}

// lags says whether a member is outside the world and not joining it; without an active layout, whether all possible
// members are outside. Statuses from different moments of a flip look like that, too.
func (t *truth) lags(complete bool) bool {
	if t.layout == nil {
		return !slices.ContainsFunc(t.record.Members, func(id string) bool { return !t.tells(id) && !t.nobodyHas(member.PodOf(id), complete) })
	}
	for _, m := range t.layout.Members {
		r, here := t.ranks[m.Id]
		// With a later target epoch, it left by a flip that the others have not reported yet.
		if here && !r.status.GetInWorld() && r.status.GetTransition().GetTargetEpoch() <= t.epoch() {
			return true
		}
	}
	return false
}

// tells says whether an agent reports a member of this name. A rank that has left a world has another name.
func (t *truth) tells(id string) bool {
	_, yes := t.ranks[id]
	return yes
}

// nobodyHas says that a member that no agent reports is lost: its pod's agent answers without it, or does not exist.
func (t *truth) nobodyHas(pod string, complete bool) bool {
	for i, err := range t.errors {
		if err != nil && (t.pods == nil || t.pods[i] == "" || t.pods[i] == pod) {
			return false // it may have the member
		}
	}
	for _, a := range t.agents {
		for _, r := range a.GetRanks() {
			if member.PodOf(r.GetMember().GetId()) == pod {
				return true
			}
		}
	}
	return complete
}

// whyMissing joins the errors of agents that do not answer.
func (t *truth) whyMissing() error {
	if err := errors.Join(t.errors...); err != nil {
		return err
	}
	return errors.New("no agent has this member")
}

// epochOf returns the epoch of a rank's layout; 0: none.
func (t *truth) epochOf(r rankTruth) uint64 {
	if !r.status.GetInWorld() {
		return 0
	}
	return t.agents[r.agent].GetEpoch()
}

// scene returns the input of a ruling.
func (t *truth) scene(complete bool) scene {
	s := scene{epoch: t.epoch(), newest: idsOf(t.layout), older: idsOf(t.older), members: map[string]evidence{}}
	if t.layout == nil {
		s.epoch, s.newest = t.record.Epoch, t.record.Members
	}
	from := s.epoch
	if t.older != nil {
		from--
	}
	if f := t.record.Fence; f.of(from) && len(f.Survivors) > 0 {
		s.fence = f
		if f.forward() && f.Epoch == s.epoch+1 { // no flipped member is visible; it is the outcome anyway
			s.epoch, s.older = f.Epoch, s.newest
			s.newest = append([]string(nil), f.Survivors...)
			for _, l := range f.Lost {
				s.newest = append(s.newest, l.Member)
			}
		}
	}
	for _, id := range union(s.newest, s.older) {
		s.members[id] = t.evidence(id, complete)
	}
	return s
}

func (t *truth) evidence(id string, complete bool) evidence {
	r, here := t.ranks[id]
	if !here {
		return evidence{id: id, why: t.whyMissing().Error(), gone: t.gone(id, complete)}
	}
	status := t.agents[r.agent]
	engine, transition := r.status.GetEngine(), r.status.GetTransition()
	e := evidence{id: id, answers: true, epoch: t.epochOf(r), attached: engine.GetAttached(), stopped: engine.GetStopped(),
		attempt: transition.GetAttempt(), leads: transition.GetTargetEpoch(), phase: transition.GetPhase(), fresh: engine.GetAttachedAfterFlip() && !t.told[id], idle: t.idle[id]}
	e.unlike = t.unlike(id)
	members := status.GetLayout().GetMembers()
	e.missed = missedBy(id, engine, members)
	for _, rank := range engine.GetUnreachable() {
		if int(rank) < len(members) {
			e.unreachable = append(e.unreachable, members[rank].Id)
		}
	}
	return e
}

// gone: its place (pod and device) has another member by now, or no process is left that could have it.
func (t *truth) gone(id string, complete bool) bool {
	lost, _ := member.Parse(id)
	unanswered := false
	for _, a := range t.agents {
		unanswered = unanswered || a == nil
		for _, r := range a.GetRanks() {
			if now, other := member.Parse(r.GetMember().GetId()); other == nil && now.Place() == lost.Place() {
				return true
			}
		}
	}
	return complete && !unanswered
}

// hashOf returns the hash of the layout that the survivors have after a ruling.
func (t *truth) hashOf(r ruling) (string, error) {
	for _, l := range []*tangramv1.Layout{t.layout, t.older} {
		if l != nil && l.Epoch == r.standOn {
			hash, err := layout.Hash(l)
			return short(hash), err
		}
	}
	if f := t.record.Fence; f != nil && f.Epoch == r.standOn {
		return f.Hash, nil
	}
	return "", fmt.Errorf("no agent reports the layout of epoch %d", r.standOn)
}

// unfinished says that a rank is in an attempt that it has not flipped.
func unfinished(r *tangramv1.RankStatus) bool {
	p := r.GetTransition().GetPhase()
	return p > tangramv1.Phase_PHASE_IDLE && p != tangramv1.Phase_PHASE_FLIPPED
}
