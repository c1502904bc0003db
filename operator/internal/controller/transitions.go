package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/balance"
	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/layout"

	api "tangram.dev/api/v1alpha2"
)

// recorder records one transition as a LayoutTransition. It notes the driver's reports immediately, and its own
// goroutine writes them, so no flip waits for the API server. Only the first write blocks: without it no transition
// begins.
type recorder struct {
	r       *Reconciler
	d       *api.MoEDeployment // copy from the start of the transition
	kind    api.TransitionKind
	from    api.TransitionEnd
	what    string
	members []string
	// rebalance is the one that this transition carries out; nil: none.
	rebalance *balance.Report

	mu     sync.Mutex
	object *api.LayoutTransition // nil until there is a plan
	dirty  bool
	done   chan struct{}
	wait   sync.WaitGroup
}

// recorders creates the recorders for a deployment's transitions and repairs.
type recorders struct {
	r      *Reconciler
	d      *api.MoEDeployment
	wanted string // the desired mode, in words
}

// Transition implements keeper.Recorders.
func (x recorders) Transition(seen *world.Snapshot, members []string) world.Recorder {
	d, l, wanted := x.d, seen.Layout, x.wanted
	if l == nil {
		return x.r.newRecorder(d, api.KindStart, seen, fmt.Sprintf("start with %d ranks %s", len(members), wanted), members)
	}
	mode := modeOf(d, l)
	kind, what := api.KindScale, fmt.Sprintf("%d ranks %s -> %d ranks %s", len(l.Members), inWords(mode, layout.RangesOf(l)), len(members), wanted)
	if len(l.Members) == len(members) {
		kind = api.KindModeSwitch
		if mode == wantedMode(d) && (mode != api.ModeHybrid || hybrid(d, l)) {
			kind, what = api.KindReplace, fmt.Sprintf("replace pods, %d ranks %s", len(members), wanted)
		}
	}
	return x.r.newRecorder(d, kind, seen, what, members)
}

// writeEvery is the minimum time between writes: each one loads the API server and watchers, and only people read it.
const writeEvery = time.Second

func (r *Reconciler) newRecorder(d *api.MoEDeployment, kind api.TransitionKind, seen *world.Snapshot, what string, members []string) *recorder {
	return &recorder{r: r, d: d.DeepCopy(), kind: kind, from: fromOf(d, seen), what: what, members: members, done: make(chan struct{})}
}

// fromOf is the layout before a transition, without its hash, which the driver reports.
func fromOf(d *api.MoEDeployment, seen *world.Snapshot) api.TransitionEnd {
	return api.TransitionEnd{Epoch: int64(seen.Epoch), Ranks: int32(len(seen.Layout.GetMembers())), Mode: modeOf(d, seen.Layout)}
}

// transitionName sorts by time: NAME-DATE-TIME-MILLISECONDS.
func transitionName(d *api.MoEDeployment, started time.Time) string {
	return d.Name + "-" + strings.ReplaceAll(started.UTC().Format("20060102-150405.000"), ".", "-")
}

// Planned creates the object. A transition that cannot be recorded does not begin.
func (c *recorder) Planned(record *driver.Record) error {
	name := transitionName(c.d, record.Started)
	object := &api.LayoutTransition{ObjectMeta: meta(c.d, name, "transition"), Spec: transitionSpec(c.d, record, c.kind, c.from, api.Mode(record.Mode))}
	object.Spec.Summary, object.Spec.Members = c.what, c.members[:min(len(c.members), api.MaxMembers)]
	object.OwnerReferences = []metav1.OwnerReference{ownerReference(c.d)}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.r.Create(ctx, object); err != nil {
		return fmt.Errorf("record the transition: %w", err)
	}
	start := metav1.NewMicroTime(record.Started)
	object.Status = api.LayoutTransitionStatus{Phase: api.PhasePlanned, Epoch: int64(record.FromEpoch), StartTime: &start}
	setOutcome(&object.Status)
	c.mu.Lock()
	c.object, c.dirty = object, true
	c.mu.Unlock()
	c.r.runs.set(c.d.UID, name)
	c.wait.Go(c.write)
	if c.rebalance != nil {
		c.r.event(c.d, object, corev1.EventTypeNormal, api.ReasonRebalancing, "Rebalance", "%s", c.rebalance.Why)
	}
	c.r.event(c.d, object, corev1.EventTypeNormal, api.EventTransitionStarted, "Transition", "The transition started (%s): %d flips from epoch %d, %d expert bytes (lower bound %d).",
		c.what, record.PlannedFlips, record.FromEpoch, record.ExpertBytes, record.ExpertBoundBytes)
	return nil
}

