// Package keeper keeps a world as wanted: it reads what is so (internal/world), asks what follows (pkg/fleet), and gives the
// world its next goal: a repair, a transition, a rebalance, or none before a pause is over. It knows pods as facts only: the
// operator tells it of those of a cluster, Local of the agents behind some addresses.
package keeper

import (
	"time"

	"tangram.dev/operator/internal/balance"
	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/member"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Wanted is what a world shall be.
type Wanted struct {
	Pods    int
	Standby int // pods, as fleet.World has them
	Shape   layout.Shape
	// ShapeOn so many ranks, instead of Shape; nil: Shape suits any. It is asked for a width that is not the wanted one where a pod leaves before another can come.
	ShapeOn func(ranks int) layout.Shape
	// Copies of experts may be wherever a rebalance has put them: only the mode and the groups of Shape count. Else they go, or come, as
	// Shape has it.
	Copies     bool
	SpareBanks uint32 // of a first layout
	PauseSteps bool   // strategy Fast (driver.Wanted)
	Limits     driver.Limits
	// Intent in one line: a transition that was begun under another one is not gone on with.
	Intent string
	// Rebalance: experts follow the load.
	Rebalance bool
	// Held: no transition is begun; repairs are.
	Held bool
}

// Facts about pods.
type Facts struct {
	Pods []fleet.Pod
	// Agents: there are some that can be asked.
	Agents bool
	// Unknown: which layout is in force is not, and members of one may well serve.
	Unknown bool
}

// Recorders make what keeps a run.
type Recorders interface {
	Repair(seen *world.Snapshot) world.Recorder
	Transition(seen *world.Snapshot, members []string) world.Recorder
	// Rebalance is called for a report that proposes a move.
	Rebalance(seen *world.Snapshot, members []string) world.Recorder
}

// Keeper of one world. It remembers nothing: it may be made anew for each round.
type Keeper struct {
	World  *world.World
	Wanted Wanted
	Record Recorders
	// PodOf a member, as Facts name pods by UID; nil: member.PodOf.
	PodOf func(id string) string
}

// Round is one look, and what follows from it.
type Round struct {
	Seen world.Snapshot
	// Layout: pods of the members of the layout in force, by rank.
	Layout   []string
	Decision fleet.Decision
	// Decided is false where too little is known: then nothing may be done.
	Decided bool
	// Again: how long until another look is due by itself; 0: when something is told.
	Again time.Duration
}

// lookAgain while a repair is to be begun or runs.
const lookAgain = 500 * time.Millisecond

// Repair at once if the world needs it, unless a run is under way or the back-off says to wait. Nobody is served until it is
// done: it waits for no facts. seen is read again where it begins.
func (k *Keeper) Repair(seen *world.Snapshot) {
	if seen.NeedsRepair() {
		k.repair(seen)
	}
}

func (k *Keeper) repair(seen *world.Snapshot) {
	if k.World.Begin(world.Goal{Repair: true, Limits: k.Wanted.Limits, Recorder: k.Record.Repair(seen)}) {
		*seen = k.World.Snapshot()
	}
}

// Decide what follows from what was seen. Nothing is begun.
func (k *Keeper) Decide(seen world.Snapshot, facts Facts) Round {
	r := Round{Seen: seen, Layout: k.podsOf(seen.Layout)}
	if seen.Layout == nil && facts.Unknown {
		return r
	}
	if !seen.Looked {
		if facts.Agents { // what they hold is not known
			r.Again = time.Second
			return r
		}
		r.Layout = nil // the last agent went, if there was one; its layout with it
	}
	k.World.Intend(k.Wanted.Intent)
	var ids []string
	for _, m := range seen.Layout.GetMembers() {
		ids = append(ids, m.Id)
	}
	r.Decided = true
	r.Decision = fleet.Decide(fleet.World{Wanted: k.Wanted.Pods, Standby: k.Wanted.Standby, Pods: facts.Pods, Layout: r.Layout, InForce: ids, Broken: seen.Broken != nil,
		ShapeReached: k.reached(&seen), Unfinished: seen.Unfinished, Busy: seen.Running != nil})
	return r
}

func (k *Keeper) reached(seen *world.Snapshot) bool {
	shape := k.shape(len(seen.Layout.GetMembers()))
	if k.Wanted.Copies {
		return layout.Follows(seen.Layout, shape)
	}
	for _, status := range seen.Statuses { // as the driver makes of it what the engines compute
		for _, rank := range status.GetRanks() {
			shape.AttentionByData = shape.AttentionByData || rank.GetEngine().GetAttentionDataOnly()
		}
	}
	return layout.Has(seen.Layout, shape)
}

// shape that is wanted on so many ranks.
func (k *Keeper) shape(ranks int) layout.Shape {
	if k.Wanted.ShapeOn != nil {
		return k.Wanted.ShapeOn(ranks)
	}
	return k.Wanted.Shape
}

func (k *Keeper) podsOf(l *tangramv1.Layout) []string {
	podOf := k.PodOf
	if podOf == nil {
		podOf = member.PodOf
	}
	var out []string
	for _, m := range l.GetMembers() {
		out = append(out, podOf(m.Id))
	}
	return out
}

// Act begins what a round has decided, and notes in it what runs by then and when to look again.
func (k *Keeper) Act(r *Round) {
	switch {
	case !r.Decided:
	case r.Decision.Repair:
		k.repair(&r.Seen)
		r.Again = max(time.Until(r.Seen.NextRepair), lookAgain)
	case k.Wanted.Held:
	case r.Decision.Target != nil:
		if r.Again = max(0, time.Until(r.Seen.NextTry)); r.Again == 0 {
			k.transition(r)
		}
	case r.Decision.Settled():
		k.rebalance(r)
	}
}

func (k *Keeper) transition(r *Round) {
	goal := world.Goal{Members: r.Decision.Target, Shape: k.shape(len(r.Decision.Target)), SpareBanks: k.Wanted.SpareBanks, PauseSteps: k.Wanted.PauseSteps, Limits: k.Wanted.Limits,
		Recorder: k.Record.Transition(&r.Seen, r.Decision.Target)}
	if r.Seen.Layout == nil && goal.Shape.Replicates() { // a first layout reads each byte once; the next round replicates
		goal.Shape.Placement = nil
	}
	if k.World.Begin(goal) {
		r.Seen = k.World.Snapshot()
	}
}

// rebalance if the last look at the load proposed it.
func (k *Keeper) rebalance(r *Round) {
	report := r.Seen.Balance
	if !k.Wanted.Rebalance || report == nil || report.Outcome != balance.Move || r.Seen.Running != nil || r.Seen.Layout == nil {
		return
	}
	if r.Again = max(0, time.Until(r.Seen.NextRebalance)); r.Again > 0 {
		return
	}
	var members []string
	for _, m := range r.Seen.Layout.Members {
		members = append(members, m.Id)
	}
	if k.World.Begin(world.Goal{Rebalance: report, Members: members, Shape: k.shape(len(members)), SpareBanks: k.Wanted.SpareBanks,
		PauseSteps: k.Wanted.PauseSteps, Limits: k.Wanted.Limits, Recorder: k.Record.Rebalance(&r.Seen, members)}) {
		r.Seen = k.World.Snapshot()
	}
}

// Ready gives the ids of an agent's ranks once it has all of them, the engines of all are attached, and those that were left out
// of the world have another id; nil before.
func Ready(s *tangramv1.StatusResponse, ranks int, outcasts map[string]time.Time) []string {
	if len(s.GetRanks()) != ranks {
		return nil
	}
	var ids []string
	for _, r := range s.Ranks {
		if !ready(r, outcasts) {
			return nil
		}
		ids = append(ids, r.GetMember().GetId())
	}
	return ids
}

func ready(r *tangramv1.RankStatus, outcasts map[string]time.Time) bool {
	_, out := outcasts[r.GetMember().GetId()]
	return !out && r.GetEngine().GetAttached()
}
