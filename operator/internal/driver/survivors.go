package driver

import (
	"cmp"
	"fmt"
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// evidence is the knowledge about one member of a world that may be broken. If the member's agent does not answer, only
// id, why and gone have a meaning.
type evidence struct {
	id      string
	answers bool
	why     string // reason for no answer
	gone    bool   // does not answer and never will
	// epoch of the member's layout; 0: in no layout (a joiner, or an agent without memory of it).
	epoch       uint64
	attached    bool // its engine
	stopped     bool
	attempt     uint64 // its current attempt
	leads       uint64 // epoch that the attempt leads to
	phase       tangramv1.Phase
	unreachable []string // members that its engine has no connection to
	missed      []Missed // peers that its engine missed, the reason why it is stopped
	fresh       bool     // its engine attached after the flip, so its peers do not know its address
	idle        bool     // it is stopped and its engine does not poll: it may be unresponsive
	unlike      string   // setting in which its restarted engine differs from the world
}

// scene is the input of a fence decision. It is pure data.
type scene struct {
	// newest layout of any member of the world, and the one before it if a member of the same world still has it; ids
	// in order of rank.
	epoch         uint64
	newest, older []string
	members       map[string]evidence // of both layouts, and of an attempt's joiners
	// An earlier fence of this epoch or attempt. Its survivors can only become fewer.
	fence *Fence
}

// Lost is a member that a fence removed.
type Lost struct {
	Member string `json:"member"`
	Why    string `json:"why"`
}

// ruling is the decision that follows from a scene.
type ruling struct {
	running   []string // members that are not stopped yet: no decision is possible
	unknown   []string // members without an answer of agent or engine, and not known to be gone
	hung      []string // the unknown members whose agent answers
	fromEpoch uint64   // of the unfinished attempt, else the members' epoch
	standOn   uint64   // epoch of the survivors after the outcome
	outcome   tangramv1.Outcome
	survivors []string // in order of rank
	lost      []Lost
	missed    []Missed
}

// survivors decides the survivors, and the outcome of an unfinished attempt (docs/architecture.md, "Fence"). Survivors
// answer, have an attached engine, and reach each other; of equal sets, one whose engines poll is preferred. The
// outcome is forward if one of them flipped. Without survivors the world has ended, provided that the loss is certain.
func survivors(s scene) ruling {
	var r ruling
	evident := false // the world certainly cannot take another step
	for _, id := range union(s.newest, s.older) {
		e := s.members[id]
		switch {
		case s.fence != nil && !contains(s.fence.Survivors, id): // removed already, and powerless alone
		case e.gone:
			evident = true
		case !e.answers:
			r.unknown = append(r.unknown, id)
		case s.hangs(id):
			r.unknown, r.hung = append(r.unknown, id), append(r.hung, id)
		case e.epoch != 0 && !e.stopped:
			r.running = append(r.running, id)
		case contains(s.newest, id):
			evident = true // stopped, or in no layout: no step is complete without it
		}
	}
	if len(r.running) > 0 || !evident {
		return r
	}
	forward := s.forward()
	r.fromEpoch, r.standOn, r.outcome = s.epoch, s.epoch, tangramv1.Outcome_OUTCOME_ABORT
	r.survivors, r.lost = s.choose(s.newest, func(e evidence) string { return s.canStandOn(e, forward) })
	if len(s.older) == 0 {
		return r
	}
	// Some members flipped, others did not.
	r.fromEpoch = s.epoch - 1
	for _, id := range r.survivors {
		if s.members[id].epoch == s.epoch || s.ruledForward() || s.left() != 0 {
			r.outcome = tangramv1.Outcome_OUTCOME_ROLL_FORWARD
			return r
		}
	}
	if s.ruledForward() || s.left() != 0 {
		return r // forward, but no member can roll forward
	}
	r.standOn = s.epoch - 1
	r.survivors, r.lost = s.choose(s.older, func(e evidence) string {
		if e.epoch != s.epoch-1 {
			return fmt.Sprintf("the member is not at epoch %d, where the others stay", s.epoch-1)
		}
		return ""
	})
	return r
}

// hangs says that a member is unresponsive: its agent reports a running engine, but every other member that is stopped
// reports no connection to it. Like a member that is cut off, it takes no part in any step, and its actions after it
// wakes up are rejected.
func (s scene) hangs(id string) bool {
	if e := s.members[id]; !e.answers || e.stopped || !e.attached || e.epoch == 0 {
		return false
	}
	told := false
	for _, other := range union(s.newest, s.older) {
		e := s.members[other]
		if !e.answers || !e.attached || !e.stopped || e.fresh { // no witness
			continue
		}
		if !contains(e.unreachable, id) {
			return false
		}
		told = true
	}
	return told
}

// ruledForward says that an earlier fence decided the newest layout as the outcome.
func (s scene) ruledForward() bool {
	return s.fence != nil && s.fence.forward() && s.fence.Epoch == s.epoch
}

// forward returns the attempt by which some members, but not all, reached the newest epoch; 0: none.
func (s scene) forward() uint64 {
	if s.ruledForward() {
		return s.fence.Attempt
	}
	for _, id := range s.newest {
		if e := s.members[id]; e.epoch == s.epoch && e.phase == tangramv1.Phase_PHASE_FLIPPED {
			return e.attempt
		}
	}
	return s.left()
}

// left returns the attempt by which a member of the older layout left the world. It saw all votes equal, so all roll
// forward; 0: none.
func (s scene) left() uint64 {
	for _, id := range s.older {
		if e := s.members[id]; e.answers && e.epoch == 0 && e.phase == tangramv1.Phase_PHASE_FLIPPED && e.leads == s.epoch && !contains(s.newest, id) {
			return e.attempt
		}
	}
	return 0
}

// canStandOn says why a member cannot have the newest layout; empty: it has it, or gets it by the outcome.
func (s scene) canStandOn(e evidence, forward uint64) string {
	if e.epoch == s.epoch {
		return ""
	}
	staged := e.phase == tangramv1.Phase_PHASE_STAGED || e.phase == tangramv1.Phase_PHASE_PERMITTED
	if forward == 0 || e.attempt != forward || !staged {
		return fmt.Sprintf("the member is at epoch %d and has no attempt that leads to epoch %d (attempt %d, %s)", e.epoch, s.epoch, e.attempt, e.phase)
	}
	return ""
}

// choose selects the survivors among ids, which are in order of rank.
func (s scene) choose(ids []string, refuse func(evidence) string) (out []string, lost []Lost) {
	var fit []string
	why := map[string]string{}
	for _, id := range ids {
		e := s.members[id]
		switch {
		case e.gone:
			why[id] = "the member no longer exists: " + e.why
		case !e.answers:
			why[id] = "its agent is unresponsive: " + e.why
		case !e.attached:
			why[id] = "its engine is not attached"
		case e.unlike != "":
			why[id] = e.unlike
		case s.hangs(id):
			why[id] = "its engine is unresponsive: its agent responds, but no other engine receives its heartbeats"
		case s.fence != nil && !contains(s.fence.Survivors, id):
			why[id] = fmt.Sprintf("the fence of epoch %d, attempt %d removed the member", s.fence.FromEpoch, s.fence.Attempt)
		default:
			why[id] = refuse(e)
		}
		if why[id] == "" {
			fit = append(fit, id)
		}
	}
	// The first of the largest sets is taken. This order prefers members whose engines poll.
	slices.SortStableFunc(fit, func(a, b string) int { return cmp.Compare(bit(s.members[a].idle), bit(s.members[b].idle)) })
	whole := largestWhole(len(fit), func(i, j int) bool { return s.cut(fit[i], fit[j]) })
	if len(whole) == 1 && len(ids) >= 3 {
		why[fit[whole[0]]] = fmt.Sprintf("the member is the only survivor of %d", len(ids))
		whole = nil
	}
	for _, i := range whole {
		out = append(out, fit[i])
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(slices.Index(ids, a), slices.Index(ids, b)) })
	for _, id := range ids {
		if contains(out, id) {
			continue
		}
		if why[id] == "" {
			why[id] = "its engine cannot reach all survivors"
		}
		lost = append(lost, Lost{Member: id, Why: why[id]})
	}
	return out, lost
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// cut says that one side reports no connection, and both sides know the other's address.
func (s scene) cut(a, b string) bool {
	if s.members[a].fresh || s.members[b].fresh {
		return false
	}
	return contains(s.members[a].unreachable, b) || contains(s.members[b].unreachable, a)
}

// mayGoOn says that no knowledge of the member alone excludes it.
func (s scene) mayGoOn(id string) bool {
	e := s.members[id]
	return e.attached && e.unlike == "" && (s.fence == nil || contains(s.fence.Survivors, id))
}

func contains(ids []string, id string) bool {
	for _, i := range ids {
		if i == id {
			return true
		}
	}
	return false
}

func union(a, b []string) []string {
	out := append([]string(nil), a...)
	for _, id := range b {
		if !contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}
