package v1alpha2

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// EngineName is the name of an engine.
// +kubebuilder:validation:Enum=vllm;reference;custom
type EngineName string

// The engines.
const (
	EngineVLLM      EngineName = "vllm"
	EngineReference EngineName = "reference"
	EngineCustom    EngineName = "custom"
)

// Engine configures the inference process. Each rank has one container for it.
//
// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name && (has(self.image) ? self.image : \"\") == (has(oldSelf.image) ? oldSelf.image : \"\") && (has(self.args) ? self.args : []) == (has(oldSelf.args) ? oldSelf.args : [])",message="The engine is immutable. To change it, create a MoEDeployment with another name."
// +kubebuilder:validation:XValidation:rule="self.name != 'custom' || (has(self.image) && self.image.size() > 0)",fieldPath=".image",message="The engine custom has no image of the installation. Set engine.image."
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--(agent-socket|token-file|device|mesh-listen|serve-listen|advertise|tls-ca|tls-cert|tls-key)(=.*)?$'))",fieldPath=".args",message="The operator sets --agent-socket, --token-file, --device, --mesh-listen, --serve-listen, --advertise and --tls-*. Remove them from args."
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--insecure-fabric(=.*)?$'))",fieldPath=".args",message="Encryption is the same for engines and agents. Remove --insecure-fabric from args and set network.encryption to None."
type Engine struct {
	// name is the name of the engine. vllm is vLLM. reference is Tangram's own engine, which computes on CPUs. custom
	// is your image, which must accept Tangram's flags (docs/engines.md). This field is immutable.
	// +required
	Name EngineName `json:"name"`
	// image is the image of the engine. The default is the installation's image of this engine. custom has no default.
	// The image must run as any user and write only to /tmp. This field is immutable.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// args are arguments of the engine in addition to those that the operator sets, e.g. ["--max-model-len", "512"].
	// Flags for fault tests are rejected. This field is immutable.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a.startsWith('--fault'))",message="Flags that start with --fault make an engine fail in tests. Remove them."
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
}

// Resources has the resources of a container, as in a Pod. Amounts are compared by value, so a change from 0.2 to 200m
// changes nothing.
type Resources struct {
	// limits are the resource limits of the container.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Limits map[corev1.ResourceName]resource.Quantity `json:"limits,omitempty"`
	// requests are the resource requests of the container.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Requests map[corev1.ResourceName]resource.Quantity `json:"requests,omitempty"`
	// claims are the entries of the pod's resourceClaims that the container uses.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Claims []corev1.ResourceClaim `json:"claims,omitempty"`
}

// Requirements of a container.
func (r Resources) Requirements() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Limits: r.Limits, Requests: r.Requests, Claims: r.Claims}
}
