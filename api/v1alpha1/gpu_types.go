package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// Backend is the memory that weights and KV cache lie in.
//
// +kubebuilder:validation:Enum=Host;CUDA
type Backend string

// The backends.
const (
	// BackendHost is memory of the pods.
	BackendHost Backend = "Host"
	// BackendCUDA is memory of NVIDIA GPUs, by the driver's virtual memory management.
	BackendCUDA Backend = "CUDA"
)

// GPU says which GPU a rank gets and how its memory is cut. A rank has one whole GPU, which the agent and the engine of its pod share.
//
// +kubebuilder:validation:XValidation:rule="!has(self.resourceName) || !has(self.deviceClassName)",message="resourceName (a device plugin) and deviceClassName (dynamic resource allocation) are two ways to the same GPU: leave one out"
// +kubebuilder:validation:XValidation:rule="!has(self.resourceName) || !has(self.selectors)",fieldPath=".selectors",message="a device plugin knows no selectors: use deviceClassName, or leave them out and choose nodes by scheduling.nodeSelector"
type GPU struct {
	// deviceClassName of dynamic resource allocation. Each pod gets a claim of its own for one device of this class, which its agent and its engine both
	// name. Without it and without resourceName: gpu.nvidia.com.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self != 'mig.nvidia.com'",message="a MIG slice reaches no other GPU, and ranks copy from each other's: use a class of whole GPUs, e.g. gpu.nvidia.com"
	// +optional
	DeviceClassName string `json:"deviceClassName,omitempty"`
	// selectors that the device must satisfy, in CEL, e.g. device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('140Gi')) >= 0
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=10240
	// +listType=atomic
	// +optional
	Selectors []string `json:"selectors,omitempty"`
	// resourceName of a device plugin, e.g. nvidia.com/gpu, for clusters without dynamic resource allocation. The agent asks for one; a plugin gives a
	// device to one container alone, so the engine is told to use whatever GPU its node has: only for nodes with one.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.contains('/mig-')",message="a MIG slice reaches no other GPU, and ranks copy from each other's: name a resource of whole GPUs, e.g. nvidia.com/gpu"
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9.-]+/[A-Za-z0-9._-]+$')",message="resourceName is that of an extended resource: domain/name, e.g. nvidia.com/gpu"
	// +optional
	ResourceName string `json:"resourceName,omitempty"`
	// runtimeClassName of the pods, where containers see GPUs only with a runtime of their own.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	RuntimeClassName string `json:"runtimeClassName,omitempty"`
	// handleSize is the unit in which weights are mapped, a multiple of 2Mi. Each costs a flip two calls of the driver and an engine a file descriptor, so
	// it shall hold a whole expert, e.g. 36Mi for Qwen3-235B-A22B.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).asInteger() > 0 && quantity(string(self)).asInteger() % 2097152 == 0",message="handleSize must be a multiple of 2Mi, e.g. 36Mi"
	// +kubebuilder:default="2Mi"
	// +optional
	HandleSize *resource.Quantity `json:"handleSize,omitempty"`
	// sharedMemory is the size of /dev/shm of the pods, which communication libraries of engines use. It counts as memory of whoever writes there.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="sharedMemory must be above 0, e.g. 1Gi"
	// +kubebuilder:default="1Gi"
	// +optional
	SharedMemory *resource.Quantity `json:"sharedMemory,omitempty"`
}
