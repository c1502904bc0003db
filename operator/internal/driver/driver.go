// Package driver takes a world through a plan, flip by flip (docs/architecture.md, section 4). It is level-based:
// each Apply first queries the agents, ends attempts that an earlier driver left open, and plans from the inventories.
// The flip in the agents is the outcome; the records in the store only permit.
package driver

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Agent is the control service of one pod's agent; agentclient.Client implements it.
type Agent interface {
	Address() string
	Status(ctx context.Context, world string) (*tangramv1.StatusResponse, error)
	Prepare(ctx context.Context, request *tangramv1.PrepareRequest) error
	Stage(ctx context.Context, header *tangramv1.Header) error
	Permit(ctx context.Context, header *tangramv1.Header) error
	Abort(ctx context.Context, header *tangramv1.Header, reason string) (flipped bool, err error)
	Retire(ctx context.Context, header *tangramv1.Header) error
	Resolve(ctx context.Context, header *tangramv1.Header, outcome tangramv1.Outcome, reason string, lost ...string) error
	Release(ctx context.Context, header *tangramv1.Header, members []string, worldEnds bool, reason string) error
	Watch(ctx context.Context, world string, each func(*tangramv1.StatusResponse)) error
}

// Limits are timeouts. Each comment names the wait, then the action after the timeout.
type Limits struct {
	Engines time.Duration // for engines to attach: nothing is started
	Stage   time.Duration // without a new byte while staging: abort
	Flip    time.Duration // from permit to flip: abort, unless one flipped
	Outcome time.Duration // for the agents' outcome after the permit: error, run again
	Retire  time.Duration // for a step of the new epoch: error, run again
	// For a broken world; 0: the value of DefaultLimits.
	Answer   time.Duration // of an agent: it counts as missing
	Stop     time.Duration // until every answering member is stopped: error, run again; at least twice Reattach
	Reattach time.Duration // for a detached engine of a live agent: its member is lost
}

// DefaultLimits suit processes on one machine as well as pods.
var DefaultLimits = Limits{Engines: 60 * time.Second, Stage: 60 * time.Second, Flip: 60 * time.Second,
	Outcome: 60 * time.Second, Retire: 60 * time.Second, Answer: 2 * time.Second, Stop: 15 * time.Second, Reattach: time.Second}

func orDefault(limit, otherwise time.Duration) time.Duration {
	if limit > 0 {
		return limit
	}
	return otherwise
}

func (l Limits) answer() time.Duration   { return orDefault(l.Answer, DefaultLimits.Answer) }
func (l Limits) reattach() time.Duration { return orDefault(l.Reattach, DefaultLimits.Reattach) }

// stop is longer than reattach; otherwise every repair would time out while it waits for an engine to attach again.
func (l Limits) stop() time.Duration {
	return max(orDefault(l.Stop, DefaultLimits.Stop), 2*l.reattach())
}

// Driver drives one world, one Apply at a time. Compare-and-swap separates two drivers of one store: one of them fails
// with store.ErrConflict.
type Driver struct {
	World  string
	Agents []Agent // all pods of the world and possible joiners; order = preference of joiners
	// Pods has the pod UIDs of Agents, for agents that do not answer. Without it, such an agent may have any member.
	Pods []string
	// Complete says that no process of the world is outside Agents. If all answer, a member that none has is dead.
	// Without Complete, a world of which no agent answers is never ended.
	Complete bool
	Store    store.Store
	Log      *slog.Logger
	Limits   Limits
	Hooks    Hooks
	// Abort ends an Apply on request; nil: never. Each Apply needs its own.
	Abort *Abort
	// Run is the maximum number of flips per permit (docs/architecture.md, 4.1); 0: DefaultRun, 1: one permit per flip.
	Run int

	late map[int]*question // unanswered queries to agents that timed out, by index of the agent
}

// Hooks are callbacks of an Apply. Each may be nil. They are called from one goroutine at a time.
type Hooks struct {
	// Planned is called after planning and before any action. It is not called for an empty plan. On an error the Apply
	// ends without any action.
	Planned  func(*Record) error
	Progress func(Event)
	FlipDone func(FlipRecord)
	// Continue is called between flips and during a run; false ends the Apply with ErrSuperseded.
	Continue func() bool
	// Save stores the record of an Apply that had a plan, also after an error.
	Save func(context.Context, *Record) error
}

