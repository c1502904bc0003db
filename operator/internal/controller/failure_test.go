package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

func TestScaleUp_WhenPodsUnschedulable(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 2)
	words := "0/2 nodes are available: 2 Insufficient memory. preemption: 0/2 nodes are available"
	b.let(fate{unschedulable: words}, "w-3")
	b.scale(4)
	d := b.degraded("w", api.ReasonPodsUnschedulable, words, "1 of 4 pods", "w-3")
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing))
	require.True(t, has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonWaitingForPods))
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash, "what serves goes on serving")
	require.EqualValues(t, []int32{2, 4, 2}, []int32{d.Status.Ranks, d.Status.Replicas, d.Status.ReadyReplicas})
	b.told(api.ReasonPodsUnschedulable, "Insufficient memory")
	b.scale(2)
	d = b.ready("w")
	require.Equal(t, []string{"w-0", "w-1"}, b.podNames("w"))
	require.Equal(t, before.Status.Epoch, d.Status.Epoch)

	b.scale(4)
	b.degraded("w", api.ReasonPodsUnschedulable)
	b.let(fate{}) // a node becomes available
	require.EqualValues(t, 4, b.ready("w").Status.Ranks)
}

func TestMissingVolumeClaimIsReported(t *testing.T) {
	b := newBed(t)
	b.let(fate{unschedulable: `persistentvolumeclaim "models" not found`}, "w-0")
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 1)))
	b.degraded("w", api.ReasonPodsUnschedulable, `persistentvolumeclaim "models" not found`, "w-0")
}

func TestImageStartFailureIsReported(t *testing.T) {
	b := newBed(t)
	b.let(fate{waiting: &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull", Message: `Container image "engine:test" is not present with pull policy of Never`}}, "w-0", "w-1")
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 2)))
	d := b.degraded("w", api.ReasonPodsFailing, "2 of 2 pods", "ErrImageNeverPull", `"engine:test" is not present`)
	require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonNoLayout))
	require.Equal(t, api.ReasonPodsFailing, d.Status.State)
	require.Equal(t, status.FailedStatus, kstatus(t, d).Status)
	b.told(api.ReasonPodsFailing, "ErrImageNeverPull")
	b.let(fate{}) // the image becomes available
	b.ready("w")
}

// A container ends before its pod joins, as an agent does without a model. The pod stays for a while for inspection,
// then a new one is tried.
func TestPod_WhenContainerExitsBeforeJoin(t *testing.T) {
	b := keeping(t)
	before := b.serve("w", 1)
	b.let(fate{detached: true}, "w-1")
	b.scale(2)
	b.agent("w-1")
	first := b.pod("w-1")
	b.crash("w-1", "agent", 2, "/models/demo/config.json: no such file")
	d := b.degraded("w", api.ReasonPodsFailing, "w-1", "container agent ended with exit code 2", "/models/demo/config.json: no such file")
	require.Equal(t, before.Status.Epoch, d.Status.Epoch)
	require.Equal(t, first.UID, b.pod("w-1").UID)
	b.let(fate{})
	b.keep(0)
	require.EqualValues(t, 2, b.ready("w").Status.Ranks, "another was tried")
	for _, p := range b.ranks("w") {
		require.NotEqual(t, first.UID, p.UID)
	}
}

// A condition shows only the last line of an agent's log of JSON lines.
func TestContainerProblemShowsLastLogLine(t *testing.T) {
	b := keeping(t)
	b.serve("w", 1)
	b.let(fate{detached: true}, "w-1")
	b.scale(2)
	b.agent("w-1")
	var log strings.Builder
	for i := range 15 {
		fmt.Fprintf(&log, "{\"time\":\"2026-01-02T03:04:%02d.000Z\",\"level\":\"info\",\"message\":\"line %d\"}\n", i, i)
	}
	b.crash("w-1", "agent", 2, log.String())
	d := b.degraded("w", api.ReasonPodsFailing, "w-1", "container agent ended with exit code 2", "line 14")
	for _, c := range d.Status.Conditions {
		require.NotContains(t, c.Message, "\n", c.Type)
		require.NotContains(t, c.Message, "line 13", c.Type)
		require.LessOrEqual(t, len(c.Message), longestMessage, c.Type)
	}
	b.told(api.ReasonPodsFailing, "line 14")
}

