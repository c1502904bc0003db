package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tangram.dev/operator/internal/driver"
	"tangram.dev/operator/internal/world"

	api "tangram.dev/api/v1alpha2"
)

// answerInRepair is how long an agent may take to answer in a repair before it counts as not answering.
const answerInRepair = time.Second

// reconcileRepair starts the repair of an open world. It reads only caches.
func (r *Reconciler) reconcileRepair(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	uid, opened := r.opened.Load(request.NamespacedName)
	if !opened {
		return reconcile.Result{}, nil
	}
	w := r.Worlds.Find(uid.(types.UID)) // open stored this type
	if w == nil {
		return reconcile.Result{}, nil
	}
	s := &scene{seen: w.Snapshot()}
	if !s.seen.NeedsRepair() {
		return reconcile.Result{}, nil
	}
	d := &api.MoEDeployment{}
	if err := r.Get(ctx, request.NamespacedName, d); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if d.UID != uid || d.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	var err error
	if s.pods, err = r.pods(ctx, d); err != nil {
		return reconcile.Result{}, err
	}
	if reached := endpoints(owned(d, s.pods)); len(reached) > 0 {
		w.SetEndpoints(reached, true)
		k, err := r.keeper(d, w, s)
		if err != nil {
			return reconcile.Result{}, err
		}
		k.Repair(&s.seen)
	}
	return reconcile.Result{}, nil
}

func limits(d *api.MoEDeployment) driver.Limits {
	limit := time.Duration(d.Spec.Transition.TimeoutSeconds) * time.Second
	return driver.Limits{Engines: limit, Stage: limit, Flip: limit, Outcome: limit, Retire: limit, Answer: answerInRepair}
}

// repairRecorder records one repair as a LayoutTransition, after its end.
type repairRecorder struct {
	r    *Reconciler
	d    *api.MoEDeployment
	mode api.Mode
	from api.TransitionEnd
}

// Repair implements keeper.Recorders.
func (x recorders) Repair(seen *world.Snapshot) world.Recorder {
	return &repairRecorder{r: x.r, d: x.d.DeepCopy(), mode: cmp.Or(modeOf(x.d, seen.Layout), wantedMode(x.d)), from: fromOf(x.d, seen)}
}

// Planned does nothing: a repair is recorded when it has ended.
func (c *repairRecorder) Planned(*driver.Record) error { return nil }

// Progress does nothing: the status of the MoEDeployment shows that a repair runs.
func (c *repairRecorder) Progress(driver.Event) {}

// FlipDone does nothing: the driver's record lists the flips.
func (c *repairRecorder) FlipDone(driver.FlipRecord) {}

// Ended writes the outcome and emits an event.
func (c *repairRecorder) Ended(ctx context.Context, record *driver.Record, err error) {
	if errors.Is(err, context.Canceled) { // the operator ends, or the MoEDeployment is deleted
		return
	}
	if err == nil && len(record.Flips) == 0 && record.WorldEnded == "" {
		return // the world was complete; the repair only released ranks
	}
	c.r.metrics.repaired(c.d, record, err)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	object := c.object(record, err)
	if record.PlanHash == "" && record.WorldEnded == "" { // no plan: only an event; the next try may work
		object = nil
	} else if writing := c.write(ctx, object); writing != nil {
		c.r.Log.Error("cannot record a repair", "world", worldName(c.d), "error", writing)
		object = nil
	}
	var related *api.LayoutTransition
	if object != nil {
		related = object
	}
	switch {
	case err != nil:
		c.tell(related, corev1.EventTypeWarning, api.ReasonRepairFailed, "The repair failed: %v.", err)
	case record.WorldEnded != "":
		c.tell(related, corev1.EventTypeWarning, api.EventWorldRestarted, "The world restarts from the checkpoint because %s. Lost members: %s.", record.WorldEnded, lostOf(record))
	default:
		c.tell(related, corev1.EventTypeNormal, api.EventRepaired,
			"The world was repaired: %d members were lost and %d ranks serve at epoch %d after %.3f s (%.3f s until all ranks stopped, %.3f s for the fence). %d bytes were fetched from ranks and %d from the checkpoint%s.",
			len(record.Lost), record.Ranks, record.Epoch, record.TotalSeconds, record.WaitSeconds, record.FenceSeconds,
			record.Bytes.Shared+record.Bytes.TCP+record.Bytes.Wire, record.Bytes.Checkpoint, colon(lostOf(record)))
	}
}

