package v1alpha2

import "k8s.io/apimachinery/pkg/api/resource"

// AcceleratorType is the kind of memory that holds weights and KV cache.
// +kubebuilder:validation:Enum=None;NVIDIA
type AcceleratorType string

// The types.
const (
	// AcceleratorNone: weights and KV cache are in the memory of the pods.
	AcceleratorNone AcceleratorType = "None"
	// AcceleratorNVIDIA: weights and KV cache are in the memory of NVIDIA GPUs, mapped by CUDA's virtual memory management.
	AcceleratorNVIDIA AcceleratorType = "NVIDIA"
)

// Accelerator selects the accelerator of each rank. A rank has one whole GPU, which the agent and the engine of its pod
// share.
//
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'None' || !(has(self.deviceClassName) || has(self.selectors) || has(self.resourceName) || has(self.runtimeClassName) || has(self.sharedMemory))",message="accelerator.type None has no device. Set accelerator.type to NVIDIA, or remove the other fields of accelerator."
// +kubebuilder:validation:XValidation:rule="!has(self.resourceName) || !has(self.deviceClassName)",message="resourceName (device plugin) and deviceClassName (dynamic resource allocation) exclude each other. Remove one of them."
// +kubebuilder:validation:XValidation:rule="!has(self.resourceName) || !has(self.selectors)",fieldPath=".selectors",message="A device plugin has no selectors. Use deviceClassName, or remove selectors and choose nodes with template.spec.nodeSelector."
type Accelerator struct {
	// type is the type of the accelerator. With None, the default, weights and KV cache are in the memory of the pods.
	// The engine must support the type. This field is immutable.
	// +kubebuilder:default=None
	// +optional
	Type AcceleratorType `json:"type,omitempty"`
	// deviceClassName is the device class for dynamic resource allocation. Each pod gets a claim for one device of this
	// class. Its agent and its engine share the device. The default is gpu.nvidia.com, unless resourceName is set. This
	// field is immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self != 'mig.nvidia.com'",message="A MIG slice cannot reach other GPUs, and ranks copy from each other's memory. Use a class of whole GPUs, e.g. gpu.nvidia.com."
	// +optional
	DeviceClassName string `json:"deviceClassName,omitempty"`
	// selectors are CEL expressions that the device must satisfy, e.g.
	// device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('140Gi')) >= 0. They cannot be used with
	// resourceName. This field is immutable.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=10240
	// +listType=atomic
	// +optional
	Selectors []string `json:"selectors,omitempty"`
	// resourceName is the resource of a device plugin, e.g. nvidia.com/gpu, for clusters without dynamic resource
	// allocation. The agent requests one device. A device plugin gives a device to one container only, so the engine
	// can use any GPU of the node. Set this field only for nodes with one GPU. This field is immutable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.contains('/mig-')",message="A MIG slice cannot reach other GPUs, and ranks copy from each other's memory. Name a resource of whole GPUs, e.g. nvidia.com/gpu."
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9.-]+/[A-Za-z0-9._-]+$')",message="resourceName must be the name of an extended resource, DOMAIN/NAME, e.g. nvidia.com/gpu."
	// +optional
	ResourceName string `json:"resourceName,omitempty"`
	// runtimeClassName is the runtime class of the pods. Set it if containers see GPUs only with a runtime class. This
	// field is immutable.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	RuntimeClassName string `json:"runtimeClassName,omitempty"`
	// sharedMemory is the size of /dev/shm in the pods. Communication libraries of engines use it. It counts as memory
	// of the containers that write to it. The default is 1Gi. This field is immutable.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="sharedMemory must be above 0, e.g. 1Gi."
	// +optional
	SharedMemory *resource.Quantity `json:"sharedMemory,omitempty"`
}
