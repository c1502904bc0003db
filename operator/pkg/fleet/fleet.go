// Package fleet decides, for one world, which pods to make, which may go, and which members
// the next transition shall lead to. It is level-based: it looks at what is so, never at what
// was decided before, so that it may be asked at any time and by anybody.
package fleet

import (
	"cmp"
	"slices"
)

// Pod of ranks, as the cluster and its agent tell it.
type Pod struct {
	Name    string
	UID     string
	Ordinal int
	// Deleting: somebody deleted it; it serves on until it has left or its grace period ends.
	Deleting bool
	// Ended: the pod did, or one of its containers does not run and does not come back in place.
	Ended bool
	// Replaceable: another may be tried in place of one that ended.
	Replaceable bool
	// NodeGoing: its node is cordoned or not ready.
	NodeGoing bool
	// DeletionCost: pods with a lower one leave first.
	DeletionCost int
	// Members: ids of its ranks, by device, once its agent answers and all their engines are
	// attached; nil before, and while one of them was left out of the world and is not released yet.
	Members []string
}

// World is what is so, and what is wanted.
type World struct {
	Wanted  int // pods
	Standby int // pods beyond these that are kept ready to join
	Pods    []Pod
	// Layout: pod UIDs of the members of the layout in force, by rank; empty: none.
	Layout []string
	// InForce: ids of those members, by rank. A rank that a repair has left out is in its pod under
	// another id from then on.
	InForce []string
	// Broken: members of the layout in force are lost or stand still; nothing but a repair changes that. What that means
	// is defined in one place, driver.Look.
	Broken bool
	// ShapeReached: the layout in force has the wanted mode, groups and places of experts.
	ShapeReached bool
	// Unfinished: somebody began an attempt and nobody is at work on it. Whoever leads the world ends it first.
	Unfinished bool
	// Busy: a transition runs. Only what cannot harm it is decided.
	Busy bool
}

// Deletion of a pod.
type Deletion struct {
	Name, UID string
	Why       string
	Now       bool // without a grace period: there is nothing left to drain
}

// Decision is what to do next. All of it may be done, in any order.
type Decision struct {
	Create  []int // ordinals
	StandBy []int // ordinals to create that are not waited for
	Delete  []Deletion
	// Target: ids of the members that the world shall have; nil: stay as it is.
	Target []string
	// Standing by are these pods (UIDs), ready or not. They are as wanted.
	Standing []string
	// Waiting for these pods, by name, before the wanted width can be reached.
	Waiting []string
	// Repair before anything else: the layout in force cannot go on as it is.
	Repair bool
	// Lost: pods (by UID) of the layout in force that are gone or have ended. Their members may not be missed yet by those who
	// were asked last: the repair looks again, and does nothing where nothing is broken.
	Lost []string
}

// Settled says that nothing is to be done or waited for.
func (d *Decision) Settled() bool {
	return len(d.Create)+len(d.StandBy)+len(d.Delete)+len(d.Target)+len(d.Waiting) == 0 && !d.Repair
}

// Decide what to do next.
func Decide(w World) Decision {
	f := sortOut(w)
	if w.Broken || len(f.lost) > 0 {
		// Who survives is not known yet, so that no pod may be given up; what is lost is replaced after it.
		return Decision{Repair: true, Lost: f.lost}
	}
	var d Decision
	f.replaceEnded(&d)
	// Members that nobody deletes, the first to leave last.
	slices.SortFunc(f.staying, leaveLater)
	keep := f.staying[:min(len(f.staying), w.Wanted)]
	need := w.Wanted - len(keep)
	slices.SortFunc(f.spare, joinSooner)
	spare := f.spare[:min(len(f.spare), need)]
	for range need - len(spare) {
		d.Create = append(d.Create, f.freeOrdinal())
	}
	rest := f.spare[len(spare):]
	standing := min(len(rest), w.Standby)
	for range w.Standby - standing {
		d.StandBy = append(d.StandBy, f.freeOrdinal())
	}
	for _, p := range rest[:standing] {
		d.Standing = append(d.Standing, p.UID)
	}
	if !w.Busy { // a running transition may still bring these in
		for _, p := range rest[standing:] {
			d.Delete = append(d.Delete, Deletion{Name: p.Name, UID: p.UID, Why: "none of its ranks is in the active layout, and fewer pods are desired"})
		}
	}
	joiners := 0
	for _, p := range spare {
		if !p.Ready() {
			d.Waiting = append(d.Waiting, p.Name)
		} else {
			joiners++
		}
	}
	complete := joiners == need
	switch {
	case w.Busy:
	case complete:
		f.lead(&d, append(slices.Clone(keep), spare...))
	case len(f.leaving) > 0 && len(keep) > 0:
		f.lead(&d, keep) // in time, and narrower for a while
	}
	return d
}

