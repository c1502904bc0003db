package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/kube"
)

// A driver whose devices exist only for the scheduler: no kubelet knows it, so no pod with such a device starts.
const gpuDriver = "gpu.tests.tangram.dev"

// gpus publishes a node's GPUs like a driver for dynamic resource allocation: by memory.
func gpus(node string, memory ...string) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{TypeMeta: metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus-of-tests"},
		Spec:       resourcev1.ResourceSliceSpec{Driver: gpuDriver, NodeName: ptr.To(node), Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1}}}
	for i, m := range memory {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i),
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse(m)}}})
	}
	return slice
}

// The cluster's scheduler gives each rank a separate GPU that matches the world's selectors, shared by agent and
// engine. If none is left, the world reports the scheduler's message.
func TestSchedulerAssignsGPUPerRank(t *testing.T) {
	t.Parallel()
	k := namespace(t, "")
	class := &resourcev1.DeviceClass{TypeMeta: metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: gpuDriver},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf("device.driver == '%s'", gpuDriver)}}}}}
	published := []*resourcev1.ResourceSlice{gpus("n1", "141Gi", "80Gi", "141Gi"), gpus("n2", "141Gi")}
	require.NoError(t, k.Apply(t.Context(), class, published[0], published[1]))
	t.Cleanup(func() {
		for _, object := range []string{"deviceclass/" + class.Name, "resourceslice/" + published[0].Name, "resourceslice/" + published[1].Name} {
			require.NoError(t, k.Delete(context.Background(), object, true))
		}
	})
	large := fmt.Sprintf("device.capacity['%s'].memory.compareTo(quantity('140Gi')) >= 0", gpuDriver)
	require.NoError(t, k.Apply(t.Context(), manifest(4, func(s *v1alpha2.MoEDeploymentSpec) {
		s.Accelerator = v1alpha2.Accelerator{Type: v1alpha2.AcceleratorNVIDIA, DeviceClassName: class.Name, Selectors: []string{large}}
		s.Memory.Weights = resource.MustParse("100Gi") // of a GPU; no node here has this much
	})))

	var placed map[string]string // device by pod
	eventually(t, "three ranks with a GPU", func() (bool, string) {
		placed = allocated(t, k)
		return len(placed) == 3, fmt.Sprint(placed)
	})
	require.ElementsMatch(t, []string{"n1/gpu-0", "n1/gpu-2", "n2/gpu-0"}, values(placed), "a device each, and none that is too small")
	for _, p := range ranks(t, k) {
		if placed[p.Name] == "" {
			require.Empty(t, p.Spec.NodeName)
			continue
		}
		require.Equal(t, p.Spec.NodeName+"/", placed[p.Name][:len(p.Spec.NodeName)+1], "a GPU of its node")
		for _, c := range p.Spec.Containers {
			require.Equal(t, []corev1.ResourceClaim{{Name: p.Spec.ResourceClaims[0].Name}}, c.Resources.Claims, "%s of %s", c.Name, p.Name)
		}
	}
	requireCondition(t, k, v1alpha2.ConditionDegraded, "True", v1alpha2.ReasonPodsUnschedulable, "cannot allocate all claims")
	requireDeleted(t, k)
}

// allocated returns the exclusively allocated devices as node/device, by pod.
func allocated(t *testing.T, k *kube.Client) map[string]string {
	t.Helper()
	claims := &resourcev1.ResourceClaimList{}
	require.NoError(t, k.Get(t.Context(), claims, "resourceclaims"))
	out := map[string]string{}
	for _, claim := range claims.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		require.Len(t, claim.Status.ReservedFor, 1)
		results := claim.Status.Allocation.Devices.Results
		require.Len(t, results, 1)
		out[claim.Status.ReservedFor[0].Name] = results[0].Pool + "/" + results[0].Device
	}
	return out
}

func values(m map[string]string) []string {
	var out []string
	for _, v := range m {
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}
