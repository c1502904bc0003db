package v1alpha2

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MoEDeploymentSpec is the desired state of a world.
//
// +kubebuilder:validation:XValidation:rule="!has(self.parallelism) || !has(self.parallelism.layers) || !has(self.autoscaling)",fieldPath=".autoscaling",message="autoscaling does not support hybrid layouts of parallelism.layers. Remove one of them."
// +kubebuilder:validation:XValidation:rule="!has(self.autoscaling) || (has(self.minReplicas) && has(self.maxReplicas))",fieldPath=".autoscaling",message="autoscaling needs bounds. Set minReplicas and maxReplicas."
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",fieldPath=".minReplicas",message="minReplicas is above maxReplicas. Lower minReplicas, or raise maxReplicas."
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || ((!has(self.minReplicas) || self.replicas >= self.minReplicas) && (!has(self.maxReplicas) || self.replicas <= self.maxReplicas))",fieldPath=".replicas",message="replicas is outside minReplicas and maxReplicas. Change replicas, or the bounds."
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || (self.maxReplicas + (has(self.standbyReplicas) ? self.standbyReplicas : 0)) * self.ranksPerPod <= 8192",fieldPath=".maxReplicas",message="A world has at most 8192 ranks, including standby. Lower maxReplicas, standbyReplicas or ranksPerPod."
// +kubebuilder:validation:XValidation:rule="((has(self.replicas) ? self.replicas : 1) + (has(self.standbyReplicas) ? self.standbyReplicas : 0)) * self.ranksPerPod <= 8192",fieldPath=".replicas",message="A world has at most 8192 ranks, including standby. Lower replicas, standbyReplicas or ranksPerPod."
// +kubebuilder:validation:XValidation:rule="self.ranksPerPod == oldSelf.ranksPerPod",fieldPath=".ranksPerPod",message="ranksPerPod is immutable. To change it, create a MoEDeployment with another name."
// +kubebuilder:validation:XValidation:rule="self.accelerator == oldSelf.accelerator",fieldPath=".accelerator",message="accelerator is immutable. To change it, create a MoEDeployment with another name."
// +kubebuilder:validation:XValidation:rule="self.accelerator.type == 'None' || self.ranksPerPod == 1",fieldPath=".ranksPerPod",message="On accelerators a pod has one rank. Set ranksPerPod to 1, and more replicas."
// +kubebuilder:validation:XValidation:rule="self.accelerator.type == 'None' || self.memory.pageSize == '4Ki'",fieldPath=".memory.pageSize",message="pageSize is for the memory of pods, and accelerators have their own. Remove memory.pageSize."
// +kubebuilder:validation:XValidation:rule="self.accelerator.type != 'None' || !has(self.tuning.handleSize)",fieldPath=".tuning.handleSize",message="handleSize is for the memory of accelerators. Remove tuning.handleSize, or set accelerator.type."
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !has(self.gateway.text) || self.gateway.text.tokenizer == 'Bytes' || has(self.gateway.text.image) || self.engine.name == 'vllm'",fieldPath=".gateway.text",message="Only the image of the engine vllm has a text server. Set gateway.text.image to the vLLM image."
type MoEDeploymentSpec struct {
	// replicas is the number of pods of the world. `kubectl scale` and autoscalers write it. If you leave it out, the
	// number does not change, and the operator writes it here. A new world then gets minReplicas, or 1. With
	// autoscaling, replicas is the number at the start. 0 is rejected: to stop serving, delete the MoEDeployment. A
	// change starts a transition.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8192
	// +kubebuilder:validation:XValidation:rule="self >= 1",message="A world has at least one pod. To stop serving, delete the MoEDeployment."
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// minReplicas is the minimum of replicas. A smaller number is rejected. It can be changed at any time.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8192
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`

	// maxReplicas is the maximum of replicas. A larger number is rejected. It can be changed at any time.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8192
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`

	// standbyReplicas is the number of standby pods in addition to replicas. A standby pod has a running agent and an
	// attached engine, but no weights. Scale-ups and replacements use a standby pod if one is ready, and the operator
	// creates a new one. The default is 0. It can be changed at any time.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=64
	// +optional
	StandbyReplicas int32 `json:"standbyReplicas,omitempty"`

	// ranksPerPod is the number of ranks of each pod. The default is 1. With an accelerator it must be 1. This field is
	// immutable.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	// +kubebuilder:default=1
	// +optional
	RanksPerPod int32 `json:"ranksPerPod,omitempty"`

	// parallelism is the distribution of experts and attention heads over the ranks.
	// +optional
	Parallelism Parallelism `json:"parallelism,omitempty"`

	// autoscaling lets the operator choose the number of replicas, between minReplicas and maxReplicas, to meet an SLO.
	// It can be changed at any time.
	// +optional
	Autoscaling *Autoscaling `json:"autoscaling,omitempty"`

	// experts configures redundant experts and rebalancing.
	// +kubebuilder:default={}
	// +optional
	Experts Experts `json:"experts,omitempty"`

	// model is the model to serve.
	// +required
	Model Model `json:"model"`

	// engine configures the inference process of each rank.
	// +required
	Engine Engine `json:"engine"`

	// memory is the memory of each rank for weights and KV cache. The operator computes missing values from the
	// checkpoint.
	// +kubebuilder:default={}
	// +optional
	Memory Memory `json:"memory,omitempty"`

	// accelerator selects the accelerator of each rank.
	// +kubebuilder:default={}
	// +optional
	Accelerator Accelerator `json:"accelerator,omitempty"`

	// template is merged over the pods of ranks, by Kubernetes' strategic merge. Its containers are agent and engine.
	// Pods keep the values with which they were created.
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.containers) || self.spec.containers.all(c, c.name in ['agent', 'engine'])",fieldPath=".spec.containers",message="The containers of a pod of ranks are agent and engine. Others are not supported."
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.containers) || !self.spec.containers.exists(c, c.name == 'agent' && has(c.resources) && ((has(c.resources.requests) && c.resources.requests.exists(k, k == 'memory' || k.startsWith('hugepages-'))) || (has(c.resources.limits) && c.resources.limits.exists(k, k == 'memory' || k.startsWith('hugepages-')))))",fieldPath=".spec.containers",message="The memory of the agent follows from spec.memory. Remove memory and huge pages from the resources of container agent."
	// +optional
	Template PodTemplate `json:"template,omitempty"`

	// gateway configures the gateways in front of the world.
	// +kubebuilder:default={}
	// +optional
	Gateway Gateway `json:"gateway,omitempty"`

	// certificates configures the certificates that protect the connections of the world.
	// +optional
	Certificates Certificates `json:"certificates,omitempty"`

	// network configures the connections between the pods of the world.
	// +kubebuilder:default={}
	// +optional
	Network Network `json:"network,omitempty"`

	// transition configures how the world changes its layout.
	// +kubebuilder:default={}
	// +optional
	Transition Transition `json:"transition,omitempty"`

	// suspend stops new transitions after the current flip. Serving continues. Failed ranks are repaired, but their
	// pods are not replaced. The default is false. It can be changed at any time.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// tuning has advanced settings.
	// +kubebuilder:default={}
	// +optional
	Tuning Tuning `json:"tuning,omitempty"`
}

