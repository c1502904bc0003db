// Package keeper keeps a world in its desired state: it reads the state (internal/world), decides (pkg/fleet), and
// gives the world its next goal: a repair, a transition, a rebalance, or none during a back-off. It knows pods only as
// facts: the operator supplies the pods of a cluster, Local those of agents at known addresses.
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

// Wanted is the desired state of a world.
type Wanted struct {
	Pods    int
	Standby int // pods, as fleet.World has them
	Shape   layout.Shape
	// ShapeOn returns the shape for a number of ranks, instead of Shape; nil: Shape suits any. It is called for another
	// number than desired if a pod leaves before its replacement joins.
	ShapeOn func(ranks int) layout.Shape
	// Copies: replicas of experts may stay where a rebalance has put them, and only the mode and groups of Shape count.
	// Otherwise the replicas follow Shape.
	Copies     bool
	SpareBanks uint32 // of a first layout
	PauseSteps bool   // strategy Fast (driver.Wanted)
	Limits     driver.Limits
	// Intent is the desired state in one line. A transition that was begun under another intent is not continued.
	Intent string
	// Rebalance: experts follow the load.
	Rebalance bool
	// Held: no transition begins, only repairs.
	Held bool
}

// Facts are facts about pods.
type Facts struct {
	Pods []fleet.Pod
	// Agents: there are agents to query.
	Agents bool
	// Unknown: the active layout is not known, and its members may well serve.
	Unknown bool
}

// Recorders create the recorders of runs.
type Recorders interface {
	Repair(seen *world.Snapshot) world.Recorder
	Transition(seen *world.Snapshot, members []string) world.Recorder
	// Rebalance is called for a report that proposes a move.
	Rebalance(seen *world.Snapshot, members []string) world.Recorder
}

// Keeper keeps one world. It has no state and may be created for each round.
type Keeper struct {
	World  *world.World
	Wanted Wanted
	Record Recorders
	// PodOf returns the pod of a member, by UID as in Facts; nil: member.PodOf.
	PodOf func(id string) string
}

// Round is one observation, and the decision that follows from it.
type Round struct {
	Seen world.Snapshot
	// Layout has the pods of the active layout's members, by rank.
	Layout   []string
	Decision fleet.Decision
	// Decided is false if too little is known; then no action is allowed.
	Decided bool
	// Again is the time until the next round; 0: the next notification.
	Again time.Duration
}

// lookAgain is the poll interval while a repair is needed or runs.
const lookAgain = 500 * time.Millisecond

// Repair begins a needed repair immediately, unless a run is in progress or the back-off has not passed. It does not
// wait for facts, because the world does not serve meanwhile. It updates seen if a repair begins.
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

// Decide decides the next action after an observation. It begins nothing.
func (k *Keeper) Decide(seen world.Snapshot, facts Facts) Round {
	r := Round{Seen: seen, Layout: k.podsOf(seen.Layout)}
	if seen.Layout == nil && facts.Unknown {
		return r
	}
	if !seen.Looked {
		if facts.Agents { // their state is not known yet
			r.Again = time.Second
			return r
		}
		r.Layout = nil // the last agent has gone, and its layout with it
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
	for _, status := range seen.Statuses { // like driver.suit: the engines restrict the shape
		for _, rank := range status.GetRanks() {
			shape.AttentionByData = shape.AttentionByData || rank.GetEngine().GetAttentionDataOnly()
		}
	}
	return layout.Has(seen.Layout, shape)
}

// shape returns the desired shape for a number of ranks.
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

// Act begins the decided run, and updates the round: what runs now, and the time of the next round.
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

// rebalance begins a rebalance if the last load report proposed it.
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

// Ready returns the ids of an agent's ranks if it has all of them, all engines are attached, and none is an outcast
// under its present id; else nil.
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
