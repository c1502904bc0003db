package controller

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// warn emits an event about a pod, as the kubelet does.
func (b *bed) warn(p *corev1.Pod, reason, message string) {
	b.t.Helper()
	now := metav1.Now()
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{GenerateName: p.Name + "-", Namespace: p.Namespace}, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, FirstTimestamp: now, LastTimestamp: now, Count: 1}
	require.NoError(b.t, b.c.Create(b.t.Context(), e))
}

// Only a kubelet event reports a volume that cannot be mounted. The condition shows its text until the pod starts.
func TestVolumeMountFailureIsReported(t *testing.T) {
	b := newBed(t)
	b.let(fate{hold: true}, "w-1")
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 2)))
	require.Eventually(t, func() bool {
		var p corev1.Pod
		return b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-1"}, &p) == nil && p.Spec.NodeName != ""
	}, wait, tick)
	b.warn(b.pod("w-1"), "FailedScheduling", "an older warning")
	time.Sleep(time.Second) // event times have whole seconds
	b.warn(b.pod("w-1"), "FailedMount", `MountVolume.SetUp failed for volume "models" : hostPath type check failed: /nowhere is not a directory`)
	d := b.degraded("w", api.ReasonPodsFailing, "1 of 2 pods cannot start; w-1: FailedMount", "/nowhere is not a directory")
	require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonNoLayout))
	b.told(api.ReasonPodsFailing, "/nowhere is not a directory")
	b.let(fate{}, "w-1")
	b.ready("w")
}

// The deleted Secret of an existing pod is created again.
func TestDeletedSecretIsRecreated(t *testing.T) {
	b := newBed(t)
	b.serve("w", 2)
	b.let(fate{hold: true}, "w-2")
	b.scale(3)
	secret := func() *corev1.Secret {
		s := &corev1.Secret{}
		if b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-2-tls"}, s) != nil {
			return nil
		}
		return s
	}
	require.Eventually(t, func() bool { return secret() != nil && !b.gone(&corev1.Pod{}, "w-2") }, wait, tick)
	was := secret()
	require.NoError(t, b.c.Delete(t.Context(), was))
	require.Eventually(t, func() bool { s := secret(); return s != nil && s.UID != was.UID }, wait, tick)
	require.NotEmpty(t, secret().Data[keyAgentCert])
	b.let(fate{}, "w-2")
	require.EqualValues(t, 3, b.ready("w").Status.Ranks)
}

// The same for the agents' configuration.
func TestDeletedConfigMapIsRecreated(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 1)
	config, err := agentConfig(d)
	require.NoError(t, err)
	key := client.ObjectKeyFromObject(config)
	key.Namespace = b.namespace
	was := &corev1.ConfigMap{}
	require.NoError(t, b.c.Get(t.Context(), key, was))
	require.NoError(t, b.c.Delete(t.Context(), was))
	now := &corev1.ConfigMap{}
	require.Eventually(t, func() bool { return b.c.Get(t.Context(), key, now) == nil && now.UID != was.UID }, wait, tick)
	require.Equal(t, was.Data, now.Data)
}

// gatewayPending creates a gateway's pod for which the scheduler has no node.
func (b *bed) gatewayPending(d *api.MoEDeployment, words string) *corev1.Pod {
	b.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "w-gateway-1", Namespace: b.namespace, Labels: labels(d, api.ComponentGateway)},
		Spec: must(b.r.gatewayDeployment(d, "10.0.0.1")).Spec.Template.Spec}
	require.NoError(b.t, b.c.Create(b.t.Context(), p))
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, Message: words}}}
	require.NoError(b.t, b.c.Status().Update(b.t.Context(), p))
	return p
}

// A gateway that cannot be scheduled, or whose pod is rejected, is reported with the original message.
func TestGatewayStartFailureIsReported(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 2)
	b.gatewaysDown.Store(true)
	words := "0/2 nodes are available: 2 node(s) had untolerated taint(s)"
	pod := b.gatewayPending(d, words)
	b.change(`{"metadata":{"annotations":{"look":"again"}}}`)
	b.degraded("w", api.ReasonPodsUnschedulable, "1 of 2 gateway pods cannot start; w-gateway-1: "+words)
	b.until("w", "no gateway, and why", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionAvailable, metav1.ConditionFalse, api.ReasonGatewayNotReady) && strings.Contains(message(d, api.ConditionAvailable), words) &&
			has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonWaitingForPods)
	})
	require.NoError(t, b.c.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	b.gatewaysDown.Store(false)
	b.change(`{"metadata":{"annotations":{"look":"once more"}}}`)
	b.ready("w")

	made := &appsv1.Deployment{}
	require.Eventually(t, func() bool { // the simulated Deployment controller writes too
		require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-gateway"}, made))
		made.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
			Message: "pods is forbidden: exceeded quota: small-q", LastTransitionTime: metav1.Now(), LastUpdateTime: metav1.Now()}}
		return b.c.Status().Update(t.Context(), made) == nil
	}, wait, tick)
	b.degraded("w", api.ReasonObjectRejected, "w-gateway: pods is forbidden: exceeded quota: small-q")
}

// Removed or changed labels are restored before a member counts as dead: the world serves, scales and can be deleted.
func TestChangedPodLabelsAreRestored(t *testing.T) {
	for name, change := range map[string]string{
		"all":       `{"metadata":{"labels":null}}`,
		"world":     `{"metadata":{"labels":{"` + api.WorldLabel + `":"another"}}}`,
		"component": `{"metadata":{"labels":{"` + api.ComponentLabel + `":"gateway"}}}`,
		"ordinal":   `{"metadata":{"labels":{"` + api.OrdinalLabel + `":"77","` + api.MemberLabel + `":null}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			before := b.serve("w", 2)
			pod := b.pod("w-1")
			wanted := maps.Clone(pod.Labels)
			patch := func(o client.Object) {
				require.NoError(t, b.c.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(change))))
			}
			restored := func() bool { return maps.Equal(wanted, b.pod("w-1").Labels) }
			patch(pod)
			require.Eventually(t, restored, wait, tick)
			require.Equal(t, pod.UID, b.pod("w-1").UID)
			d := b.ready("w")
			require.Equal(t, before.Status.Epoch, d.Status.Epoch, "nothing moved")
			require.Zero(t, b.count(api.ReasonMemberLost))

			// Changed while no operator runs.
			b.stop()
			patch(b.pod("w-1"))
			b.operator()
			require.Eventually(t, restored, wait, tick)
			b.scale(1)
			require.EqualValues(t, 1, b.ready("w").Status.Ranks)
			require.Eventually(t, func() bool { return b.gone(&corev1.Pod{}, "w-1") }, wait, tick)
			require.Zero(t, b.count(api.ReasonMemberLost))
		})
	}
}

// The same for Secrets: one without its labels would not be renewed.
func TestChangedSecretLabelsAreRestored(t *testing.T) {
	b := newBed(t)
	b.serve("w", 1)
	for _, name := range []string{"w-0-tls", "w-gateway-tls", "w-ca"} {
		s := &corev1.Secret{}
		key := client.ObjectKey{Namespace: b.namespace, Name: name}
		require.NoError(t, b.c.Get(t.Context(), key, s))
		wanted := maps.Clone(s.Labels)
		require.NoError(t, b.c.Patch(t.Context(), s, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":null}}`))))
		require.Eventually(t, func() bool { return b.c.Get(t.Context(), key, s) == nil && maps.Equal(wanted, s.Labels) }, wait, tick, name)
	}
}
