package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

func TestSuspend(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	before := b.serve("w", 3)
	b.change(`{"spec":{"suspend":true}}`)
	require.Equal(t, before.Status.LayoutHash, b.ready("w").Status.LayoutHash, "it serves on")
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	suspended := func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionProgressing, metav1.ConditionFalse, api.ReasonSuspended) && has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonSuspended)
	}
	d := b.until("w", "suspended", suspended)
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash)
	require.Equal(t, api.ReasonSuspended, d.Status.State)

	b.die("w-1") // repairs still run
	d = b.until("w", "repaired, and no more", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 2 && suspended(d) })
	require.Equal(t, api.ModeExpert, d.Status.Mode)
	require.Len(t, b.history(), 2)
	b.change(`{"spec":{"suspend":false}}`)
	d = b.ready("w")
	require.EqualValues(t, 3, d.Status.Ranks)
	require.Equal(t, api.ModeTensor, d.Status.Mode)
}

func TestSuspend_WhenTransitionInProgress(t *testing.T) {
	b := newBed(t)
	b.serve("w", 2)
	b.world("w").HoldStage(true)
	b.scale(4)
	b.until("w", "a transition runs", func(d *api.MoEDeployment) bool {
		return d.Status.Transition != nil && d.Status.Transition.Phase == "stage"
	})
	b.change(`{"spec":{"suspend":true}}`)
	b.until("w", "it was seen", func(d *api.MoEDeployment) bool { return d.Status.ObservedGeneration == d.Generation })
	b.world("w").HoldStage(false)
	d := b.until("w", "the flip ended, and no other began", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionProgressing, metav1.ConditionFalse, api.ReasonSuspended) && b.recent(d)
	})
	require.EqualValues(t, 2, d.Status.Epoch)
	require.Equal(t, api.PhaseSuperseded, d.Status.RecentTransitions[0].Phase)
	b.change(`{"spec":{"suspend":null}}`)
	b.ready("w")
}

func (b *bed) annotate(value string) {
	b.t.Helper()
	d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: b.namespace}}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, api.AbortAnnotation, value)
	require.NoError(b.t, b.c.Patch(b.t.Context(), d, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

func TestAbort(t *testing.T) {
	for phase, hold := range map[string]func(*bed, bool){
		"stage": func(b *bed, yes bool) { b.world("w").HoldStage(yes) },
		"flip":  func(b *bed, yes bool) { b.world("w").HoldGate(yes) },
	} {
		t.Run(phase, func(t *testing.T) {
			b := newBed(t)
			d := b.deployment("w", 2)
			require.NoError(t, b.c.Create(t.Context(), d))
			b.ready("w")
			hold(b, true)
			b.scale(4)
			d = b.until("w", "a transition runs", func(d *api.MoEDeployment) bool {
				return d.Status.Transition != nil && d.Status.Transition.Phase == phase
			})
			name := d.Status.Transition.Name
			b.annotate(fmt.Sprintf("%q", name))
			if phase == "flip" {
				b.until("w", "it is seen: the flip has a permit, and ends by its own", func(d *api.MoEDeployment) bool {
					return has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonTransition) && strings.Contains(message(d, api.ConditionProgressing), "aborted")
				})
			}
			hold(b, phase == "stage")
			d = b.until("w", "aborted", func(d *api.MoEDeployment) bool {
				return has(d, api.ConditionProgressing, metav1.ConditionFalse, api.ReasonAborted) && has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonAborted) && b.recent(d)
			})
			require.Equal(t, api.PhaseAborted, d.Status.RecentTransitions[0].Phase)
			require.Equal(t, name, d.Status.RecentTransitions[0].Name)
			require.True(t, b.world("w").Idle())
			require.Contains(t, message(d, api.ConditionProgressing), name)
			b.told(api.EventTransitionAborted, "2 ranks ExpertParallel -> 4 ranks ExpertParallel")
			if phase == "stage" {
				require.EqualValues(t, 1, d.Status.Epoch)
			} else {
				require.EqualValues(t, 2, d.Status.Epoch)
			}
			hold(b, false)
			require.Len(t, b.history(), 2, "it is not begun again")
			if phase == "stage" {
				b.annotate("null")
			} else {
				b.scale(3) // a new spec
			}
			b.ready("w")
			require.Empty(t, message(b.get("w"), api.ConditionStalled))
		})
	}
}