func TestClip(t *testing.T) {
	for text, want := range map[string]string{
		"one line":                   "one line",
		"a\n\n  b\r\nc\n":            "a; b; c",
		"\x1b[31mred\x1b[0m":         "[31mred [0m",
		"tab\there":                  "tab here",
		"0123456789abcdef":           "0123456789abcdef",
		"0123456789abcdefg":          "0123456789abc...",
		"0123456789ab\u00e9\u00e9xy": "0123456789ab...", // no half of a character
		"bad \xff byte":              "bad ? byte",
	} {
		require.Equal(t, want, clip(text, 16), "%q", text)
	}
	require.Equal(t, "last", lastWords("first\nlast\n\n"))
	require.Empty(t, lastWords(""))
	require.Len(t, lastWords(strings.Repeat("x", 1<<20)), longestWords)
}

func TestScaleUpWaitsForEngineToAttach(t *testing.T) {
	b := newBed(t)
	b.serve("w", 1)
	b.let(fate{detached: true}, "w-1")
	b.scale(2)
	b.agent("w-1")
	d := b.until("w", "waits", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionProgressing, metav1.ConditionTrue, api.ReasonWaitingForPods)
	})
	require.EqualValues(t, 1, d.Status.Ranks)
	b.let(fate{})
	require.EqualValues(t, 2, b.ready("w").Status.Ranks)
}

// A pod deleted by a user leaves the world first; its preStop hook waits for that.
func TestPodDeletedByHand(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	b.serve("w", 3)
	b.let(fate{hold: true}, "w-3") // the replacement starts slowly
	gone := b.pod("w-1")
	require.NoError(t, b.c.Delete(t.Context(), gone))
	d := b.until("w", "it has left", func(d *api.MoEDeployment) bool { return d.Status.Ranks == 2 })
	require.Greater(t, d.Status.Epoch, int64(1), "it left by a transition, the world was not lost")
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing))
	require.Eventually(t, func() bool { return b.gone(&corev1.Pod{}, "w-1") }, wait, tick, "and then it ends")
	b.let(fate{})
	d = b.ready("w")
	require.EqualValues(t, 3, d.Status.Ranks)
	require.Equal(t, []string{"w-0", "w-2", "w-3"}, b.podNames("w"))
	for _, m := range d.Status.Members {
		require.NotContains(t, m.ID, string(gone.UID))
	}
	require.Eventually(t, func() bool { return b.gone(&corev1.Secret{}, "w-1-tls") }, wait, tick, "a key without a pod is a leak")
	require.False(t, b.gone(&corev1.Secret{}, "w-3-tls"))
}

func TestDeletedLastPodWaitsForReplacement(t *testing.T) {
	b := newBed(t)
	b.mayHarm = true
	b.serve("w", 1)
	b.let(fate{hold: true}, "w-1")
	require.NoError(t, b.c.Delete(t.Context(), b.pod("w-0")))
	require.Eventually(t, func() bool { return len(b.podNames("w")) == 2 }, wait, tick)
	require.True(t, b.agent("w-0").InWorld(), "it serves on")
	b.let(fate{})
	require.Eventually(t, func() bool { return b.gone(&corev1.Pod{}, "w-0") }, wait, tick)
	d := b.ready("w")
	require.EqualValues(t, 1, d.Status.Ranks)
	require.Equal(t, "w-1", d.Status.Members[0].Pod)
	require.Greater(t, d.Status.Epoch, int64(1))
}