// transitionSpec converts the driver's record to a spec.
func transitionSpec(d *api.MoEDeployment, record *driver.Record, kind api.TransitionKind, from api.TransitionEnd, mode api.Mode) api.LayoutTransitionSpec {
	from.Epoch, from.LayoutHash = int64(record.FromEpoch), record.FromHash
	return api.LayoutTransitionSpec{MoEDeploymentName: d.Name, MoEDeploymentGeneration: d.Generation, Kind: kind, From: from,
		To: api.TransitionEnd{LayoutHash: record.TargetHash, Ranks: int32(record.Ranks), Mode: mode}, PlanHash: record.PlanHash, Flips: int32(record.PlannedFlips),
		ExpertBytes: int64(record.ExpertBytes), ExpertBytesLowerBound: int64(record.ExpertBoundBytes), DenseBytes: int64(record.DenseBytes)}
}

// setOutcome sets the conditions that follow from the phase.
func setOutcome(s *api.LayoutTransitionStatus) {
	set := func(kind, reason string, is bool) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: clip(s.Message, 4096)})
	}
	switch s.Phase {
	case api.PhaseSucceeded:
		set(api.TransitionComplete, api.ReasonSucceeded, true)
	case api.PhaseFailed:
		set(api.TransitionComplete, api.ReasonAttemptFailed, false)
		set(api.TransitionFailed, api.ReasonAttemptFailed, true)
	case api.PhaseSuperseded:
		set(api.TransitionComplete, api.ReasonSuperseded, false)
		set(api.TransitionAborted, api.ReasonSuperseded, true)
	case api.PhaseAborted:
		set(api.TransitionComplete, api.ReasonAbortedByUser, false)
		set(api.TransitionAborted, api.ReasonAbortedByUser, true)
	case api.PhasePlanned, api.PhasePreparing, api.PhaseStaging, api.PhaseFlipping, api.PhaseRetiring:
		set(api.TransitionComplete, api.ReasonInProgress, false)
	}
}

// write writes the object's first status, and then changes.
func (c *recorder) write() {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := c.flush(ctx); err != nil {
			c.r.Log.Warn("cannot write the progress of a transition", "transition", c.what, "error", err)
		}
		cancel()
		select {
		case <-c.done:
			return
		case <-tick.C:
		}
	}
}

func (c *recorder) flush(ctx context.Context) error {
	c.mu.Lock()
	if c.object == nil || !c.dirty {
		c.mu.Unlock()
		return nil
	}
	object := c.object.DeepCopy()
	c.dirty = false
	c.mu.Unlock()
	// Write the whole status, with zeros: the API server requires them, and emptied fields must disappear.
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/status", "value": object.Status}})
	if err != nil {
		return err
	}
	err = c.r.Status().Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch))
	if err != nil && !apierrors.IsNotFound(err) { // not found: deleted with its world
		c.mu.Lock()
		c.dirty = true
		c.mu.Unlock()
		return err
	}
	return nil
}

var phases = map[string]api.TransitionPhase{"prepare": api.PhasePreparing, "stage": api.PhaseStaging, "flip": api.PhaseFlipping, "retire": api.PhaseRetiring}

// Progress notes the progress of the running flip.
func (c *recorder) Progress(e driver.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.object == nil {
		return
	}
	s := &c.object.Status
	s.Phase = cmp.Or(phases[e.Phase], s.Phase)
	s.Progress = fmt.Sprintf("flip %d/%d %s: %s", e.Flip, e.Flips, e.Kind, e.Phase)
	if e.BytesTotal > 0 {
		s.Progress += fmt.Sprintf(", %.1f of %.1f MiB", float64(e.BytesDone)/(1<<20), float64(e.BytesTotal)/(1<<20))
	}
	c.dirty = true
}

