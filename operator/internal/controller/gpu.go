package controller

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	api "tangram.dev/api/v1alpha2"
)

// gpuClass is the device class for whole GPUs that NVIDIA's DRA driver creates.
const gpuClass = "gpu.nvidia.com"

// Names, in pods and claims, of the one GPU of a rank and of its volume of shared memory.
const (
	gpuRequest   = "gpu"
	sharedMemory = "shm"
)

// gpuOf returns spec.accelerator with its defaults.
func gpuOf(d *api.MoEDeployment) api.Accelerator {
	out := *d.Spec.Accelerator.DeepCopy()
	if out.DeviceClassName == "" && out.ResourceName == "" {
		out.DeviceClassName = gpuClass
	}
	if out.SharedMemory == nil {
		out.SharedMemory = ptr.To(resource.MustParse("1Gi"))
	}
	return out
}

// handleSize is the size of the blocks in which GPU memory is mapped.
func handleSize(d *api.MoEDeployment) *resource.Quantity {
	if size := d.Spec.Tuning.HandleSize; size != nil {
		return size
	}
	return ptr.To(resource.MustParse("2Mi"))
}

// gpuClaim is the template of each pod's claim; nil: pods have none.
func gpuClaim(d *api.MoEDeployment) *resourcev1.ResourceClaimTemplate {
	gpu := gpuOf(d)
	if !d.OnGPU() || gpu.DeviceClassName == "" {
		return nil
	}
	request := resourcev1.ExactDeviceRequest{DeviceClassName: gpu.DeviceClassName, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}
	for _, expression := range gpu.Selectors {
		request.Selectors = append(request.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: expression}})
	}
	return &resourcev1.ResourceClaimTemplate{ObjectMeta: meta(d, gpuClaimName(d), api.ComponentRank),
		Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: gpuRequest, Exactly: &request}}}}}}
}

// withGPU gives a pod's GPU to the agent, which owns the memory, and to the engine, which maps it and computes.
func withGPU(d *api.MoEDeployment, pod *corev1.PodSpec) {
	gpu := gpuOf(d)
	if gpu.RuntimeClassName != "" {
		pod.RuntimeClassName = ptr.To(gpu.RuntimeClassName)
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: sharedMemory, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: gpu.SharedMemory}}})
	if gpu.DeviceClassName != "" {
		pod.ResourceClaims = []corev1.PodResourceClaim{{Name: gpuRequest, ResourceClaimTemplateName: ptr.To(gpuClaimName(d))}}
	}
	for i := range pod.Containers {
		c := &pod.Containers[i]
		// Parts of the driver in the container: libcuda, and libnvidia-ml for NVLink domains. No graphics.
		c.Env = append(c.Env, corev1.EnvVar{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "compute,utility"})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: sharedMemory, MountPath: "/dev/shm"})
		switch {
		case gpu.DeviceClassName != "":
			c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: gpuRequest}) // plus the spec's
		case c.Name == containerAgent:
			one := resource.MustParse("1")
			c.Resources.Requests[corev1.ResourceName(gpu.ResourceName)] = one
			c.Resources.Limits[corev1.ResourceName(gpu.ResourceName)] = one
		default: // a device plugin gives a device to only one container
			c.Env = append(c.Env, corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"})
		}
	}
}