// ErrSuperseded says that the desired layout changed: the running flip was completed, the rest of the plan not started.
var ErrSuperseded = errors.New("superseded: the desired layout changed")

// Wanted is the desired state of a world.
type Wanted struct {
	// Ranks of the world: its first members stay, others join in the order of Agents.
	Ranks int
	// Members that the world should have, by id, instead of Ranks.
	Members    []string
	Shape      layout.Shape
	SpareBanks uint32 // of a first layout; 0 means 1
	// FromCheckpoint: missing pieces come from the checkpoint, not from ranks that hold them (planner.Options).
	FromCheckpoint bool
	// PauseSteps: engines compute nothing from each flip's start to its end.
	PauseSteps bool
}

// Event reports the progress of a transition.
type Event struct {
	Flip       int     `json:"flip"` // from 1
	Flips      int     `json:"flips"`
	Kind       string  `json:"kind"`
	Epoch      uint64  `json:"epoch"`
	Phase      string  `json:"phase"` // prepare, stage, flip, retire
	BytesDone  uint64  `json:"bytes_done"`
	BytesTotal uint64  `json:"bytes_total"` // of this flip
	Rate       float64 `json:"bytes_per_second"`
}

func (d *Driver) progress(e Event) {
	if d.Hooks.Progress != nil {
		d.Hooks.Progress(e)
	}
}

// Apply brings the world to the desired state and returns the record of the transition. On an error the record covers
// the completed part. If the world is already as desired, the record has 0 flips.
func (d *Driver) Apply(ctx context.Context, want Wanted) (*Record, error) {
	if len(want.Members) > 0 {
		want.Ranks = len(want.Members)
	}
	record := &Record{World: d.World, Started: time.Now(), Ranks: want.Ranks, Mode: want.Shape.Mode.String()}
	ctx, done := d.Abort.guard(ctx)
	defer done()
	err := d.apply(ctx, want, record)
	if err != nil && d.Abort.asked() {
		err = fmt.Errorf("%w: %w", ErrAborted, err)
	}
	record.finish(err)
	if record.PlanHash != "" && d.Hooks.Save != nil { // a plan was made, so something may have happened
		if saving := d.Hooks.Save(context.WithoutCancel(ctx), record); saving != nil {
			err = errors.Join(err, fmt.Errorf("save the record: %w", saving))
		}
	}
	return record, err
}

func (d *Driver) apply(ctx context.Context, want Wanted, record *Record) error {
	if want.Ranks <= 0 {
		return fmt.Errorf("a world needs at least 1 rank, not %d", want.Ranks)
	}
	truth, err := d.settle(ctx, record)
	if err != nil {
		return err
	}
	if err := truth.sources(want); err != nil {
		return err
	}
	target, err := truth.choose(want)
	if err != nil {
		return err
	}
	if truth, err = d.waitEngines(ctx, truth, target); err != nil {
		return err
	}
	if err := truth.alike(target); err != nil {
		return fmt.Errorf("plan %d ranks, %v: %w", want.Ranks, want.Shape.Mode, err)
	}
	if want.Shape, err = truth.suit(want.Shape, target); err != nil {
		return fmt.Errorf("plan %d ranks, %v: %w", want.Ranks, want.Shape.Mode, err)
	}
	began := time.Now()
	result, err := planner.Plan(truth.input(d.World, target, want))
	if err != nil {
		return fmt.Errorf("plan %d ranks, %v: %w", want.Ranks, want.Shape.Mode, err)
	}
	record.planned(result, time.Since(began))
	d.Log.Info("transition planned", "flips", len(result.Plan.Flips), "from_epoch", result.Plan.FromEpoch,
		"expert_bytes", result.Plan.Cost.GetExpertBytes(), "bound", result.Plan.Cost.GetExpertBoundBytes(),
		"plan", record.PlanHash[:16])
	if len(result.Plan.Flips) > 0 && d.Hooks.Planned != nil {
		if err := d.Hooks.Planned(record); err != nil {
			return fmt.Errorf("the transition was not started: %w", err)
		}
	}
	for i := 0; i < len(result.Plan.Flips); {
		if i > 0 && (d.Abort.asked() || d.Hooks.Continue != nil && !d.Hooks.Continue()) {
			return errors.Join(fmt.Errorf("after flip %d of %d, at epoch %d: %w", i, len(result.Plan.Flips), truth.epoch(), ErrSuperseded),
				d.saveMembership(ctx, truth))
		}
		run := d.flipsFrom(result, i)
		run.d, run.truth, run.record = d, truth, record
		run.pause = want.PauseSteps && run.flip.Kind != tangramv1.FlipKind_FLIP_KIND_FIRST
		if err := run.do(ctx); err != nil {
			return fmt.Errorf("flip %d of %d (%s, epoch %d): %w", run.event.Flip, len(result.Plan.Flips), run.event.Kind, run.event.Epoch, err)
		}
		i += 1 + len(run.follow)
		run.told()
		if truth, err = run.after(ctx); err != nil {
			return fmt.Errorf("after flip %d of %d, at epoch %d: %w", i, len(result.Plan.Flips), run.flip.Epoch, err)
		}
	}
	return d.saveMembership(ctx, truth)
}

