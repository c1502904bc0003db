package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// starting says whether a pod has a node but no container has run yet, and since when.
func starting(p *corev1.Pod) (since time.Time, yes bool) {
	if p.Spec.NodeName == "" || p.Status.Phase != corev1.PodPending || p.DeletionTimestamp != nil {
		return since, false
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
			return since, false
		}
	}
	since = p.CreationTimestamp.Time
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.LastTransitionTime.After(since) {
			since = c.LastTransitionTime.Time
		}
	}
	return since, true
}

// problemOf returns the problem of a pod, or nil. If a pod does not start, it reads the kubelet's last warning: only an
// event reports a failed mount. again: when to check again; 0: a change of the pod triggers that.
func (r *Reconciler) problemOf(ctx context.Context, p *corev1.Pod) (found *problem, again time.Duration, err error) {
	if found := findProblem(p); found != nil {
		return found, 0, nil
	}
	since, slow := starting(p)
	if !slow {
		return nil, 0, nil
	}
	if left := r.KeepEnded - time.Since(since); left > 0 { // most pods start within that time
		return nil, left, nil
	}
	warning, err := r.lastWarning(ctx, p.Namespace, p.UID)
	if err != nil || warning == nil {
		return nil, r.KeepEnded, err
	}
	return &problem{p.Name, api.ReasonPodsFailing, fmt.Sprintf("%s: %s", warning.Reason, clip(warning.Message, longestWords))}, r.KeepEnded, nil
}

// lastWarning returns the last warning event about an object, or nil. It reads live: a cache of events would be large.
func (r *Reconciler) lastWarning(ctx context.Context, namespace string, uid types.UID) (*corev1.Event, error) {
	var list corev1.EventList
	if err := r.APIReader.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{"involvedObject.uid": string(uid), "type": corev1.EventTypeWarning}); err != nil {
		return nil, fmt.Errorf("list the events of a pod that does not start: %w", err)
	}
	var last *corev1.Event
	for i := range list.Items {
		if last == nil || eventTime(last).Before(eventTime(&list.Items[i])) {
			last = &list.Items[i]
		}
	}
	return last, nil
}

func eventTime(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	if e.EventTime.After(at) {
		at = e.EventTime.Time
	}
	return at
}
