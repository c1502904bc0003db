package world

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// markOf holds what the controller acts on; two snapshots with one mark need no reconcile.
func markOf(s *Snapshot) string {
	lines := []string{fmt.Sprintf("%d %x", s.Epoch, s.Hash)}
	for uid, status := range s.Statuses {
		line := uid
		for _, r := range status.Ranks {
			line += fmt.Sprintf(" %s:%t:%t", r.GetMember().GetId(), r.InWorld, r.Engine.GetAttached())
		}
		lines = append(lines, line)
	}
	for uid := range s.Errors {
		lines = append(lines, uid+" unreachable")
	}
	slices.SortFunc(lines, cmp.Compare[string])
	return strings.Join(lines, "\n")
}