// Model is the model to serve.
type Model struct {
	// name is the name that clients use for the model. The default is the name of the MoEDeployment. A change starts a
	// rollout of the gateways.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
	// source is the location of the checkpoint, a folder with config.json and safetensors files. This field is
	// immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="model.source is immutable. To change it, create a MoEDeployment with another name."
	// +required
	Source ModelSource `json:"source"`
}

// ModelSource is the location of the checkpoint. Exactly one field must be set.
//
// +kubebuilder:validation:XValidation:rule="has(self.persistentVolumeClaim) != has(self.imageVolume)",message="Set exactly one of model.source.persistentVolumeClaim (a claim that holds the checkpoint) and model.source.imageVolume (an OCI image or artifact)."
type ModelSource struct {
	// persistentVolumeClaim is a claim in the same namespace that holds the checkpoint. It is mounted read-only in
	// every pod that reads the checkpoint.
	// +optional
	PersistentVolumeClaim *ClaimSource `json:"persistentVolumeClaim,omitempty"`
	// imageVolume is an OCI image or artifact that holds the checkpoint. The container runtime pulls it with the
	// imagePullSecrets of the templates. It needs Kubernetes 1.36 and a runtime that supports image volumes.
	// +optional
	ImageVolume *ImageSource `json:"imageVolume,omitempty"`
}

