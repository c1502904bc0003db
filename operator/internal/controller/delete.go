package controller

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"

	api "tangram.dev/api/v1alpha2"
)

const lookAgain = 500 * time.Millisecond

// delete ends the running flip, deletes the pods, and then removes the finalizer. The API server removes the
// MoEDeployment's other objects.
func (r *Reconciler) delete(ctx context.Context, d *api.MoEDeployment) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(d, api.Finalizer) {
		return reconcile.Result{}, nil
	}
	patient := time.Since(d.DeletionTimestamp.Time) < r.DeleteWithin
	pods, over, err := r.dissolve(ctx, d, "the MoEDeployment is being deleted")
	if err != nil {
		return reconcile.Result{}, err
	}
	if patient && (!over || len(owned(d, pods)) > 0) {
		err := r.writeStatus(ctx, d, &scene{pods: pods, seen: world.Snapshot{}, deleting: true})
		if apierrors.IsConflict(err) {
			return r.again(client.ObjectKeyFromObject(d), err)
		}
		return reconcile.Result{RequeueAfter: lookAgain}, err
	}
	r.forget(client.ObjectKeyFromObject(d)) // work that did not end in time ends in the background
	before := d.DeepCopy()
	controllerutil.RemoveFinalizer(d, api.Finalizer)
	return r.again(client.ObjectKeyFromObject(d), client.IgnoreNotFound(r.Patch(ctx, d, locked(before))))
}

// dissolve ends the running flip in the background, or abandons it after DeleteWithin. Then it deletes the pods without
// time to drain: the world has ended. It returns the remaining pods, and whether all work has ended.
func (r *Reconciler) dissolve(ctx context.Context, d *api.MoEDeployment, why string) (pods []corev1.Pod, over bool, err error) {
	if pods, err = r.pods(ctx, d); err != nil {
		return nil, false, err
	}
	if uid, begun := r.doomed.Swap(client.ObjectKeyFromObject(d), d.UID); !begun || uid != d.UID {
		r.reach(ctx, d, owned(d, pods))
	}
	over = r.Worlds.Dissolve(d.UID, why)
	if !over && (d.DeletionTimestamp == nil || time.Since(d.DeletionTimestamp.Time) < r.DeleteWithin) {
		return pods, false, nil
	}
	for _, p := range owned(d, pods) {
		if endsNow(&p) {
			continue
		}
		if err := r.deletePod(ctx, d, fleet.Deletion{Name: p.Name, UID: string(p.UID), Why: why, Now: true}); err != nil {
			return nil, over, err
		}
	}
	return pods, over, nil
}

// reach connects to the agents again so that Dissolve can release them, also from an operator that has just started. An
// unreachable agent's pod ends with its grace period, which is short by then.
func (r *Reconciler) reach(ctx context.Context, d *api.MoEDeployment, pods []corev1.Pod) {
	agents := endpoints(slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return endsNow(&p) }))
	if len(agents) == 0 {
		return
	}
	w := r.Worlds.Find(d.UID)
	if w == nil {
		authority, err := r.authority(ctx, d)
		if err != nil { // the namespace's deletion removed it
			r.Log.Info("cannot release the agents of an ended world", "world", worldName(d), "error", err)
			return
		}
		identity, err := r.driver(d, authority)
		if err != nil {
			r.Log.Error("cannot release the agents of an ended world", "world", worldName(d), "error", err)
			return
		}
		w = r.open(d, identity)
	}
	w.SetEndpoints(agents, true)
}

// namespaceEnds handles the deletion of the namespace, which deletes pods first and other objects later. Only the
// failed creation of an object reports it.
func (r *Reconciler) namespaceEnds(ctx context.Context, d *api.MoEDeployment) (reconcile.Result, error) {
	pods, _, err := r.dissolve(ctx, d, "the namespace is being deleted")
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: lookAgain}, r.writeStatus(ctx, d, &scene{pods: pods, seen: world.Snapshot{}, deleting: true})
}
