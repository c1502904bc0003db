package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tangram.dev/operator/internal/store"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// A repair queries the agents several times, lookEvery apart. A cut between engines counts after cutsSettle without a
// change. A suspected engine may only be late, so it counts after hangSettle, or pullSettle if it may be in a flip:
// while it fetches KV it receives nothing, and a fetch from a source that has just died takes up to a second to fail.
const (
	lookEvery    = 20 * time.Millisecond
	cutsSettle   = 200 * time.Millisecond
	hangSettle   = 400 * time.Millisecond
	pullSettle   = 1500 * time.Millisecond
	repairTries  = 5
	firstRetry   = 100 * time.Millisecond
	longestRetry = 2 * time.Second
)

// errAgain marks errors that a retry may fix: another rank died meanwhile.
var errAgain = errors.New("the world changed during its repair")

// Repair restores a world that lost members or whose members are stopped. It fences the lost members, sends the
// survivors the outcome of the open attempt, and takes them to their own layout. For a healthy world the record has 0
// flips. A world without survivors is ended (Record.WorldEnded), and the next Apply starts it again. Removed members
// are released. Like Apply, it queries first, keeps no state, and may be called again after any error.
func (d *Driver) Repair(ctx context.Context) (*Record, error) {
	record := &Record{World: d.World, Kind: "repair", Started: time.Now()}
	pause := pauses(firstRetry, longestRetry)
	told := map[string]bool{}
	var err error
	for range repairTries {
		if err = d.repair(ctx, record, told); !errors.Is(err, errAgain) || ctx.Err() != nil {
			break
		}
		if apart := new(apartError); errors.As(err, &apart) {
			for _, id := range apart.fresh {
				told[id] = true
			}
		}
		record.Retries++
		d.Log.Warn("repair failed, trying again", "error", err)
		if sleep(ctx, pause.NextBackOff()) != nil {
			break
		}
	}
	record.finish(err)
	if (record.PlanHash != "" || record.WorldEnded != "") && d.Hooks.Save != nil {
		if saving := d.Hooks.Save(context.WithoutCancel(ctx), record); saving != nil {
			err = errors.Join(err, fmt.Errorf("save the record: %w", saving))
		}
	}
	return record, err
}

// repair is one try. told has members with reattached engines that no member reached, although an earlier try had sent
// their addresses.
func (d *Driver) repair(ctx context.Context, record *Record, told map[string]bool) error {
	w := &stillness{d: d, told: told, began: time.Now()}
	truth, _, err := w.wait(ctx)
	if err != nil {
		return err
	}
	if truth.trouble() == nil {
		d.releaseOutcasts(ctx, truth, false)
		return nil
	}
	// No proposal from before this fence may be permitted after it.
	if err := d.burnProposal(ctx); err != nil {
		return err
	}
	truth, r, err := w.wait(ctx)
	if err != nil {
		return err
	}
	if truth.trouble() == nil {
		return fmt.Errorf("%w: no repair is needed any longer", errAgain)
	}
	record.WaitSeconds += time.Since(w.began).Seconds()
	record.Lost, record.Missed = r.lost, r.missed
	began := time.Now()
	if len(r.survivors) == 0 {
		return d.endWorld(ctx, truth, truth.record, r.lost, record, "no member survives")
	}
	fence, err := d.fenceAndResolve(ctx, truth, r)
	record.FenceSeconds += time.Since(began).Seconds()
	if err != nil {
		return err
	}
	if truth, err = d.afterFence(ctx, fence); err != nil {
		return err
	}
	return d.mend(ctx, truth, fence, record)
}

func (d *Driver) fenceAndResolve(ctx context.Context, truth *truth, r ruling) (Membership, error) {
	hash, err := truth.hashOf(r)
	if err != nil {
		return Membership{}, err
	}
	attempt := truth.attemptOf(r)
	fence, err := d.fence(ctx, truth.record, r, attempt, hash)
	if err != nil {
		return fence, err
	}
	d.Log.Warn("fence recorded", "from_epoch", r.fromEpoch, "attempt", attempt, "outcome", fence.Fence.Outcome, "survivors", r.survivors, "lost", r.lost, "missed", r.missed)
	return fence, d.resolve(ctx, truth, fence.Fence)
}

