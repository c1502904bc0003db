package v1alpha2

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Engine is the template of the inference process. There is one container for each rank.
//
// +kubebuilder:validation:XValidation:rule="(has(self.image) && self.image.size() > 0 ? [self.image] : []) == (has(oldSelf.image) && oldSelf.image.size() > 0 ? [oldSelf.image] : []) && self.imagePullPolicy == oldSelf.imagePullPolicy && (has(self.args) ? self.args : []) == (has(oldSelf.args) ? oldSelf.args : []) && (has(self.env) ? self.env : []) == (has(oldSelf.env) ? oldSelf.env : [])",message="The engine is immutable. To change it, create a MoEDeployment with another name."
// +kubebuilder:validation:XValidation:rule="(has(self.resources) && has(self.resources.limits) ? self.resources.limits : {}).size() == (has(oldSelf.resources) && has(oldSelf.resources.limits) ? oldSelf.resources.limits : {}).size() && (has(self.resources) && has(self.resources.limits) ? self.resources.limits : {}).all(k, k in (has(oldSelf.resources) && has(oldSelf.resources.limits) ? oldSelf.resources.limits : {}) && quantity(string((has(self.resources) && has(self.resources.limits) ? self.resources.limits : {})[k])).compareTo(quantity(string((has(oldSelf.resources) && has(oldSelf.resources.limits) ? oldSelf.resources.limits : {})[k]))) == 0)",message="The engine is immutable. To change it, create a MoEDeployment with another name."
// +kubebuilder:validation:XValidation:rule="(has(self.resources) && has(self.resources.requests) ? self.resources.requests : {}).size() == (has(oldSelf.resources) && has(oldSelf.resources.requests) ? oldSelf.resources.requests : {}).size() && (has(self.resources) && has(self.resources.requests) ? self.resources.requests : {}).all(k, k in (has(oldSelf.resources) && has(oldSelf.resources.requests) ? oldSelf.resources.requests : {}) && quantity(string((has(self.resources) && has(self.resources.requests) ? self.resources.requests : {})[k])).compareTo(quantity(string((has(oldSelf.resources) && has(oldSelf.resources.requests) ? oldSelf.resources.requests : {})[k]))) == 0)",message="The engine is immutable. To change it, create a MoEDeployment with another name."
// +kubebuilder:validation:XValidation:rule="(has(self.resources) && has(self.resources.claims) ? self.resources.claims : []) == (has(oldSelf.resources) && has(oldSelf.resources.claims) ? oldSelf.resources.claims : [])",message="The engine is immutable. To change it, create a MoEDeployment with another name."
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--(agent-socket|token-file|device|mesh-listen|serve-listen|advertise|tls-ca|tls-cert|tls-key)(=.*)?$'))",fieldPath=".args",message="The operator sets --agent-socket, --token-file, --device, --mesh-listen, --serve-listen, --advertise and --tls-*. Remove them from args."
// +kubebuilder:validation:XValidation:rule="!has(self.args) || self.args.all(a, !a.matches('^--insecure-fabric(=.*)?$'))",fieldPath=".args",message="Encryption is the same for engines and agents. Remove --insecure-fabric from args and set network.encryption to None."
// +kubebuilder:validation:XValidation:rule="!has(self.env) || self.env.all(e, e.name != 'POD_IP')",fieldPath=".env",message="The operator sets POD_IP. Remove it from env."
type Engine struct {
	// image of the engine: one that accepts Tangram's flags (docs/engines.md), runs as any user, and writes to /tmp only. The default is the reference
	// engine of the installation. Immutable.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Image string `json:"image,omitempty"`
	// imagePullPolicy of all images of the pod. Immutable.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +kubebuilder:default=IfNotPresent
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// args of the engine in addition to those that the operator sets, e.g. ["--max-model-len", "512"]. Flags for fault tests are rejected. Immutable.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a.startsWith('--fault'))",message="Flags that start with --fault make an engine fail in tests. Remove them."
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
	// env of the engine. Immutable.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// resources of each engine container. Without a request for processors it requests 200m. Immutable.
	// +optional
	Resources Resources `json:"resources,omitempty"`
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

// Scheduling of pods of ranks. Pods keep the values that they were created with.
type Scheduling struct {
	// nodeSelector of the pods.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// tolerations of the pods.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// priorityClassName of the pods.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// agentResources of the container that owns weights and KV cache. Its memory, and its huge pages, follow from spec.memory and are rejected here.
	// Without a request for processors it requests 100m. During a flip engines wait for their agents: with less than half of the engine's request, streams
	// are delayed if processors are short.
	// +kubebuilder:validation:XValidation:rule="(!has(self.requests) || !self.requests.exists(k, k == 'memory' || k.startsWith('hugepages-'))) && (!has(self.limits) || !self.limits.exists(k, k == 'memory' || k.startsWith('hugepages-')))",message="The memory of the agent follows from spec.memory. Remove memory and huge pages here."
	// +optional
	AgentResources corev1.ResourceRequirements `json:"agentResources,omitempty"`
	// terminationGracePeriodSeconds is the time to drain a pod that is deleted.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=300
	// +optional
	TerminationGracePeriodSeconds int64 `json:"terminationGracePeriodSeconds,omitempty"`
}