// Ready to join.
func (p *Pod) Ready() bool { return p.Members != nil && !p.Ended && !p.Deleting }

// joinSooner orders pods of no layout: who is ready comes first.
func joinSooner(a, b Pod) int {
	later := func(p Pod) int {
		switch {
		case !p.Ready():
			return 2
		case p.NodeGoing:
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(later(a), later(b)), cmp.Compare(a.Ordinal, b.Ordinal))
}

// sorted is a world's pods by what they are.
type sorted struct {
	w        World
	staying  []Pod // in the layout
	leaving  []Pod // in the layout, and being deleted by somebody
	spare    []Pod // in no layout: about to join, standing by, or left over
	ended    []Pod // in no layout, and of no use any more
	lost     []string
	ordinals map[int]bool // taken
}

func sortOut(w World) *sorted {
	f := &sorted{w: w, ordinals: map[int]bool{}}
	here := map[string]bool{}
	for _, p := range w.Pods {
		here[p.UID] = true
		f.ordinals[p.Ordinal] = true
		switch inLayout := slices.Contains(w.Layout, p.UID); {
		case inLayout && p.Ended && p.Members == nil:
			f.lost = append(f.lost, p.UID)
		case inLayout && p.Deleting:
			f.leaving = append(f.leaving, p)
		case inLayout:
			f.staying = append(f.staying, p)
		case p.Deleting: // on its way out; it only holds its ordinal
		case p.Ended && p.Replaceable:
			f.ended = append(f.ended, p)
		default:
			f.spare = append(f.spare, p)
		}
	}
	for _, uid := range w.Layout {
		if !here[uid] && !slices.Contains(f.lost, uid) {
			f.lost = append(f.lost, uid)
		}
	}
	return f
}

// leaveLater orders pods of the layout: the first to leave comes last.
func leaveLater(a, b Pod) int {
	going := func(p Pod) int {
		if p.NodeGoing {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(going(a), going(b)), cmp.Compare(b.DeletionCost, a.DeletionCost), cmp.Compare(a.Ordinal, b.Ordinal))
}

func (f *sorted) replaceEnded(d *Decision) {
	for _, p := range f.ended {
		d.Delete = append(d.Delete, Deletion{Name: p.Name, UID: p.UID, Why: "the pod ended and is not in the active layout; a new pod replaces it", Now: true})
	}
}

// freeOrdinal is the lowest one, and takes it.
func (f *sorted) freeOrdinal() int {
	o := 0
	for f.ordinals[o] {
		o++
	}
	f.ordinals[o] = true
	return o
}

// lead to a layout of exactly these pods, if the world is not there.
func (f *sorted) lead(d *Decision, pods []Pod) {
	var target []string
	for _, p := range pods {
		if len(p.Members) == 0 { // a member whose agent or engine does not answer now
			d.Waiting = append(d.Waiting, p.Name)
		}
		target = append(target, p.Members...)
	}
	there := f.w.ShapeReached && !f.w.Unfinished && len(target) == len(f.w.InForce) && !slices.ContainsFunc(target, func(id string) bool {
		return !slices.Contains(f.w.InForce, id)
	})
	if !there && len(pods) > 0 && len(d.Waiting) == 0 {
		d.Target = target
	}
}
