package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tangram.dev/operator/internal/driver/drivertest"

	api "tangram.dev/api/v1alpha2"
)

// deleted deletes a deployment and waits until it and its pods no longer exist.
func (b *bed) deleted(name string) {
	b.t.Helper()
	b.mayHarm = true
	d := b.get(name)
	require.NoError(b.t, b.c.Delete(b.t.Context(), d))
	require.Eventually(b.t, func() bool { return b.gone(&api.MoEDeployment{}, name) }, wait, tick, "the finalizer goes")
	require.Empty(b.t, b.podNames(name), "the pods went first")
	require.Nil(b.t, b.worlds.Find(d.UID), "nothing of it runs on in the operator")
}

func TestDelete(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 3)
	require.Equal(t, []string{api.Finalizer}, d.Finalizers)
	b.serve("v", 1)
	b.deleted("w")
	require.Zero(t, testutil.CollectAndCount(b.metrics.epoch, "tangram_operator_world_epoch")-1, "only the other world's is left")
	b.ready("v")
	for _, name := range []string{"w-0-tls", "w-1-tls", "w-2-tls"} {
		require.True(t, b.gone(&corev1.Secret{}, name), name)
	}
}

func TestDelete_WhenTransitionInProgress(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	require.NoError(t, b.c.Create(t.Context(), d))
	b.ready("w")
	b.world("w").HoldStage(true)
	b.scale(4)
	b.until("w", "a transition runs", func(d *api.MoEDeployment) bool {
		return d.Status.Transition != nil && d.Status.Transition.Phase == "stage"
	})
	b.deleted("w") // it does not wait for a transition that never ends
	require.Nil(t, b.world("w").Layout(), "no agent is left")
}

func TestDelete_WhenAgentsUnresponsive(t *testing.T) {
	b := newBed(t)
	b.serve("w", 2)
	b.agent("w-0").Deaf(true)
	b.agent("w-1").Deaf(true)
	b.deleted("w")
}

// A world that never served, and one whose object name has another owner.
func TestDelete_WhenWorldNeverServed(t *testing.T) {
	b := newBed(t)
	b.let(fate{unschedulable: "no room"}, "w-0", "w-1")
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 2)))
	b.degraded("w", api.ReasonPodsUnschedulable)
	b.deleted("w")

	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "v-ca", Namespace: b.namespace}}
	require.NoError(t, b.c.Create(t.Context(), foreign))
	require.NoError(t, b.c.Create(t.Context(), b.deployment("v", 1)))
	b.degraded("v", api.ReasonNameConflict)
	b.deleted("v")
	require.False(t, b.gone(&corev1.Secret{}, "v-ca"), "what is not ours stays")
}

// A new operator continues from the agents' state and does not disturb serving.
func TestOperatorRestart_WhenIdle(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 3)
	uids := b.ranks("w")
	b.stop()
	b.operator()
	b.scale(3) // nothing changes
	d := b.ready("w")
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash)
	require.Len(t, b.history(), 1)
	b.scale(4) // proves that the new operator works
	d = b.ready("w")
	for i := range uids {
		require.Equal(t, uids[i].UID, b.pod(uids[i].Name).UID)
	}
	require.EqualValues(t, 4, d.Status.Ranks)
	require.Equal(t, uids[0].Labels[api.MemberLabel], "true")
}

func TestOperatorRestart_WhenTransitionInProgress(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	require.NoError(t, b.c.Create(t.Context(), d))
	b.ready("w")
	b.world("w").HoldStage(true)
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	d = b.until("w", "a transition runs", func(d *api.MoEDeployment) bool {
		return d.Status.Transition != nil && d.Status.Transition.Phase == "stage"
	})
	broken := d.Status.Transition.Name
	b.stop()
	require.True(t, b.world("w").Idle(), "an operator that ends in order aborts what it can")
	b.world("w").HoldStage(false)
	b.operator()
	d = b.ready("w")
	require.Equal(t, api.ModeTensor, d.Status.Mode)
	for _, lt := range b.history() {
		if lt.Name == broken {
			require.Equal(t, api.PhaseFailed, lt.Status.Phase)
			require.NotEmpty(t, lt.Status.Message)
			require.NotNil(t, lt.Status.CompletionTime)
		}
	}
}

// A killed operator leaves its LayoutTransition open and the agents in the middle of it.
func TestOperatorRestart_WhenKilledInTransition(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 2)
	b.stop()
	left := &api.LayoutTransition{ObjectMeta: metav1.ObjectMeta{Name: "w-1-left", Namespace: b.namespace, Labels: labels(d, "transition"),
		OwnerReferences: []metav1.OwnerReference{ownerReference(d)}},
		Spec: api.LayoutTransitionSpec{MoEDeploymentName: "w", MoEDeploymentGeneration: 1, Kind: api.KindScale, Summary: "2 ranks ExpertParallel -> 2 ranks TensorParallel", From: api.TransitionEnd{Epoch: 1}, To: api.TransitionEnd{LayoutHash: "x", Ranks: 2, Mode: api.ModeTensor}, PlanHash: "y", Flips: 1}}
	require.NoError(t, b.c.Create(t.Context(), left))
	b.agent("w-0").Leave(9)
	require.False(t, b.world("w").Idle())
	b.operator()
	b.change(`{"spec":{"parallelism":{"mode":"TensorParallel"}}}`)
	d = b.ready("w")
	require.Equal(t, api.ModeTensor, d.Status.Mode)
	require.True(t, b.world("w").Idle())
	require.Eventually(t, func() bool {
		for _, lt := range b.history() {
			if lt.Name == left.Name {
				return lt.Status.Phase == api.PhaseFailed && lt.Status.CompletionTime != nil && lt.Status.Message != ""
			}
		}
		return false
	}, wait, tick, "what nobody runs any more is not left open")
}

// A deleted namespace deletes its pods and waits for them before it deletes other objects. The pods do not use their
// grace periods, because the world has ended.
func TestNamespaceDeletion(t *testing.T) {
	b := newBed(t)
	b.serve("w", 2)
	b.mayHarm = true
	agents := []*drivertest.Agent{b.agent("w-0"), b.agent("w-1")}
	require.NoError(t, b.c.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}}))
	for _, p := range b.ranks("w") {
		require.NoError(t, b.c.Delete(t.Context(), &p)) // as the namespace controller does, which does not run here
	}
	require.Eventually(t, func() bool { return len(b.podNames("w")) == 0 }, wait, tick, "the grace period is longer than that")
	for _, a := range agents {
		require.Contains(t, a.Calls(), "release", "its preStop hook need not wait")
		require.False(t, a.InWorld())
	}
	b.until("w", "it says that it ends", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonDeleting)
	})
}
