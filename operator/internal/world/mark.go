package world

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// markOfAgent returns a text of all values that a judgement uses; equal marks mean equal reports.
func markOfAgent(s *tangramv1.StatusResponse) string {
	line := fmt.Sprintf("%d %x %s", s.GetEpoch(), s.GetLayoutHash(), s.GetCheckpointError())
	for _, r := range s.GetRanks() {
		e, t := r.GetEngine(), r.GetTransition()
		line += fmt.Sprintf(" %s:%t:%t:%t:%d:%d:%t:%t", r.GetMember().GetId(), r.GetInWorld(), e.GetAttached(), e.GetStopped(), t.GetAttempt(),
			t.GetTargetEpoch(), t.GetPhase() > tangramv1.Phase_PHASE_IDLE, t.GetPhase() == tangramv1.Phase_PHASE_FLIPPED)
	}
	return line
}

// markOf returns a text of all values that the controller acts on; equal marks need no reconcile.
func markOf(s *Snapshot) string {
	lines := []string{fmt.Sprintf("%d %x %t %t", s.Epoch, s.Hash, s.Broken != nil, s.Unfinished)}
	for uid, status := range s.Statuses {
		moved := status.GetMoved()
		line := fmt.Sprint(uid, " ", status.GetCheckpointError(), status.GetMemory(), slices.Sorted(maps.Keys(moved.GetWeights())), slices.Sorted(maps.Keys(moved.GetKv())))
		for _, r := range status.Ranks {
			line += fmt.Sprintf(" %s:%t:%t:%t", r.GetMember().GetId(), r.InWorld, r.Engine.GetAttached(), r.Engine.GetStopped())
		}
		lines = append(lines, line)
	}
	for uid := range s.Errors {
		lines = append(lines, uid+" unreachable")
	}
	for id := range s.Outcasts {
		lines = append(lines, id+" outcast")
	}
	slices.SortFunc(lines, cmp.Compare[string])
	return strings.Join(lines, "\n")
}
