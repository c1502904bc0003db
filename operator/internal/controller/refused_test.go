package controller

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

// quota creates a used-up quota of the namespace, as the quota controller, which does not run here, would record it.
func (b *bed) quota(what corev1.ResourceName, most string) *corev1.ResourceQuota {
	b.t.Helper()
	hard := corev1.ResourceList{what: resource.MustParse(most)}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "quota", Namespace: b.namespace}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	require.NoError(b.t, b.c.Create(b.t.Context(), q))
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: hard}
	require.NoError(b.t, b.c.Status().Update(b.t.Context(), q))
	return q
}

// The API server's rejection is reported in its own words, also on a new object, and the operator tries again.
func TestRejectedObjectsAreReported(t *testing.T) {
	for name, test := range map[string]struct {
		hinder func(*bed) client.Object
		words  []string
	}{
		"quota of pods": {func(b *bed) client.Object { return b.quota(corev1.ResourcePods, "0") },
			[]string{"2 of 2 pods cannot start", "w-0", "exceeded quota: quota, requested: pods=1"}},
		"quota of services": {func(b *bed) client.Object { return b.quota(corev1.ResourceServices, "0") },
			[]string{"Service w-engines", "exceeded quota: quota"}},
		"limit range": {func(b *bed) client.Object {
			r := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "small", Namespace: b.namespace}, Spec: corev1.LimitRangeSpec{
				Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}}}}
			require.NoError(b.t, b.c.Create(b.t.Context(), r))
			return r
		}, []string{"w-0", "maximum memory usage per Container is 1Mi"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			obstacle := test.hinder(b)
			require.NoError(t, b.c.Create(t.Context(), b.deployment("w", 2)))
			d := b.degraded("w", api.ReasonObjectRejected, test.words...)
			require.Equal(t, d.Generation, d.Status.ObservedGeneration)
			require.Equal(t, api.ReasonObjectRejected, d.Status.State)
			require.True(t, has(d, api.ConditionReady, metav1.ConditionFalse, api.ReasonNoLayout))
			require.NotContains(t, message(d, api.ConditionDegraded), "\n")
			require.Equal(t, status.FailedStatus, kstatus(t, d).Status)
			b.told(api.ReasonObjectRejected, test.words[len(test.words)-1])
			require.NoError(t, b.c.Delete(t.Context(), obstacle))
			b.ready("w")
		})
	}
}

func TestRejectedTolerationIsReported(t *testing.T) {
	b := newBed(t)
	before := b.serve("w", 1)
	b.change(`{"spec":{"replicas":2,"template":{"spec":{"tolerations":[{"key":"gpu","operator":"Exists","value":"yes"}]}}}}`)
	d := b.degraded("w", api.ReasonObjectRejected, `Pod "w-1" is invalid`, "spec.tolerations[0]")
	require.True(t, has(d, api.ConditionAvailable, metav1.ConditionTrue, api.ReasonServing), "what serves goes on serving")
	require.Equal(t, before.Status.LayoutHash, d.Status.LayoutHash)
	b.change(`{"spec":{"template":null}}`)
	require.EqualValues(t, 2, b.ready("w").Status.Ranks)
}
