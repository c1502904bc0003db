// Package fleet decides, for one world, which pods to create, which to delete, and which members the next transition
// should lead to. It is level-based: it uses only the current state, never earlier decisions, so any process may call
// it at any time.
package fleet

import (
	"cmp"
	"slices"
)

// Pod of ranks, as the cluster and its agent report it.
type Pod struct {
	Name    string
	UID     string
	Ordinal int
	// Deleting: it was deleted, and serves until it has left or its grace period ends.
	Deleting bool
	// Ended: the pod ended, or one of its containers stopped and does not restart in place.
	Ended bool
	// Replaceable: another pod may replace it once it has ended.
	Replaceable bool
	// NodeGoing: its node is cordoned or not ready.
	NodeGoing bool
	// DeletionCost: pods with a lower one leave first.
	DeletionCost int
	// Members: ids of its ranks, by device, if its agent answers and all their engines are attached; nil before, and
	// while a rank that was removed from the world is not released yet.
	Members []string
}

// World is the current and the desired state.
type World struct {
	Wanted  int // pods
	Standby int // extra pods that are kept ready to join
	Pods    []Pod
	// Layout: pod UIDs of the members of the active layout, by rank; empty: none.
	Layout []string
	// InForce: ids of those members, by rank. A rank that a repair removes gets another id in its pod.
	InForce []string
	// Broken: members of the active layout are lost or stopped, and only a repair changes that. driver.Look is the
	// single definition.
	Broken bool
	// ShapeReached: the active layout has the desired mode, groups and places of experts.
	ShapeReached bool
	// Unfinished: an attempt was started and no process works on it. The world's next leader ends it first.
	Unfinished bool
	// Busy: a transition runs. Only decisions that cannot harm it are made.
	Busy bool
}

// Deletion of a pod.
type Deletion struct {
	Name, UID string
	Why       string
	Now       bool // without a grace period: there is nothing left to drain
}

// Decision is the next actions. The order does not matter.
type Decision struct {
	Create  []int // ordinals
	StandBy []int // ordinals of standby pods to create, without waiting for them
	Delete  []Deletion
	// Target: ids of the members that the world should have; nil: no change.
	Target []string
	// Standing: UIDs of the standby pods, ready or not, up to the desired number.
	Standing []string
	// Waiting: names of the pods without which the desired width cannot be reached.
	Waiting []string
	// Repair first: the active layout cannot continue as it is.
	Repair bool
	// Lost: pods (by UID) of the active layout that are gone or have ended. The last observation may still list their
	// members. The repair observes again, and does nothing if nothing is broken.
	Lost []string
}

// Settled reports that there is nothing to do or to wait for.
func (d *Decision) Settled() bool {
	return len(d.Create)+len(d.StandBy)+len(d.Delete)+len(d.Target)+len(d.Waiting) == 0 && !d.Repair
}

// Decide returns the next actions.
func Decide(w World) Decision {
	f := sortOut(w)
	if w.Broken || len(f.lost) > 0 {
		// The survivors are not known yet, so no pod may be deleted. Lost pods are replaced after the repair.
		return Decision{Repair: true, Lost: f.lost}
	}
	var d Decision
	f.replaceEnded(&d)
	// Members that are not being deleted, the first to leave last.
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
	if !w.Busy { // a running transition may still join these
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
		f.lead(&d, keep) // before their grace period ends; the world is smaller for a while
	}
	return d
}

// Ready reports whether the pod can join.
func (p *Pod) Ready() bool { return p.Members != nil && !p.Ended && !p.Deleting }

// joinSooner orders pods in no layout: ready pods come first.
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

// sorted is a world's pods by state.
type sorted struct {
	w        World
	staying  []Pod // in the layout
	leaving  []Pod // in the layout, and being deleted
	spare    []Pod // in no layout: about to join, standing by, or surplus
	ended    []Pod // in no layout, and of no further use
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
		case p.Deleting: // terminating; it only occupies its ordinal
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

// freeOrdinal takes the lowest free ordinal.
func (f *sorted) freeOrdinal() int {
	o := 0
	for f.ordinals[o] {
		o++
	}
	f.ordinals[o] = true
	return o
}

// lead to a layout of exactly these pods, unless it is already active.
func (f *sorted) lead(d *Decision, pods []Pod) {
	var target []string
	for _, p := range pods {
		if len(p.Members) == 0 { // a member whose agent or engine does not answer
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
