package controller

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	api "tangram.dev/api/v1alpha2"
)

// fieldOwner of everything that is applied.
const fieldOwner = client.FieldOwner("tangram-operator")

// foreignError: an object of a name that we need belongs to somebody else.
type foreignError struct{ kind, name, owner string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s %s already exists and belongs to %s, so the operator does not change it. Delete or rename the object, or rename the MoEDeployment.", e.kind, e.name, e.owner)
}

func ownerReference(d *api.MoEDeployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(d, api.GroupVersion.WithKind("MoEDeployment"))
}

// checkOwned refuses an object that another controller, or nobody, controls.
func (r *Reconciler) checkOwned(d *api.MoEDeployment, object client.Object) error {
	owner := metav1.GetControllerOf(object)
	if owner != nil && owner.UID == d.UID {
		return nil
	}
	kind, err := apiutil.GVKForObject(object, r.Scheme())
	if err != nil {
		return err
	}
	by := "no controller"
	if owner != nil {
		by = owner.Kind + " " + owner.Name
	}
	return &foreignError{kind: kind.Kind, name: client.ObjectKeyFromObject(object).String(), owner: by}
}

// find reads an object of ours, first from the cache, which only holds what carries our
// labels, then live, where a foreign one would be. It says whether there is one.
func (r *Reconciler) find(ctx context.Context, d *api.MoEDeployment, object client.Object) (bool, error) {
	key := client.ObjectKeyFromObject(object)
	err := r.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		if err = r.APIReader.Get(ctx, key, object); apierrors.IsNotFound(err) {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	return true, r.checkOwned(d, object)
}

// apply brings an object to what is wanted by server-side apply. An object that is as it was after the last apply is left alone.
func (r *Reconciler) apply(ctx context.Context, d *api.MoEDeployment, wanted client.Object) error {
	wanted.SetNamespace(d.Namespace)
	wanted.SetOwnerReferences([]metav1.OwnerReference{ownerReference(d)})
	kind, err := apiutil.GVKForObject(wanted, r.Scheme())
	if err != nil {
		return err
	}
	wanted.GetObjectKind().SetGroupVersionKind(kind)
	blank, err := r.Scheme().New(kind)
	if err != nil {
		return err
	}
	current, ok := blank.(client.Object)
	if !ok {
		return fmt.Errorf("%s is not an object", kind)
	}
	current.SetName(wanted.GetName())
	current.SetNamespace(wanted.GetNamespace())
	there, err := r.find(ctx, d, current)
	if err != nil {
		return err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return err
	}
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")
	wire, err := json.Marshal(content)
	if err != nil {
		return err
	}
	key := kind.Kind + "/" + wanted.GetName()
	mine, _ := r.applied.LoadOrStore(d.UID, &sync.Map{})
	written := mine.(*sync.Map) // what LoadOrStore put in
	mark := fmt.Sprintf("%x", sha256.Sum256(wire))
	if last, done := written.Load(key); done && there && last == mark+string(current.GetUID())+current.GetResourceVersion() {
		return nil
	}
	object := &unstructured.Unstructured{Object: content}
	if err := r.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply %s %s: %w", kind.Kind, wanted.GetName(), err)
	}
	written.Store(key, mark+string(object.GetUID())+object.GetResourceVersion())
	return nil
}

// createOnce makes an object that is never overwritten, or gives the one that is there.
func (r *Reconciler) createOnce(ctx context.Context, d *api.MoEDeployment, object client.Object, fill func() error) error {
	object.SetNamespace(d.Namespace)
	wanted := maps.Clone(object.GetLabels())
	if there, err := r.find(ctx, d, object); err != nil {
		return err
	} else if there {
		return r.relabel(ctx, object, wanted)
	}
	return r.createNew(ctx, d, object, fill)
}

// createNew makes an object that is not there.
func (r *Reconciler) createNew(ctx context.Context, d *api.MoEDeployment, object client.Object, fill func() error) error {
	if err := fill(); err != nil {
		return err
	}
	object.SetResourceVersion("")
	object.SetUID("")
	object.SetOwnerReferences([]metav1.OwnerReference{ownerReference(d)})
	return r.Create(ctx, object)
}

// remove deletes an object of ours, if it is there and the one that is meant.
func (r *Reconciler) remove(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	err := r.Delete(ctx, object, options...)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or another of its name
		return nil
	}
	return err
}

// refusal of an object that a world needs, until somebody changes something.
type refusal struct{ reason, message string }

// refused gives the refusal in an error: an object is somebody else's, the namespace does not allow what the world shares, or the
// API server does not take it (quota, limit range, Pod Security, a webhook, a field). nil: it is another error.
func refused(err error) *refusal {
	var f *foreignError
	var sharing *sharingError
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &f):
		return &refusal{api.ReasonNameConflict, f.Error()}
	case errors.As(err, &sharing):
		return &refusal{api.ReasonSharingNotAllowed, sharing.Error()}
	case !errors.As(err, &status) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err),
		apierrors.IsInternalError(err) && strings.Contains(err.Error(), "webhook"): // one that does not answer
		return &refusal{api.ReasonObjectRejected, err.Error()}
	}
	return nil
}

// locked is a merge patch against the very object that was read: it replaces lists whole, and one that somebody has
// changed since (finalizers) would lose what they put in.
func locked(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}
