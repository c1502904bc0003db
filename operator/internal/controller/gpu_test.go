package controller

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "tangram.dev/api/v1alpha2"
)

func (b *bed) gpuTemplate(d *api.MoEDeployment) (*resourcev1.ResourceClaimTemplate, error) {
	out := &resourcev1.ResourceClaimTemplate{}
	return out, b.c.Get(b.t.Context(), client.ObjectKey{Namespace: b.namespace, Name: gpuClaimName(d)}, out)
}

// With dynamic resource allocation, agent and engine share the GPU of one claim; its memory is not the host's.
func TestAgentAndEngineShareGPUClaim(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 2)
	d.Spec.Accelerator.Type = api.AcceleratorNVIDIA
	const large = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('140Gi')) >= 0"
	d.Spec.Accelerator.Selectors, d.Spec.Tuning.HandleSize = []string{large}, ptr.To(resource.MustParse("36Mi"))
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: b.namespace}, Handler: "nvidia"}
	require.NoError(t, b.c.Create(t.Context(), class))
	d.Spec.Accelerator.RuntimeClassName = class.Name
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")

	template, err := b.gpuTemplate(d)
	require.NoError(t, err)
	require.Len(t, template.Spec.Spec.Devices.Requests, 1)
	exactly := template.Spec.Spec.Devices.Requests[0].Exactly
	require.Equal(t, "gpu.nvidia.com", exactly.DeviceClassName)
	require.EqualValues(t, 1, exactly.Count)
	require.Equal(t, large, exactly.Selectors[0].CEL.Expression)
	require.Equal(t, d.UID, metav1.GetControllerOf(template).UID)

	pod := b.pod("w-0").Spec
	require.Equal(t, class.Name, *pod.RuntimeClassName)
	require.Len(t, pod.ResourceClaims, 1)
	require.Equal(t, template.Name, *pod.ResourceClaims[0].ResourceClaimTemplateName)
	for _, c := range pod.Containers {
		require.Equal(t, []corev1.ResourceClaim{{Name: pod.ResourceClaims[0].Name}}, c.Resources.Claims, c.Name)
		require.Contains(t, c.VolumeMounts, corev1.VolumeMount{Name: sharedMemory, MountPath: "/dev/shm"}, c.Name)
	}
	require.Equal(t, "agent-gpu:test", pod.Containers[0].Image)
	require.Equal(t, "agent-gpu:test", pod.InitContainers[0].Image)
	for _, c := range pod.Containers {
		require.Contains(t, c.Env, corev1.EnvVar{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "compute,utility"}, c.Name)
	}
	memory := pod.Containers[0].Resources.Requests[corev1.ResourceMemory]
	require.EqualValues(t, 256<<20, memory.Value(), "the agent's own, and no pool")
	file := b.agentConfig(d)
	require.Equal(t, "cuda", file["device"])
	require.EqualValues(t, 36<<20, file["page_bytes"])

	// A user removes the template of new pods' claims.
	require.NoError(t, b.c.Delete(t.Context(), template))
	require.Eventually(t, func() bool {
		again, err := b.gpuTemplate(d)
		return err == nil && again.UID != template.UID
	}, wait, tick)
}

// A device plugin has no claims: the agent requests the device, and the engine uses the devices of the node.
func TestDevicePluginAssignsGPUToAgent(t *testing.T) {
	b := newBed(t)
	d := b.deployment("w", 1)
	d.Spec.Accelerator = api.Accelerator{Type: api.AcceleratorNVIDIA, ResourceName: "nvidia.com/gpu"}
	require.NoError(t, b.c.Create(t.Context(), d))
	d = b.ready("w")
	_, err := b.gpuTemplate(d)
	require.True(t, client.IgnoreNotFound(err) == nil && err != nil, "no claim is made: %v", err)
	pod := b.pod("w-0").Spec
	require.Empty(t, pod.ResourceClaims)
	one := resource.MustParse("1")
	agent, engine := pod.Containers[0], pod.Containers[1]
	require.True(t, one.Equal(agent.Resources.Limits["nvidia.com/gpu"]) && one.Equal(agent.Resources.Requests["nvidia.com/gpu"]))
	require.NotContains(t, engine.Resources.Limits, corev1.ResourceName("nvidia.com/gpu"))
	require.Contains(t, engine.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"})
	require.EqualValues(t, 2<<20, b.agentConfig(d)["page_bytes"])
}

// A world on the host has none of it.
func TestHostWorldHasNoGPU(t *testing.T) {
	b := newBed(t)
	d := b.serve("w", 1)
	_, err := b.gpuTemplate(d)
	require.Error(t, err)
	pod := b.pod("w-0").Spec
	require.Equal(t, "agent:test", pod.Containers[0].Image)
	require.Empty(t, pod.ResourceClaims)
	require.Nil(t, pod.RuntimeClassName)
	require.NotContains(t, b.agentConfig(d), "device")
}

// A communication library chooses its ports: ranks of a world may use all ports if plain text is allowed, never else.
func TestRankPolicy_WhenGPUWorldUnencrypted(t *testing.T) {
	r := &Reconciler{OwnNamespace: "tangram-system"}
	for _, c := range []struct {
		backend    api.AcceleratorType
		encryption api.Encryption
		open       bool
	}{{api.AcceleratorNVIDIA, api.EncryptionNone, true}, {api.AcceleratorNVIDIA, api.EncryptionRequired, false}, {api.AcceleratorNone, api.EncryptionNone, false}} {
		d := &api.MoEDeployment{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "n"}}
		d.Spec.Accelerator.Type, d.Spec.Network.Encryption, d.Spec.RanksPerPod = c.backend, c.encryption, 1
		open := false
		for _, rule := range r.rankPolicy(d).Spec.Ingress {
			if len(rule.Ports) == 0 {
				open = true
				require.Equal(t, component(d, api.ComponentRank), rule.From, "ranks of the same world alone")
			}
		}
		require.Equal(t, c.open, open, "%+v", c)
	}
}
