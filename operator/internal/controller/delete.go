package controller

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"

	api "tangram.dev/api/v1alpha1"
)

const (
	// deleteWithin: after so long the finalizer goes, whatever is still there; owner references do the rest.
	deleteWithin = 30 * time.Second
	closeWithin  = 2 * time.Second
	lookAgain    = 500 * time.Millisecond
)

// delete ends the running flip, then the pods, then the finalizer. The API server removes
// what else the MoEDeployment owns.
func (r *Reconciler) delete(ctx context.Context, d *api.MoEDeployment) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(d, api.Finalizer) {
		return reconcile.Result{}, nil
	}
	patient := time.Since(d.DeletionTimestamp.Time) < deleteWithin
	closing, cancel := context.WithTimeout(ctx, closeWithin)
	defer cancel()
	if err := r.Worlds.Close(closing, d.UID); err != nil && patient {
		return reconcile.Result{RequeueAfter: lookAgain}, nil
	}
	pods, err := r.pods(ctx, d)
	if err != nil {
		return reconcile.Result{}, err
	}
	mine := owned(d, pods)
	for i := range mine {
		p := &mine[i]
		if endsNow(p) {
			continue
		}
		if err := r.deletePod(ctx, d, fleet.Deletion{Name: p.Name, UID: string(p.UID), Why: "its MoEDeployment is deleted", Now: true}); err != nil {
			return reconcile.Result{}, err
		}
	}
	if len(mine) > 0 && patient {
		err := r.writeStatus(ctx, d, &scene{pods: pods, seen: world.Snapshot{}, deleting: true})
		return reconcile.Result{RequeueAfter: lookAgain}, err
	}
	r.metrics.forget(d)
	before := d.DeepCopy()
	controllerutil.RemoveFinalizer(d, api.Finalizer)
	return reconcile.Result{}, client.IgnoreNotFound(r.Patch(ctx, d, client.MergeFrom(before)))
}
