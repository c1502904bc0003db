package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// relabel restores labels that another client changed or removed. The operator finds its objects by them.
func (r *Reconciler) relabel(ctx context.Context, object client.Object, wanted map[string]string) error {
	merged := maps.Clone(wanted)
	for key, value := range object.GetLabels() {
		if _, ours := wanted[key]; !ours {
			merged[key] = value
		}
	}
	if maps.Equal(merged, object.GetLabels()) {
		return nil
	}
	before := object.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy of a client.Object is one
	object.SetLabels(merged)
	if err := r.Patch(ctx, object, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("restore the labels of %s: %w", object.GetName(), err)
	}
	return nil
}

// rankLabels are the labels of an ordinal's pod that do not change.
func rankLabels(d *api.MoEDeployment, ordinal int) map[string]string {
	out := labels(d, api.ComponentRank)
	out[api.OrdinalLabel] = strconv.Itoa(ordinal)
	return out
}

// ordinalOf returns a pod's ordinal, from its immutable name; -1: the name has none.
func ordinalOf(p *corev1.Pod) int {
	o, err := strconv.Atoi(p.Name[strings.LastIndexByte(p.Name, '-')+1:])
	if err != nil {
		return -1
	}
	return o
}

// podNames are the pods of ranks that worlds had when they were last listed.
type podNames struct {
	mu    sync.Mutex
	names map[types.UID]map[string]bool // by UID of the MoEDeployment
}

// swap replaces the names of a world by those listed now, and returns the names that are missing since.
func (n *podNames) swap(uid types.UID, now []corev1.Pod) (missing []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	listed := map[string]bool{}
	for i := range now {
		listed[now[i].Name] = true
	}
	for name := range n.names[uid] {
		if !listed[name] {
			missing = append(missing, name)
		}
	}
	if n.names == nil {
		n.names = map[types.UID]map[string]bool{}
	}
	n.names[uid] = listed
	return missing
}

func (n *podNames) forget(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.names, uid)
}

// relabelMissing looks for pods that the label-filtered cache lost, and restores the labels of those that exist. So a
// healthy rank does not count as dead because a user edited its pod's labels.
func (r *Reconciler) relabelMissing(ctx context.Context, d *api.MoEDeployment, listed []corev1.Pod) ([]corev1.Pod, error) {
	missing := r.podNames.swap(d.UID, listed)
	for i := range d.Status.Members { // an operator that has just started has listed nothing before
		name := d.Status.Members[i].Pod
		if name != "" && !slices.Contains(missing, name) && !slices.ContainsFunc(listed, func(p corev1.Pod) bool { return p.Name == name }) {
			missing = append(missing, name)
		}
	}
	for _, name := range missing {
		p := corev1.Pod{}
		err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: name}, &p)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !metav1.IsControlledBy(&p, d) {
			continue
		}
		if err := r.relabel(ctx, &p, rankLabels(d, ordinalOf(&p))); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return nil, err
		}
		listed = append(listed, p)
	}
	return listed, nil
}