func (c *repairRecorder) tell(object *api.LayoutTransition, kind, reason, format string, args ...any) {
	if object == nil {
		c.r.event(c.d, nil, kind, reason, "Repair", format, args...)
		return
	}
	c.r.event(c.d, object, kind, reason, "Repair", format, args...)
}

func (c *repairRecorder) write(ctx context.Context, object *api.LayoutTransition) error {
	status := object.Status
	if err := c.r.Create(ctx, object); err != nil {
		return err
	}
	object.Status = status
	return c.r.Status().Update(ctx, object)
}

// mostLost limits the lost members in a status.
const mostLost = 64

func (c *repairRecorder) object(record *driver.Record, err error) *api.LayoutTransition {
	what := fmt.Sprintf("repair: %d lost, %d ranks serve", len(record.Lost), record.Ranks)
	phase := api.PhaseSucceeded
	switch {
	case err != nil:
		what, phase = "repair", api.PhaseFailed
	case record.WorldEnded != "":
		what = "restart from the checkpoint: " + clip(record.WorldEnded, 200)
	}
	object := &api.LayoutTransition{ObjectMeta: meta(c.d, transitionName(c.d, record.Started), "transition"), Spec: transitionSpec(c.d, record, api.KindRepair, c.from, c.mode)}
	object.Spec.Summary = what
	object.OwnerReferences = []metav1.OwnerReference{ownerReference(c.d)}
	s := &object.Status
	start := metav1.NewMicroTime(record.Started)
	s.StartTime = &start
	for _, f := range record.Flips[:min(len(record.Flips), mostFlips)] {
		s.Flips = append(s.Flips, flipOf(f))
	}
	for _, l := range record.Lost[:min(len(record.Lost), mostLost)] {
		s.Lost = append(s.Lost, api.LostMember{ID: l.Member, Message: clip(l.Why, longestWords)})
	}
	for _, m := range record.Missed {
		missed := api.MissedMember{By: m.By, ID: m.Member, Cause: camel(m.Cause), Doing: camel(m.Doing)}
		if m.InLayer() {
			missed.Layer = ptr.To(int32(m.Layer))
		}
		s.Missed = append(s.Missed, missed)
	}
	fillEnd(s, record, phase)
	s.SinceRequested = sinceRequested(c.d, record)
	s.Phases.Wait, s.Phases.Fence = ptr.To(duration(record.WaitSeconds)), ptr.To(duration(record.FenceSeconds))
	if record.WorldEnded != "" && err == nil {
		s.Message = clip(record.WorldEnded, 4096)
	}
	return object
}

// lostOf describes the lost members of a record and the reasons, and how a rank noticed the loss.
func lostOf(record *driver.Record) string {
	var out []string
	for _, l := range record.Lost[:min(len(record.Lost), mostLost)] {
		out = append(out, l.Member+" ("+l.Why+")")
	}
	if len(record.Missed) > 0 { // the first one names a lost member, if any does
		out = append(out, record.Missed[0].By+" reported "+record.Missed[0].String())
	}
	return strings.Join(out, "; ")
}

// camel converts gave_up to GaveUp.
func camel(word string) string {
	var out strings.Builder
	for part := range strings.SplitSeq(word, "_") {
		out.WriteString(strings.ToUpper(part[:min(1, len(part))]) + part[min(1, len(part)):])
	}
	return out.String()
}

func colon(text string) string {
	if text == "" {
		return ""
	}
	return ": " + text
}