// A LayoutTransition that a dead operator left open does not run: its abort does not end another one.
func TestAbort_WhenNamedTransitionNotRunning(t *testing.T) {
	b := newBed(t)
	b.serve("w", 2)
	b.world("w").HoldStage(true)
	b.scale(4)
	b.until("w", "a transition runs", func(d *api.MoEDeployment) bool {
		return d.Status.Transition != nil && d.Status.Transition.Phase == "stage"
	})
	d := b.get("w")
	left := &api.LayoutTransition{ObjectMeta: meta(d, "w-left-open", "transition"), Spec: api.LayoutTransitionSpec{MoEDeploymentName: "w",
		MoEDeploymentGeneration: d.Generation, Kind: api.KindScale, Summary: "2 ranks ExpertParallel -> 4 ranks ExpertParallel", Flips: 2, Members: []string{"a"},
		From: api.TransitionEnd{Epoch: 1, LayoutHash: "00"}, To: api.TransitionEnd{LayoutHash: "00", Ranks: 4, Mode: api.ModeExpert}, PlanHash: "00"}}
	left.OwnerReferences = []metav1.OwnerReference{ownerReference(d)}
	require.NoError(t, b.c.Create(t.Context(), left))
	b.annotate(`"w-left-open"`)
	b.seen(b.get("w"))
	b.world("w").HoldStage(false)
	b.until("w", "the one that ran has ended well", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 4 })
	require.Zero(t, b.count(api.EventTransitionAborted))
}

// budget waits until the disruption budget has this limit.
func (b *bed) budget(most int32) *policyv1.PodDisruptionBudget {
	b.t.Helper()
	pdb := &policyv1.PodDisruptionBudget{}
	require.Eventually(b.t, func() bool {
		err := b.c.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-engines"}, pdb)
		return err == nil && pdb.Spec.MaxUnavailable.IntVal == most
	}, wait, tick, "a budget of %d", most)
	return pdb
}

func TestDisruptionBudget(t *testing.T) {
	b := newBed(t)
	b.serve("w", 1)
	pdb := b.budget(0)
	require.Equal(t, map[string]string{api.WorldLabel: "w", api.ComponentLabel: api.ComponentRank, api.MemberLabel: "true"}, pdb.Spec.Selector.MatchLabels)
	b.scale(3)
	b.ready("w")
	b.budget(1)
	b.world("w").HoldStage(true)
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	b.budget(0) // a transition runs
	b.world("w").HoldStage(false)
	b.ready("w")
	b.budget(1)
}

// After an eviction (drain, kubelet, spot notice) the pod leaves by a transition and another one replaces it.
func TestEviction(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	before := b.serve("w", 3)
	gone := b.pod("w-1")
	evict := func() error {
		return b.c.SubResource("eviction").Create(context.Background(), b.pod("w-1"), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "w-1", Namespace: b.namespace}})
	}
	pdb := b.budget(1)
	allow := func(n int32) { // stands in for the disruption controller, which does not run here
		require.Eventually(t, func() bool {
			if b.c.Get(t.Context(), client.ObjectKeyFromObject(pdb), pdb) != nil {
				return false
			}
			pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, DisruptionsAllowed: n, CurrentHealthy: 3, DesiredHealthy: 3 - n, ExpectedPods: 3}
			return b.c.Status().Update(t.Context(), pdb) == nil
		}, wait, tick)
	}
	allow(0)
	require.True(t, apierrors.IsTooManyRequests(evict()), "the budget covers it")
	allow(1)
	require.NoError(t, evict())
	require.Eventually(t, func() bool {
		p := &corev1.Pod{}
		err := b.c.Get(context.Background(), client.ObjectKeyFromObject(gone), p)
		return apierrors.IsNotFound(err) || err == nil && p.UID != gone.UID
	}, wait, tick)
	d := b.repaired(3, before.Status.Epoch)
	for _, m := range d.Status.Members {
		require.NotContains(t, m.ID, string(gone.UID))
	}
	require.Empty(t, b.repairs(), "it left, it did not die")
}
