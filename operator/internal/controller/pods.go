package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tangram.dev/operator/internal/keeper"
	"tangram.dev/operator/internal/world"
	"tangram.dev/operator/pkg/fleet"
	"tangram.dev/operator/pkg/member"
	tangramv1 "tangram.dev/proto/tangram/v1"

	api "tangram.dev/api/v1alpha2"
)

// pods returns the pods of the world's ranks, by ordinal.
func (r *Reconciler) pods(ctx context.Context, d *api.MoEDeployment) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingFields{byWorld: d.Name}, client.MatchingLabels(selector(d, api.ComponentRank))); err != nil {
		return nil, err
	}
	all, err := r.relabelMissing(ctx, d, list.Items)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b corev1.Pod) int { return cmp.Compare(ordinalOf(&a), ordinalOf(&b)) })
	return all, nil
}

// endpoints returns the addresses of the running agents.
func endpoints(pods []corev1.Pod) []world.Endpoint {
	var out []world.Endpoint
	for i := range pods {
		if p := &pods[i]; p.Status.PodIP != "" && !finished(p) && runs(p, containerAgent) {
			out = append(out, world.Endpoint{UID: string(p.UID), Address: net.JoinHostPort(p.Status.PodIP, strconv.Itoa(portAgent))})
		}
	}
	return out
}

// layoutPods returns the pod UIDs of a layout, by rank.
func layoutPods(l *tangramv1.Layout) []string {
	var out []string
	for _, m := range l.GetMembers() {
		out = append(out, member.PodOf(m.Id))
	}
	return out
}

// facts converts pods for pkg/fleet.
func (r *Reconciler) facts(ctx context.Context, d *api.MoEDeployment, pods []corev1.Pod, seen *world.Snapshot) ([]fleet.Pod, error) {
	out := make([]fleet.Pod, 0, len(pods))
	for i := range pods {
		p := &pods[i]
		going, err := r.nodeGoing(ctx, p.Spec.NodeName)
		if err != nil {
			return nil, err
		}
		cost, err := strconv.Atoi(cmp.Or(p.Annotations[api.DeletionCostAnnotation], "0"))
		if err != nil {
			cost = 0 // as ReplicaSets treat invalid numbers
		}
		ended, replaceable := r.ended(p)
		if since := outcast(seen, p); !since.IsZero() && time.Since(since) > r.KeepEnded { // it cannot be released
			ended, replaceable = true, true
		}
		out = append(out, fleet.Pod{Name: p.Name, UID: string(p.UID), Ordinal: ordinalOf(p), Deleting: p.DeletionTimestamp != nil,
			Ended: ended, Replaceable: replaceable, NodeGoing: going, DeletionCost: cost,
			Members: keeper.Ready(seen.Statuses[string(p.UID)], int(d.Spec.RanksPerPod), seen.Outcasts)})
	}
	return out, nil
}

// outcast returns since when a rank of the pod waits for its release; zero: none does.
func outcast(seen *world.Snapshot, p *corev1.Pod) time.Time {
	var first time.Time
	for id, since := range seen.Outcasts {
		if member.PodOf(id) == string(p.UID) && (first.IsZero() || since.Before(first)) {
			first = since
		}
	}
	return first
}

// nodeGoing says whether a node is cordoned or not ready. A node's change triggers no reconcile: it only decides which
// pods leave first, and is read when pods must leave.
func (r *Reconciler) nodeGoing(ctx context.Context, name string) (bool, error) {
	if name == "" {
		return false, nil
	}
	var node corev1.Node
	if err := r.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return true, nil
		}
	}
	return node.Spec.Unschedulable, nil
}

