package driver

import (
	"fmt"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// verdict combines the reports of an attempt's ranks. It is pure, and every wait uses it.
type verdict struct {
	ranks, staged, flipped, stepped, over int
	beyond                                int // ranks in a later attempt: their run has continued
	bytesDone, bytesTotal                 uint64
	failed                                error // of a rank that failed before the flip
}

// judge counts over the members of an attempt: those of the target and, for LEAVE, the leavers. A rank without
// knowledge of the attempt is not counted.
func judge(attempt uint64, members map[string]bool, latest map[int]*tangramv1.StatusResponse) verdict {
	v := verdict{ranks: len(members)}
	for _, s := range latest {
		for _, r := range s.GetRanks() {
			stays, counted := members[r.GetMember().GetId()]
			t := r.GetTransition()
			if counted && t.GetAttempt() > attempt {
				v.beyond++
			}
			if !counted || t.GetAttempt() != attempt {
				continue
			}
			v.bytesDone += t.BytesDone
			v.bytesTotal += t.BytesTotal
			switch t.Phase {
			case tangramv1.Phase_PHASE_STAGED, tangramv1.Phase_PHASE_PERMITTED:
				v.staged++
			case tangramv1.Phase_PHASE_FLIPPED:
				v.staged++
				v.flipped++
				if !stays || t.StepsSinceFlip > 0 { // a leaver takes no step
					v.stepped++
				}
			case tangramv1.Phase_PHASE_FAILED:
				v.failed = fmt.Errorf("rank of member %s failed: %s", r.Member.Id, t.Error)
			case tangramv1.Phase_PHASE_IDLE:
				v.over++
				if s.Epoch >= t.TargetEpoch || (!stays && !r.InWorld) { // retired already, by an earlier call
					v.staged++
					v.flipped++
					v.stepped++
				}
			}
		}
	}
	return v
}

// membersOf returns the members of an attempt: true for those that stay in the target.
func membersOf(before, target *tangramv1.Layout) map[string]bool {
	out := map[string]bool{}
	for _, m := range before.GetMembers() {
		out[m.Id] = false
	}
	for _, m := range target.GetMembers() {
		out[m.Id] = true
	}
	return out
}

// leftover is an attempt that an earlier driver left open.
type leftover struct {
	attempt     uint64
	targetEpoch uint64
	targetHash  []byte
	anyFlipped  bool
	agents      []int
}

// findLeftover returns the highest open attempt of any rank.
func findLeftover(agents []*tangramv1.StatusResponse) *leftover {
	var out *leftover
	for i, a := range agents {
		for _, r := range a.GetRanks() {
			t := r.GetTransition()
			if t.GetPhase() <= tangramv1.Phase_PHASE_IDLE {
				continue
			}
			if out == nil || t.Attempt > out.attempt {
				out = &leftover{attempt: t.Attempt, targetEpoch: t.TargetEpoch, targetHash: t.TargetHash}
			}
			if t.Attempt != out.attempt {
				continue
			}
			out.anyFlipped = out.anyFlipped || t.Phase == tangramv1.Phase_PHASE_FLIPPED
			if n := len(out.agents); n == 0 || out.agents[n-1] != i {
				out.agents = append(out.agents, i)
			}
		}
	}
	if out != nil {
		for _, a := range agents {
			for _, r := range a.GetRanks() { // a rank that has retired it has flipped it
				t := r.GetTransition()
				out.anyFlipped = out.anyFlipped || t.GetAttempt() == out.attempt &&
					t.GetPhase() == tangramv1.Phase_PHASE_IDLE && a.GetEpoch() >= out.targetEpoch
			}
		}
	}
	return out
}
