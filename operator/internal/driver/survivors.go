package driver

import (
	"cmp"
	"fmt"
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// evidence is what is known of one member when the world may be broken. Of a member whose agent
// does not answer only id, why and gone mean something.
type evidence struct {
	id      string
	answers bool
	why     string // it does not answer
	gone    bool   // known to be over for good: it does not answer, and never will
	// epoch that the member stands on; 0: in no layout (a joiner, or an agent without memory of it).
	epoch       uint64
	attached    bool // its engine
	stopped     bool
	attempt     uint64 // that it is in
	leads       uint64 // epoch that the attempt leads to
	phase       tangramv1.Phase
	unreachable []string // members that its engine has no connection to
	missed      []Missed // what it found of others, for which it stands still
	fresh       bool     // its engine came back: its peers do not know yet where it is
	idle        bool     // it stands still, and its engine takes no turn: it may hang
	unlike      string   // its engine came back with other settings than the world's
}

// scene is what a fence is decided from. Pure data.
type scene struct {
	// newest layout that a member of the world stands on, and the one before it, where a member of
	// the same world still stands on that; ids in order of rank.
	epoch         uint64
	newest, older []string
	members       map[string]evidence // of both, and of an attempt's joiners
	// Of an earlier fence of this epoch or attempt; its survivors can only become fewer.
	fence *Fence
}

// Lost is a member that a fence left out.
type Lost struct {
	Member string `json:"member"`
	Why    string `json:"why"`
}

// ruling is what follows from a scene.
type ruling struct {
	running   []string // members that are not stopped yet: nothing may be decided
	unknown   []string // members that do not answer, or whose engine does not, and that are not known to be gone
	hung      []string // of these: the agent answers
	fromEpoch uint64   // of the unfinished attempt, or the epoch they stand on
	standOn   uint64   // epoch that the survivors stand on, after the outcome
	outcome   tangramv1.Outcome
	survivors []string // in order of rank
	lost      []Lost
	missed    []Missed
}

// survivors decides who goes on, and what becomes of an unfinished attempt (architecture, "Fence"):
// members that answer, whose engine is attached, and which reach each other (of equal sets one without engines that may hang);
// forward if one of them flipped. Nobody: the world is over, if anything is known at all.
func survivors(s scene) ruling {
	var r ruling
	evident := false // that the world cannot take another step
	for _, id := range union(s.newest, s.older) {
		e := s.members[id]
		switch {
		case s.fence != nil && !contains(s.fence.Survivors, id): // left out already; it can do nothing without the others
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
	// Some flipped, some did not.
	r.fromEpoch = s.epoch - 1
	for _, id := range r.survivors {
		if s.members[id].epoch == s.epoch || s.ruledForward() || s.left() != 0 {
			r.outcome = tangramv1.Outcome_OUTCOME_ROLL_FORWARD
			return r
		}
	}
	if s.ruledForward() || s.left() != 0 {
		return r // and nobody can
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

// hangs: the engine is at work for all that its agent knows, but every other member that answers stands still and says that it
// has no connection with it. So it takes no part in any step, like one that is cut off, and whatever it does once it wakes is
// refused.
func (s scene) hangs(id string) bool {
	if e := s.members[id]; !e.answers || e.stopped || !e.attached || e.epoch == 0 {
		return false
	}
	told := false
	for _, other := range union(s.newest, s.older) {
		e := s.members[other]
		if !e.answers || !e.attached || !e.stopped || e.fresh { // itself does not stand still
			continue
		}
		if !contains(e.unreachable, id) {
			return false
		}
		told = true
	}
	return told
}

// ruledForward: an earlier fence has said that the newest layout is the outcome.
func (s scene) ruledForward() bool {
	return s.fence != nil && s.fence.forward() && s.fence.Epoch == s.epoch
}

// forward is the attempt by which members came to the newest epoch, where others have not; 0: none.
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

// left is the attempt by which a member of the older layout left it for the newest, in which it has no part: it saw all
// words equal, so all go forward; 0: none.
func (s scene) left() uint64 {
	for _, id := range s.older {
		if e := s.members[id]; e.answers && e.epoch == 0 && e.phase == tangramv1.Phase_PHASE_FLIPPED && e.leads == s.epoch && !contains(s.newest, id) {
			return e.attempt
		}
	}
	return 0
}

// canStandOn says why a member cannot stand on the newest layout; empty: it does, or will by the outcome.
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

// choose the survivors among ids, which are in order of rank.
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
	// Of sets of one size the first is taken: one without engines that may hang.
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

// cut: either side says that it has no connection, and it is not for want of an address.
func (s scene) cut(a, b string) bool {
	if s.members[a].fresh || s.members[b].fresh {
		return false
	}
	return contains(s.members[a].unreachable, b) || contains(s.members[b].unreachable, a)
}

// mayGoOn: nothing that is known of the member alone leaves it out.
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