// FlipDone notes a flip that was retired.
func (c *recorder) FlipDone(f driver.FlipRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.object == nil {
		return
	}
	s := &c.object.Status
	s.Epoch = int64(f.Epoch)
	if len(s.Flips) < mostFlips {
		s.Flips = append(s.Flips, flipOf(f))
	}
	c.dirty = true
}

// mostFlips limits the flips in a status.
const mostFlips = 128

func flipOf(f driver.FlipRecord) api.FlipStatus {
	return api.FlipStatus{Kind: f.Kind, Epoch: int64(f.Epoch), Attempt: int64(f.Attempt), Bytes: bytesOf(f.Bytes),
		Duration: duration(f.Seconds.Prepare + f.Seconds.Stage + f.Seconds.Flip + f.Seconds.Retire)}
}

// fillEnd sets the outcome in a status.
func fillEnd(s *api.LayoutTransitionStatus, record *driver.Record, phase api.TransitionPhase) {
	end := metav1.NewMicroTime(record.Ended)
	s.Phase, s.CompletionTime, s.Epoch, s.Retries, s.Bytes = phase, &end, int64(record.Epoch), int32(record.Retries), bytesOf(record.Bytes)
	s.Phases = api.PhaseDurations{Plan: duration(record.Seconds.Plan), Prepare: duration(record.Seconds.Prepare), Stage: duration(record.Seconds.Stage),
		Flip: duration(record.Seconds.Flip), Retire: duration(record.Seconds.Retire)}
	s.PeakMemory = &api.PeakMemory{PlannedBytes: int64(record.PlannedPeakBytes), MeasuredBytes: int64(record.PeakBytes)}
	if record.KVMaxTokens > 0 {
		s.KVLoad = &api.KVLoad{MaxTokens: int64(record.KVMaxTokens), MeanTokens: int64(record.KVMeanTokens), BoundTokens: int64(driver.KVBound * float64(record.KVMeanTokens))}
	}
	s.Message = clip(record.Error, 4096)
	setOutcome(s)
}

// sinceRequested is the time to the end of a transition since Ready became false (in d), or else since its start.
func sinceRequested(d *api.MoEDeployment, record *driver.Record) *metav1.Duration {
	from := record.Started
	if ready := apimeta.FindStatusCondition(d.Status.Conditions, api.ConditionReady); ready != nil && ready.Status != metav1.ConditionTrue && ready.LastTransitionTime.Time.Before(from) {
		from = ready.LastTransitionTime.Time
	}
	return &metav1.Duration{Duration: record.Ended.Sub(from).Round(time.Millisecond)}
}

// Ended writes the outcome and emits an event.
func (c *recorder) Ended(ctx context.Context, record *driver.Record, err error) {
	c.r.runs.set(c.d.UID, "")
	close(c.done)
	c.wait.Wait()
	phase := api.PhaseSucceeded
	switch {
	case errors.Is(err, driver.ErrAborted):
		phase = api.PhaseAborted
		c.r.event(c.d, nil, corev1.EventTypeNormal, api.EventTransitionAborted, "Transition", "The transition was aborted (%s): %v.", c.what, err)
	case errors.Is(err, driver.ErrSuperseded):
		phase = api.PhaseSuperseded
		c.r.event(c.d, nil, corev1.EventTypeNormal, api.EventTransitionReplanned, "Transition", "The transition was superseded (%s): %v. The operator plans the remaining flips again.", c.what, err)
	case err != nil:
		phase = api.PhaseFailed
		reason := api.ReasonTransitionFailed
		if c.rebalance != nil {
			reason = api.ReasonRebalanceFailed
		}
		c.r.event(c.d, nil, corev1.EventTypeWarning, reason, "Transition", "The transition failed (%s): %v.", c.what, err)
	}
	c.r.metrics.ended(c.d, phase, record.TotalSeconds)
	if c.rebalance != nil {
		c.rebalanced(err)
	}
	c.mu.Lock()
	object := c.object
	if object != nil {
		fillEnd(&object.Status, record, phase)
		object.Status.SinceRequested = sinceRequested(c.d, record)
		if err == nil {
			object.Status.Progress = ""
		}
		c.dirty = true
	}
	c.mu.Unlock()
	if object == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := c.flush(ctx); err != nil {
		c.r.Log.Error("cannot write the end of a transition", "transition", object.Name, "error", err)
	}
	if err == nil {
		c.r.event(c.d, object, corev1.EventTypeNormal, api.EventTransitionSucceeded, "Transition", "The transition succeeded (%s): epoch %d after %s.", c.what, record.Epoch,
			duration(record.TotalSeconds).Round(time.Millisecond))
	}
}