func TestUnresponsiveAgentsAreNotRemoved(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 2)
	b.agent("w-1").Deaf(true)
	d := b.degraded("w", api.ReasonAgentsUnreachable, "w-1", "connection refused")
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing), "the other rank is reached")
	require.Equal(t, before.Status.Members, d.Status.Members, "silence is no loss")
	require.Len(t, b.podNames("w"), 2)
	b.agent("w-0").Deaf(true)
	d = b.degraded("w", api.ReasonAgentsUnreachable, "w-0", "w-1")
	require.Equal(t, before.Status.Members, d.Status.Members, "what was known last is told on")
	require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonAgentsUnreachable))

	// Their state is unknown, so nothing may be done to them, also not by a new operator.
	b.scale(1)
	b.until("w", "the operator has seen it", func(d *api.MoEDeployment) bool { return d.Status.ObservedGeneration == d.Generation })
	b.stop()
	b.operator()
	b.scale(3)
	b.until("w", "the successor has seen it", func(d *api.MoEDeployment) bool { return d.Status.ObservedGeneration == d.Generation })
	b.scale(1)
	d = b.degraded("w", api.ReasonAgentsUnreachable, "w-0", "w-1")
	for i, p := range b.ranks("w") {
		require.Nil(t, p.DeletionTimestamp, p.Name)
		require.Equal(t, "true", p.Labels[api.MemberLabel], p.Name)
		require.Less(t, i, 2, p.Name)
	}
	require.EqualValues(t, 2, d.Status.Ranks)
	b.scale(2)
	b.agent("w-0").Deaf(false)
	b.agent("w-1").Deaf(false)
	d = b.ready("w")
	require.Equal(t, before.Status.Epoch, d.Status.Epoch)
	require.Equal(t, before.Status.Members, d.Status.Members)
}

func TestForeignObjectIsNotAdopted(t *testing.T) {
	for name, o := range map[string]client.Object{
		"w-1":       &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: restrictedPod(), Containers: []corev1.Container{{Name: "c", Image: "i", SecurityContext: restricted()}}}},
		"w-ca":      &corev1.Secret{Data: map[string][]byte{"mine": []byte("1")}},
		"w-world":   &corev1.ConfigMap{Data: map[string]string{"mine": "1"}},
		"w-engines": &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}},
		"w":         &corev1.ServiceAccount{},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			o.SetName(name)
			o.SetNamespace(b.namespace)
			require.NoError(t, b.c.Create(t.Context(), o))
			require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 2)))
			d := b.degraded("w", api.ReasonNameConflict, b.namespace+"/"+name, "belongs to no controller", "Delete or rename the object")
			require.Equal(t, api.ReasonNameConflict, d.Status.State)
			require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonNameConflict) || has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonNoLayout))
			require.Equal(t, status.FailedStatus, kstatus(t, d).Status)
			b.told(api.ReasonNameConflict, name)
			there, ok := o.DeepCopyObject().(client.Object)
			require.True(t, ok)
			require.NoError(t, b.c.Get(t.Context(), client.ObjectKeyFromObject(o), there))
			require.Equal(t, o.GetResourceVersion(), there.GetResourceVersion(), "it is not touched")
			require.NoError(t, b.c.Delete(t.Context(), o, client.GracePeriodSeconds(0)))
			b.ready("w")
		})
	}
}

func TestWorldsWithSameNameAreIsolated(t *testing.T) {
	one := newBed(t)
	two := another(t)
	one.serve("w", 2)
	two.serve("w", 1)
	authority := func(b *bed) []byte {
		s := &corev1.Secret{}
		require.NoError(t, b.c.Get(t.Context(), client.ObjectKey{Namespace: b.namespace, Name: "w-ca"}, s))
		return s.Data[keyCA]
	}
	require.NotEqual(t, authority(one), authority(two), "neither trusts the other's certificates")
	two.change(`{"spec":{"parallelism":{"mode":"TensorParallel"},"replicas":3}}`)
	require.EqualValues(t, 3, two.ready("w").Status.Ranks)
	d := one.get("w")
	require.EqualValues(t, []int64{1, 2}, []int64{d.Status.Epoch, int64(d.Status.Ranks)})
	require.NoError(t, two.c.Delete(t.Context(), two.get("w")))
	two.mayHarm = true
	require.Eventually(t, func() bool { return two.gone(&api.MoEDeployment{}, "w") }, wait, tick)
	require.Len(t, one.podNames("w"), 2)
	one.ready("w")
}

func TestAvailable_WhenNoGatewayReady(t *testing.T) {
	b := newBed(t)
	b.gatewaysDown.Store(true)
	require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 2)))
	d := b.until("w", "the ranks serve and no gateway does", func(d *api.MoEDeployment) bool {
		return has(d, api.ConditionAvailable, metav1.ConditionFalse, api.ReasonGatewayNotReady) && d.Status.Ranks == 2 &&
			strings.Contains(message(d, api.ConditionAvailable), "2 ranks accept requests")
	})
	require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonGatewayNotReady))
	b.gatewaysDown.Store(false)
	b.ready("w")
}