// createPods creates the missing pods, unless s.withheld is set. If the API server rejects one, it reports problems for
// that pod and the rest, which would be rejected too.
func (r *Reconciler) createPods(ctx context.Context, d *api.MoEDeployment, a *authority, s *scene) error {
	if s.withheld != nil {
		return nil
	}
	all := slices.Concat(s.decision.Create, s.decision.StandBy)
	for i, ordinal := range all {
		err := r.createPod(ctx, d, a, ordinal, i >= len(s.decision.Create))
		if why := refused(err); why != nil && why.reason == api.ReasonObjectRejected {
			for _, o := range all[i:] {
				s.problems = append(s.problems, problem{podName(d, o), why.reason, clip(why.message, longestWords)})
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// createPod creates the pod of an ordinal, after its configuration and certificates.
func (r *Reconciler) createPod(ctx context.Context, d *api.MoEDeployment, a *authority, ordinal int, standsBy bool) error {
	config, err := agentConfig(d)
	if err != nil {
		return err
	}
	pod, err := r.rankPod(d, ordinal, config.Name)
	if err != nil {
		return err
	}
	if standsBy {
		pod.Labels[api.StandbyLabel] = "true"
	}
	if err := r.createOnce(ctx, d, config, func() error { return nil }); err != nil {
		return err
	}
	if err := r.podCertificates(ctx, d, a, pod.Name); err != nil {
		return err
	}
	err = r.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) { // ours, if the cache lags or it lost its labels; or another owner's
		live := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: d.Namespace}}
		if there, err := r.find(ctx, d, live); err != nil || !there {
			return err
		}
		return client.IgnoreNotFound(r.relabel(ctx, live, rankLabels(d, ordinal)))
	}
	if err != nil && d.SharesNodeMemory() { // Pod Security's message for it is long
		return fmt.Errorf("create pod %s, with a hostPath volume for spec.network.nodeMemorySharing: %w", pod.Name, err)
	}
	if err != nil {
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	r.event(d, pod, corev1.EventTypeNormal, api.EventPodCreated, "Create", "Created pod %s.", pod.Name)
	return nil
}

// deletePod deletes a pod by name and UID, with its Secret.
func (r *Reconciler) deletePod(ctx context.Context, d *api.MoEDeployment, x fleet.Deletion) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: x.Name, Namespace: d.Namespace}}
	options := []client.DeleteOption{client.Preconditions{UID: ptr.To(typesUID(x.UID))}}
	if x.Now {
		options = append(options, client.GracePeriodSeconds(1))
	}
	switch err := r.Delete(ctx, pod, options...); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err): // a new pod may use the Secret; see keepCertificates
		return nil
	case err != nil:
		return fmt.Errorf("delete pod %s: %w", x.Name, err)
	}
	tls := secret(d, podTLSName(x.Name), api.ComponentRank)
	if there, err := r.find(ctx, d, tls); err != nil || !there {
		return err
	}
	if err := r.remove(ctx, tls, client.Preconditions{UID: &tls.UID}); err != nil {
		return err
	}
	r.event(d, pod, corev1.EventTypeNormal, api.EventPodReleased, "Delete", "Deleted pod %s (UID %s): %s.", x.Name, x.UID, x.Why)
	return nil
}

// silentMembers returns the running pods that hold a member of the active layout and whose agents do not answer. Other
// agents report the layout; otherwise the label, which outlives an operator, marks its pods.
func silentMembers(pods []corev1.Pod, seen *world.Snapshot) []string {
	in := layoutPods(seen.Layout)
	var out []string
	for i := range pods {
		p := &pods[i]
		if err := seen.Errors[string(p.UID)]; err != nil && !finished(p) &&
			(slices.Contains(in, string(p.UID)) || seen.Layout == nil && p.Labels[api.MemberLabel] == "true") {
			out = append(out, fmt.Sprintf("%s: %v", p.Name, err))
		}
	}
	return out
}

// endsNow says whether a pod was deleted without time to drain.
func endsNow(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds <= 1
}

// label marks pods for the engines' Service, and standby pods, which autoscalers ignore. It restores changed labels.
func (r *Reconciler) label(ctx context.Context, d *api.MoEDeployment, pods []corev1.Pod, layout, standing []string) error {
	for i := range pods {
		p := &pods[i]
		before := p.DeepCopy()
		maps.Copy(p.Labels, rankLabels(d, ordinalOf(p)))
		for label, whose := range map[string][]string{api.MemberLabel: layout, api.StandbyLabel: standing} {
			if slices.Contains(whose, string(p.UID)) {
				p.Labels[label] = "true"
			} else {
				delete(p.Labels, label)
			}
		}
		if maps.Equal(before.Labels, p.Labels) {
			continue
		}
		if err := r.Patch(ctx, p, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("label pod %s: %w", p.Name, err)
		}
	}
	return nil
}
