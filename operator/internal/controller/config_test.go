package controller

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "tangram.dev/api/v1alpha2"
)

// configOf returns the ConfigMap that a pod refers to.
func (b *bed) configOf(pod string) *corev1.ConfigMap {
	b.t.Helper()
	config := &corev1.ConfigMap{}
	for _, v := range b.pod(pod).Spec.Volumes {
		if v.ConfigMap != nil {
			require.NoError(b.t, b.c.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: v.ConfigMap.Name}, config))
		}
	}
	require.NotEmpty(b.t, config.Name, "pod %s mounts no configuration", pod)
	return config
}

// agentConfig returns the file of the agent in a world's first pod.
func (b *bed) agentConfig(d *api.MoEDeployment) map[string]any {
	b.t.Helper()
	return fileIn(b.t, b.configOf(podName(d, 0)))
}

func fileIn(t *testing.T, config *corev1.ConfigMap) map[string]any {
	t.Helper()
	file := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(config.Data["agent.yaml"]), &file))
	return file
}

// An agent may restart in place with an old image, which rejects the keys of a newer file. So a pod's file never
// changes. A file is removed with the last pod that refers to it.
func TestAgentConfig_WhenDesiredConfigChanges(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 1)
	old := b.configOf("w-0")
	require.EqualValues(t, 100, fileIn(t, old)["staging_percent"])
	require.NotNil(t, old.Immutable)
	require.True(t, *old.Immutable)

	// The file of an older operator, named by the world alone, and one of another owner.
	orphan := &corev1.ConfigMap{ObjectMeta: meta(d, "w-agent", api.ComponentRank)}
	orphan.OwnerReferences = []metav1.OwnerReference{ownerReference(d)}
	foreign := &corev1.ConfigMap{ObjectMeta: meta(d, "foreign", api.ComponentRank)}
	require.NoError(t, b.c.Create(t.Context(), orphan))
	require.NoError(t, b.c.Create(t.Context(), foreign))

	b.change(`{"spec":{"replicas":2,"transition":{"bandwidthPercent":25}}}`)
	b.ready("w")
	require.EqualValues(t, 25, fileIn(t, b.configOf("w-1"))["staging_percent"])
	require.Equal(t, old.Name, b.configOf("w-0").Name)
	require.Equal(t, old.Data, b.configOf("w-0").Data, "the file of a pod that is there changed")
	require.Eventually(t, func() bool { return b.gone(&corev1.ConfigMap{}, orphan.Name) }, wait, tick)

	leaves := b.pod("w-0")
	leaves.Annotations = map[string]string{api.DeletionCostAnnotation: "-10"}
	require.NoError(t, b.c.Update(t.Context(), leaves))
	b.seen(leaves)
	b.scale(1)
	b.ready("w")
	require.Equal(t, []string{"w-1"}, b.podNames("w"))
	require.Eventually(t, func() bool { return b.gone(&corev1.ConfigMap{}, old.Name) }, wait, tick, "no pod refers to it any more")
	require.EqualValues(t, 25, fileIn(t, b.configOf("w-1"))["staging_percent"])
	require.False(t, b.gone(&corev1.ConfigMap{}, foreign.Name))
	require.False(t, b.gone(&corev1.ConfigMap{}, recordsName(d)))
}
