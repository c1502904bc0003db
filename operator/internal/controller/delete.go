package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"

	api "tangram.dev/api/v1alpha1"
)

const (
	// deleteWithin: after so long the finalizer goes, whatever is still there; owner references do the rest.
	deleteWithin  = 30 * time.Second
	closeWithin   = 2 * time.Second
	lookAgain     = 500 * time.Millisecond
	conflictPause = 20 * time.Millisecond
)

// delete ends the running flip, then the pods, then the finalizer. The API server removes
// what else the MoEDeployment owns.
func (r *Reconciler) delete(ctx context.Context, d *api.MoEDeployment) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(d, api.Finalizer) {
		return reconcile.Result{}, nil
	}
	patient := time.Since(d.DeletionTimestamp.Time) < deleteWithin
	pods, err := r.dissolve(ctx, d, "its MoEDeployment is deleted")
	if errors.Is(err, context.DeadlineExceeded) && patient {
		return reconcile.Result{RequeueAfter: lookAgain}, nil
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return reconcile.Result{}, err
	}
	mine := owned(d, pods)
	if len(mine) > 0 && patient {
		err := r.writeStatus(ctx, d, &scene{pods: pods, seen: world.Snapshot{}, deleting: true})
		return reconcile.Result{RequeueAfter: lookAgain}, err
	}
	r.metrics.forget(d)
	before := d.DeepCopy()
	controllerutil.RemoveFinalizer(d, api.Finalizer)
	return reconcile.Result{}, client.IgnoreNotFound(r.Patch(ctx, d, client.MergeFrom(before)))
}

// dissolve ends the running flip, or leaves its outcome to nobody, and has the pods end at
// once: there is no world to leave any more. It gives the pods that are still there.
func (r *Reconciler) dissolve(ctx context.Context, d *api.MoEDeployment, why string) ([]corev1.Pod, error) {
	pods, err := r.pods(ctx, d)
	if err != nil {
		return nil, err
	}
	closing, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	r.reach(ctx, d, owned(d, pods))
	unclosed := r.Worlds.Dissolve(closing, d.UID, why)
	if unclosed != nil && (d.DeletionTimestamp == nil || time.Since(d.DeletionTimestamp.Time) < deleteWithin) {
		return nil, unclosed
	}
	for _, p := range owned(d, pods) {
		if endsNow(&p) {
			continue
		}
		if err := r.deletePod(ctx, d, fleet.Deletion{Name: p.Name, UID: string(p.UID), Why: why, Now: true}); err != nil {
			return nil, err
		}
	}
	return pods, nil
}

// reach the agents once more, so that they can be told that their world is over, also by an operator that has just
// started. One that cannot be told waits for its pod's grace period, which is short by then.
func (r *Reconciler) reach(ctx context.Context, d *api.MoEDeployment, pods []corev1.Pod) {
	agents := endpoints(slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return endsNow(&p) }))
	if len(agents) == 0 {
		return
	}
	w := r.Worlds.Find(d.UID)
	if w == nil {
		authority, err := r.authority(ctx, d)
		if err != nil { // it went with the namespace
			r.Log.Info("agents of a world that is over cannot be told", "world", worldName(d), "error", err)
			return
		}
		if w, err = r.open(d, authority); err != nil {
			r.Log.Error("agents of a world that is over cannot be told", "world", worldName(d), "error", err)
			return
		}
	}
	w.SetEndpoints(agents, true)
}

// namespaceEnds: a namespace that is deleted deletes its pods first and everything else after
// they are gone, so that this is all that tells us.
func (r *Reconciler) namespaceEnds(ctx context.Context, d *api.MoEDeployment) (reconcile.Result, error) {
	pods, err := r.dissolve(ctx, d, "its namespace is deleted")
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: lookAgain}, r.writeStatus(ctx, d, &scene{pods: pods, seen: world.Snapshot{}, deleting: true})
}