// attemptOf returns the attempt that took some members to the newest epoch, else the highest unfinished one.
func (t *truth) attemptOf(r ruling) uint64 {
	var out, flipped uint64
	for _, id := range append(idsOf(t.layout), idsOf(t.older)...) {
		status := t.ranks[id].status // nil: the member does not answer
		transition := status.GetTransition()
		if transition.GetTargetEpoch() == r.fromEpoch+1 && transition.GetPhase() == tangramv1.Phase_PHASE_FLIPPED {
			flipped = max(flipped, transition.Attempt)
		}
		if unfinished(status) {
			out = max(out, transition.Attempt)
		}
	}
	if flipped != 0 {
		return flipped
	}
	if f := t.record.Fence; f.of(r.fromEpoch) && f.forward() && r.standOn == f.Epoch {
		return f.Attempt
	}
	return out
}

// afterFence returns the world view after the outcome was sent, and checks that all survivors have the fence's layout.
func (d *Driver) afterFence(ctx context.Context, fence Membership) (*truth, error) {
	truth, err := d.observe(ctx)
	if err != nil {
		return nil, err
	}
	if truth.record.version != fence.version {
		return nil, fmt.Errorf("membership is at version %d, but the fence was at version %d: %w", truth.record.version, fence.version, store.ErrConflict)
	}
	for _, id := range fence.Fence.Survivors {
		r := truth.ranks[id]
		if !r.status.GetEngine().GetAttached() { // also false if it does not answer
			return nil, fmt.Errorf("%w: survivor %s was lost too", errAgain, id)
		}
		if at := truth.epochOf(r); at != fence.Fence.Epoch || unfinished(r.status) {
			return nil, fmt.Errorf("%w: survivor %s is at epoch %d, %s, but the fence is at epoch %d", errAgain, id, at,
				r.status.GetTransition().GetPhase(), fence.Fence.Epoch)
		}
	}
	hash, err := layout.Hash(truth.layout)
	if err != nil {
		return nil, err
	}
	if short(hash) != fence.Fence.Hash {
		return nil, fmt.Errorf("%w: the survivors have layout %s, but the fence has layout %s", errAgain, short(hash), fence.Fence.Hash)
	}
	return truth, nil
}

// mend takes the survivors to their own layout.
func (d *Driver) mend(ctx context.Context, truth *truth, fence Membership, record *Record) error {
	began := time.Now()
	result, err := planner.Repair(planner.RepairInput{World: d.World, Revision: truth.revision, Geometry: truth.view,
		Current: truth.layout, Survivors: truth.members(fence.Fence.Survivors)})
	if err != nil {
		return d.endWorld(ctx, truth, fence, fence.Fence.Lost, record, fmt.Sprintf("the survivors cannot hold the model: %v", err))
	}
	record.planned(result, time.Since(began))
	record.Ranks, record.Mode = len(fence.Fence.Survivors), ""
	flip, target := result.Plan.Flips[0], result.Layouts[0]
	run := &flipRun{d: d, truth: truth, first: flip, flip: flip, target: target, record: record, fence: fence.version,
		event: Event{Flip: 1, Flips: 1, Kind: kindName(flip.Kind), Epoch: flip.Epoch}}
	if err := run.do(ctx); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("repair at epoch %d: %w", flip.Epoch, err)
		}
		return fmt.Errorf("%w: repair at epoch %d: %w", errAgain, flip.Epoch, err)
	}
	run.told()
	after, err := d.observe(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	if err := d.saveMembership(ctx, after); err != nil {
		return err
	}
	d.releaseOutcasts(ctx, after, false)
	return nil
}

// burnProposal aborts an intent that was not permitted, so that its driver can no longer permit it.
func (d *Driver) burnProposal(ctx context.Context) error {
	var intent Intent
	version, err := store.Load(ctx, d.Store, keyIntent, &intent)
	if err != nil || intent.State != Proposed {
		return err
	}
	intent.State = Aborted
	_, err = store.Save(ctx, d.Store, keyIntent, version, intent)
	return err
}

// stillness waits until a ruling can be made.
type stillness struct {
	d       *Driver
	told    map[string]bool // by member: its attached-after-flip state no longer counts
	began   time.Time
	missing map[string]time.Time // members without an attached engine, since
	cuts    string
	since   time.Time // of cuts
	turns   map[string]turns
}

// turns is the number of polls of a member's engine, and when it last grew.
type turns struct {
	taken uint64
	at    time.Time
}

