package v1alpha2

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// EngineName is an engine that Tangram knows.
// +kubebuilder:validation:Enum=vllm;reference;custom
type EngineName string

// The engines.
const (
	EngineVLLM      EngineName = "vllm"
	EngineReference EngineName = "reference"
	EngineCustom    EngineName = "custom"
)

// Engine is the inference process. There is one container for each rank.
//
// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name && (has(self.image) ? self.image : \"\") == (has(oldSelf.image) ? oldSelf.image : \"\") && (has(self.args) ? self.args : []) == (has(oldSelf.args) ? oldSelf.args : [])",message="The engine is immutable. To change it, create a MoEDeployment with another name."
// +kubebuilder:validation:XValidation:rule="self.name != 'custom' || (has(self.image) && self.image.size() > 0)",fieldPath=".image",message="The engine custom has no image of the installation. Set engine.image."
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--(agent-socket|token-file|device|mesh-listen|serve-listen|advertise|tls-ca|tls-cert|tls-key)(=.*)?$'))",fieldPath=".args",message="The operator sets --agent-socket, --token-file, --device, --mesh-listen, --serve-listen, --advertise and --tls-*. Remove them from args."
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--insecure-fabric(=.*)?$'))",fieldPath=".args",message="Encryption is the same for engines and agents. Remove --insecure-fabric from args and set network.encryption to None."
type Engine struct {
	// name of the engine: vllm; reference, Tangram's own engine for processors; or custom, with an image that accepts Tangram's flags (docs/engines.md).
	// Immutable.
	// +required
	Name EngineName `json:"name"`
	// image of the engine. The default is the installation's image of this engine. It must run as any user, and write to /tmp only. Immutable.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// args of the engine in addition to those that the operator sets, e.g. ["--max-model-len", "512"]. Flags for fault tests are rejected. Immutable.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a.startsWith('--fault'))",message="Flags that start with --fault make an engine fail in tests. Remove them."
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
}

// Resources of a container, as in a Pod. Amounts are compared by value: a change from 0.2 to 200m is no change.
type Resources struct {
	// limits of the container.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Limits map[corev1.ResourceName]resource.Quantity `json:"limits,omitempty"`
	// requests of the container.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Requests map[corev1.ResourceName]resource.Quantity `json:"requests,omitempty"`
	// claims of the pod's resourceClaims that the container uses.
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