// waitEngines waits until the engines of all members that the chain needs are attached.
func (d *Driver) waitEngines(ctx context.Context, truth *truth, target []string) (*truth, error) {
	deadline := time.Now().Add(d.Limits.Engines)
	for {
		missing := truth.withoutEngine(target)
		if len(missing) == 0 {
			return truth, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no engine attached for %v after %v; start the engines or read their logs", missing, d.Limits.Engines)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
		next, err := d.observe(ctx)
		if err == nil {
			err = next.trouble()
		}
		if err != nil {
			return nil, err
		}
		truth = next
	}
}

func sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}

func kindName(k tangramv1.FlipKind) string {
	switch k {
	case tangramv1.FlipKind_FLIP_KIND_FIRST:
		return "first"
	case tangramv1.FlipKind_FLIP_KIND_JOIN:
		return "join"
	case tangramv1.FlipKind_FLIP_KIND_LAYOUT:
		return "layout"
	case tangramv1.FlipKind_FLIP_KIND_LEAVE:
		return "leave"
	case tangramv1.FlipKind_FLIP_KIND_REPAIR:
		return "repair"
	}
	return k.String()
}

func short(hash []byte) string { return hex.EncodeToString(hash) }

// sources rejects a shape that could not be repaired. In a layer whose ranks share experts, every rank holds a part of
// each expert, so a lost rank requires a readable checkpoint (docs/architecture.md, section 5).
func (t *truth) sources(want Wanted) error {
	if !want.Shape.Shares() {
		return nil
	}
	for _, a := range t.agents {
		if why := a.GetCheckpointError(); why != "" {
			return fmt.Errorf("mode %v is rejected: agent %s cannot read the checkpoint, which a repair would require: %s", want.Shape.Mode,
				a.GetAddress().GetAgent(), why)
		}
	}
	return nil
}

// input returns the planner's input: the current and the desired state.
func (t *truth) input(world string, target []string, want Wanted) planner.Input {
	return planner.Input{World: world, Revision: t.revision, Geometry: t.view, Current: t.layout, Target: target,
		Members: t.members(t.order), Shape: want.Shape, Options: planner.Options{SpareBanks: want.SpareBanks, FromCheckpoint: want.FromCheckpoint}}
}

// members returns these members in the planner's form.
func (t *truth) members(ids []string) []planner.Member {
	var out []planner.Member
	for _, id := range ids {
		rank := t.ranks[id]
		out = append(out, planner.Member{
			Member: rank.status.Member, Inventory: rank.status.Inventory, MemoryBytes: rank.status.MemoryBytes,
			KV: planner.KV{Pages: rank.status.Engine.GetKvPages(), BlockTokens: rank.status.Engine.GetKvBlockTokens(),
				ReservedTokens: rank.status.Engine.GetKvReservedTokens()},
		})
	}
	return out
}

// viewOf returns the view of a geometry.
func viewOf(g *tangramv1.Geometry) (*geometry.View, error) { return geometry.New(g) }
