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

// fieldOwner owns the fields of all applied objects.
const fieldOwner = client.FieldOwner("tangram-operator")

// foreignError means that an object with a name that the operator needs has another owner.
type foreignError struct{ kind, name, owner string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s %s already exists and belongs to %s, so the operator does not change it. Delete or rename the object, or rename the MoEDeployment.", e.kind, e.name, e.owner)
}

func ownerReference(d *api.MoEDeployment) metav1.OwnerReference {
	return *metav1.NewControllerRef(d, api.GroupVersion.WithKind("MoEDeployment"))
}

// checkOwned rejects an object that another controller, or no controller, controls.
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

// find reads one of our objects: first from the cache, which holds only objects with our labels, then live, to find a
// foreign object of that name. It returns whether the object exists.
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

// apply updates an object by server-side apply. It skips an object that is unchanged since the last apply.
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
	written := mine.(*sync.Map) // LoadOrStore stored this type
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

// createOnce creates an object that is never overwritten, or reads the existing one and restores its labels.
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

// createNew creates an object that does not exist yet.
func (r *Reconciler) createNew(ctx context.Context, d *api.MoEDeployment, object client.Object, fill func() error) error {
	if err := fill(); err != nil {
		return err
	}
	object.SetResourceVersion("")
	object.SetUID("")
	object.SetOwnerReferences([]metav1.OwnerReference{ownerReference(d)})
	return r.Create(ctx, object)
}

// remove deletes one of our objects. A missing object, or one that fails the preconditions, is no error.
func (r *Reconciler) remove(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	err := r.Delete(ctx, object, options...)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // deleted, or another object with its name
		return nil
	}
	return err
}

// refusal says why an object of a world cannot be created until a user changes something.
type refusal struct{ reason, message string }

// refused returns the refusal in an error: an object has another owner, the namespace does not allow the world's
// sharing, or the API server rejects an object (quota, limit range, Pod Security, webhook, field). nil: another error.
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
		apierrors.IsInternalError(err) && strings.Contains(err.Error(), "webhook"): // a webhook that does not answer
		return &refusal{api.ReasonObjectRejected, err.Error()}
	}
	return nil
}

// locked is a merge patch that applies only to the version that was read. A merge patch replaces whole lists, so it
// could undo another client's change to a list (finalizers).
func locked(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}