func duration(seconds float64) metav1.Duration {
	return metav1.Duration{Duration: time.Duration(seconds * float64(time.Second)).Round(time.Microsecond)}
}

func bytesOf(b driver.Bytes) api.TransferredBytes {
	return api.TransferredBytes{Process: int64(b.Local), Node: int64(b.Shared), TCP: int64(b.TCP), Comm: int64(b.Wire), Checkpoint: int64(b.Checkpoint), KV: int64(b.KV), KVAhead: int64(b.KVAhead)}
}

// over says whether a LayoutTransition has ended.
func over(t *api.LayoutTransition) bool {
	return t.Status.Phase == api.PhaseSucceeded || t.Status.Phase == api.PhaseFailed || t.Status.Phase == api.PhaseSuperseded ||
		t.Status.Phase == api.PhaseAborted
}

// transitions returns the transitions of the world, newest first.
func (r *Reconciler) transitions(ctx context.Context, d *api.MoEDeployment) ([]api.LayoutTransition, error) {
	var list api.LayoutTransitionList
	if err := r.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingFields{byWorld: d.Name}); err != nil {
		return nil, err
	}
	mine := slices.DeleteFunc(list.Items, func(t api.LayoutTransition) bool { return !metav1.IsControlledBy(&t, d) })
	newestFirst(mine)
	return mine, nil
}

func newestFirst(all []api.LayoutTransition) {
	slices.SortFunc(all, func(a, b api.LayoutTransition) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})
}

// leftOpen is the age up to which an open object is left alone, because its end may be just being written.
const leftOpen = 5 * time.Second

// tidy ends LayoutTransitions that a previous operator left open, and removes the oldest beyond the limit. It returns
// when to check again; 0: not needed.
func (r *Reconciler) tidy(ctx context.Context, d *api.MoEDeployment, all []api.LayoutTransition, running bool) (time.Duration, error) {
	kept, again := 0, time.Duration(0)
	for i := range all {
		t := &all[i]
		switch age := time.Since(t.CreationTimestamp.Time); {
		case over(t) || running: // the end of the running transition triggers the next reconcile
		case age <= leftOpen:
			again = leftOpen - age + time.Second // creation times have whole seconds
		default:
			before := t.DeepCopy()
			now := metav1.NowMicro()
			t.Status.Phase, t.Status.CompletionTime = api.PhaseFailed, &now
			t.Status.Message = "The operator that ran this transition ended. Its successor continued from the state of the agents."
			setOutcome(&t.Status)
			// With a lock: the cached object may be older than an end that was just written.
			err := r.Status().Patch(ctx, t, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return 0, err
			}
		}
		if !over(t) || t.Name == d.Annotations[api.AbortAnnotation] { // it still prevents others
			continue
		}
		if kept++; kept > int(d.Spec.Tuning.HistoryLimit) {
			if err := r.remove(ctx, t); err != nil {
				return 0, err
			}
		}
	}
	return again, nil
}

// recent returns the last transitions for the status, newest first.
func recent(all []api.LayoutTransition) []api.RecentTransition {
	var out []api.RecentTransition
	for i := range all {
		t := &all[i]
		if !over(t) || t.Status.CompletionTime == nil || len(out) == 5 {
			continue
		}
		out = append(out, api.RecentTransition{Name: t.Name, Summary: t.Spec.Summary, Phase: t.Status.Phase,
			CompletionTime: metav1.NewTime(t.Status.CompletionTime.Truncate(time.Second)), Message: clip(t.Status.Message, longestWords)})
	}
	return out
}