// idle returns the stopped members whose engines have not polled for a while. They may only be late, so this is only a
// preference among survivors.
func (w *stillness) idle(t *truth) map[string]bool {
	now, seen, out := time.Now(), map[string]turns{}, map[string]bool{}
	for id, r := range t.ranks {
		engine := r.status.GetEngine()
		last := w.turns[id]
		if last.taken != engine.GetPolls() || !engine.GetStopped() {
			last = turns{engine.GetPolls(), now}
		}
		seen[id] = last
		out[id] = last.taken > 0 && now.Sub(last.at) >= cutsSettle/2
	}
	w.turns = seen
	return out
}

// wait returns when the world is healthy or a ruling is due: all answering members are stopped, detached engines had
// time to attach again, and the reported connections do not change.
func (w *stillness) wait(ctx context.Context) (*truth, ruling, error) {
	for {
		truth, err := w.d.observe(ctx)
		if err != nil {
			return nil, ruling{}, err
		}
		truth.told, truth.idle = w.told, w.idle(truth)
		trouble := truth.trouble()
		if trouble == nil {
			return truth, ruling{}, nil
		}
		if left := findLeftover(truth.agents); truth.layout == nil && left != nil {
			// A first layout: no rank serves, and agents may still flip it.
			if err := w.d.end(ctx, truth, left); err != nil {
				w.d.Log.Warn("repair left a first layout unfinished", "attempt", left.attempt, "error", err)
			}
		}
		scene := truth.scene(w.d.Complete)
		r := survivors(scene)
		r.missed = scene.missed(r.lost)
		ready, why := w.due(truth, r)
		if ready && w.d.hold(ctx, truth, r) {
			ready, why = false, "a repair in progress is being put on hold"
		}
		if ready {
			return truth, r, nil
		}
		if time.Since(w.began) > w.d.Limits.stop() {
			if r.outcome != tangramv1.Outcome_OUTCOME_UNSPECIFIED && !truth.open(r) {
				return truth, r, nil
			}
			return nil, r, fmt.Errorf("timed out after %v because %s; nothing was changed: %w", w.d.Limits.stop(), why, trouble)
		}
		if err := sleep(ctx, lookEvery); err != nil {
			return nil, r, err
		}
	}
}

// due says whether a ruling may be acted on, else what is missing.
func (w *stillness) due(t *truth, r ruling) (bool, string) {
	now := time.Now()
	if len(r.running) > 0 {
		return false, "these members have not stopped: " + strings.Join(r.running, ", ")
	}
	if r.outcome == tangramv1.Outcome_OUTCOME_UNSPECIFIED {
		return false, "the state of these members is unknown and they may still be running: " + strings.Join(r.unknown, ", ")
	}
	missing, cuts, settle := map[string]time.Time{}, []string{}, cutsSettle
	scene := t.scene(w.d.Complete)
	for _, id := range r.hung {
		cuts, settle = append(cuts, id+" is unresponsive"), max(settle, hangSettle)
		if scene.members[id].phase == tangramv1.Phase_PHASE_PERMITTED {
			settle = pullSettle
		}
	}
	waiting := ""
	for id, e := range scene.members {
		for _, other := range e.unreachable {
			if scene.cut(id, other) && scene.mayGoOn(id) && scene.mayGoOn(other) { // other cuts decide nothing
				cuts = append(cuts, id+" "+other)
			}
		}
		if !e.answers || e.attached || t.record.Fence.lost(id) {
			continue
		}
		if unfinished(t.ranks[id].status) {
			continue // its agent accepts no engine until the attempt ends, and only the ruling ends it
		}
		missing[id] = now
		if since, known := w.missing[id]; known {
			missing[id] = since
		}
		if now.Sub(missing[id]) < w.d.Limits.reattach() {
			waiting = "the engine of member " + id + " may attach again"
		}
	}
	w.missing = missing
	slices.Sort(cuts)
	if text := strings.Join(cuts, ","); text != w.cuts {
		w.cuts, w.since = text, now
	}
	switch {
	case waiting != "":
		return false, waiting
	case len(cuts) > 0 && now.Sub(w.since) < settle:
		return false, "the connections between engines changed a moment ago"
	case len(r.survivors) == 0 && len(r.unknown) > 0:
		return false, "no member survives yet, but these members may still respond: " + strings.Join(r.unknown, ", ")
	}
	return true, ""
}