// CheckpointPath is the folder of the checkpoint, relative to the root of a volume.
//
// +kubebuilder:validation:MaxLength=1024
// +kubebuilder:validation:XValidation:rule="!self.startsWith('/') && !self.split('/').exists(p, p == '..')",message="path must be relative to the volume, without '..'."
type CheckpointPath string

// ClaimSource is a folder on a claim.
type ClaimSource struct {
	// claimName is the name of the PersistentVolumeClaim.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +required
	ClaimName string `json:"claimName"`
	// path is the folder of the checkpoint, relative to the root of the volume. The default is the root.
	// +optional
	Path CheckpointPath `json:"path,omitempty"`
}

// ImageSource is a folder in an OCI image or artifact.
type ImageSource struct {
	// reference is the name of the image, with a tag or a digest. Use a digest, because all pods of a world must read
	// the same weights.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +required
	Reference string `json:"reference"`
	// pullPolicy is the pull policy of the image. The default is IfNotPresent.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`
	// path is the folder of the checkpoint in the image. The default is the root.
	// +optional
	Path CheckpointPath `json:"path,omitempty"`
}

// Strategy is the strategy of a transition.
// +kubebuilder:validation:Enum=Smooth;Fast
type Strategy string

// The strategies.
const (
	// StrategySmooth transfers bytes while the engines serve, and flips between two steps.
	StrategySmooth Strategy = "Smooth"
	// StrategyFast pauses all streams while bytes are transferred, for at most ten seconds per flip.
	StrategyFast Strategy = "Fast"
)

// Transition configures how the world changes its layout.
type Transition struct {
	// strategy selects between undisturbed streams and a short transition. Smooth, the default, transfers bytes while
	// requests are served. Fast pauses requests for at most ten seconds per flip, and completes sooner. Repairs ignore
	// this field. It can be changed at any time.
	// +kubebuilder:default=Smooth
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`
	// timeoutSeconds is the maximum time without progress, in seconds. When it expires, the running attempt is aborted
	// and the old layout stays active. The default is 60. It can be changed at any time.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=60
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// bandwidthPercent is the percentage of its time in which a worker may transfer bytes while requests are served.
	// Workers only use processor time that serving does not need. A value below 100 also leaves links and memory
	// bandwidth to serving, and makes transitions slower. The default is 100. Pods keep the value with which they were
	// created.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=100
	// +optional
	BandwidthPercent int32 `json:"bandwidthPercent,omitempty"`
}

// MoEDeployment is a world of ranks that serves one Mixture-of-Experts model and changes its layout while it serves.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=moed
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.status.model`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`,description="Number of pods in the active layout, and the desired number."
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`,priority=1
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40",message="The name must have at most 40 characters, because names of pods and Services are derived from it."
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="The name must start with a letter and contain only lower-case letters, digits and '-', because names of Services are derived from it."
type MoEDeployment struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the desired state.
	// +required
	Spec MoEDeploymentSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status MoEDeploymentStatus `json:"status,omitempty"`
}

// MoEDeploymentList is a list of MoEDeployment.
//
// +kubebuilder:object:root=true
type MoEDeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MoEDeployment `json:"items"`
}
