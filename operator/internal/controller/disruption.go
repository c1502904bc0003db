package controller

import (
	"context"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"tangram.dev/operator/internal/world"

	api "tangram.dev/api/v1alpha2"
)

// disruptionBudget says how many members of the active layout may be evicted now: one, so that a drain goes pod by pod.
// Each pod then leaves by a transition. It is none for a world of one pod, during a transition or a repair, and while
// suspended. Pods in no layout can be evicted at any time.
func disruptionBudget(d *api.MoEDeployment, seen *world.Snapshot) *policyv1.PodDisruptionBudget {
	in := layoutPods(seen.Layout)
	slices.Sort(in)
	in = slices.Compact(in)
	most := intstr.FromInt32(0)
	if len(in) >= 2 && seen.Running == nil && !seen.NeedsRepair() && !d.Spec.Suspend {
		most = intstr.FromInt32(1)
	}
	members := selector(d, api.ComponentRank)
	members[api.MemberLabel] = "true"
	out := &policyv1.PodDisruptionBudget{ObjectMeta: meta(d, enginesName(d), api.ComponentRank), Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: &most, Selector: &metav1.LabelSelector{MatchLabels: members},
		UnhealthyPodEvictionPolicy: ptr.To(policyv1.IfHealthyBudget)}}
	if d.AppliesReplicas() { // maxUnavailable counts against spec.replicas, which is not the desired number here
		least := intstr.FromInt32(max(d.DesiredReplicas(), int32(len(in))) - most.IntVal)
		out.Spec.MaxUnavailable, out.Spec.MinAvailable = nil, &least
	}
	return out
}

// budget applies the disruption budget once the members of the layout are known; until then the last one stays.
func (r *Reconciler) budget(ctx context.Context, d *api.MoEDeployment, seen *world.Snapshot) error {
	if !seen.Looked && seen.Layout == nil {
		return nil
	}
	return r.apply(ctx, d, disruptionBudget(d, seen))
}
