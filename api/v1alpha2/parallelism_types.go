package v1alpha2

import "k8s.io/apimachinery/pkg/util/intstr"

// Mode is the distribution of experts and attention heads over the ranks of a world.
type Mode string

// The modes.
const (
	// ModeExpert: each expert is whole on one rank, and each request has its attention heads on one rank.
	ModeExpert Mode = "ExpertParallel"
	// ModeTensor: each expert is sharded over all ranks; so are attention heads, if the engine can split them.
	ModeTensor Mode = "TensorParallel"
	// ModeAuto is for specs only: the operator chooses the mode.
	ModeAuto Mode = "Auto"
	// ModeHybrid is for statuses only: layers differ, or their groups are neither one rank nor all ranks.
	ModeHybrid Mode = "Hybrid"
)

// Parallelism is the distribution of a model over the ranks of its world.
//
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || !has(self.layers)",fieldPath=".layers",message="mode and layers contradict each other. Set layers for a hybrid layout, or mode for one layout of all layers."
// +kubebuilder:validation:XValidation:rule="!has(self.auto) || (has(self.mode) && self.mode == 'Auto')",fieldPath=".auto",message="parallelism.auto is for mode Auto. Set parallelism.mode to Auto, or remove parallelism.auto."
type Parallelism struct {
	// mode is the mode of all layers. ExpertParallel keeps each expert on one rank (EP). TensorParallel shards each
	// expert over all ranks (TP). It also shards attention heads if the engine supports it (vLLM does not). Auto lets
	// the operator choose between them by the load. The default is ExpertParallel, unless layers is set. A change
	// starts a transition while requests stream.
	// +kubebuilder:validation:Enum=ExpertParallel;TensorParallel;Auto
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// layers are the ranges of layers of a hybrid layout. They replace mode. Layers outside all ranges are as in mode
	// ExpertParallel. If the ranges do not fit the number of ranks or the model, the active layout stays, and Degraded
	// has the reason LayoutDoesNotFit. A change starts a transition.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=24
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.filter(b, (!has(b.lastLayer) || a.firstLayer <= b.lastLayer) && (!has(a.lastLayer) || b.firstLayer <= a.lastLayer)).size() == 1)",message="Ranges of layers overlap. Each layer may be in one range only, and a range without lastLayer ends at the last layer."
	// +listType=atomic
	// +optional
	Layers []LayerRange `json:"layers,omitempty"`

	// auto configures how mode Auto decides. It can be changed at any time.
	// +optional
	Auto *AutoMode `json:"auto,omitempty"`
}

// AllRanks is a group of all ranks of the world.
const AllRanks = "All"

// LayerRange is the distribution of a range of layers over the ranks.
//
// +kubebuilder:validation:XValidation:rule="!has(self.lastLayer) || self.firstLayer <= self.lastLayer",fieldPath=".lastLayer",message="lastLayer is below firstLayer. Both are included in the range, and layers count from 0."
type LayerRange struct {
	// firstLayer is the first layer of the range. Layers count from 0, and layers without experts count too. The
	// default is 0.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	// +kubebuilder:default=0
	// +optional
	FirstLayer int32 `json:"firstLayer"`
	// lastLayer is the last layer of the range. The default is the last layer of the model.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	// +optional
	LastLayer *int32 `json:"lastLayer,omitempty"`
	Groups    `json:",inline"`
}

// Groups has the sizes of the groups of ranks that share experts and attention heads.
type Groups struct {
	// expertGroup is the number of ranks that share an expert, one shard each. It is a divisor of the number of ranks,
	// or All. With 1, the default, experts are whole. Layers without experts ignore it.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 8192 : self == 'All'",message="expertGroup must be a number of ranks from 1 to 8192, or All."
	// +kubebuilder:default=1
	// +optional
	ExpertGroup *intstr.IntOrString `json:"expertGroup,omitempty"`
	// attentionGroup is the number of ranks that share the attention heads of a request. It is a divisor of the number
	// of ranks, or All. With 1, the default, the KV cache of a request is on one rank.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 8192 : self == 'All'",message="attentionGroup must be a number of ranks from 1 to 8192, or All."
	// +kubebuilder:default=1
	// +optional
	AttentionGroup *intstr.IntOrString `json:"attentionGroup,omitempty"`
}

// Action is the reaction to a decision of a policy.
// +kubebuilder:validation:Enum=Recommend;Apply
type Action string

// The actions.
const (
	// ActionRecommend reports the decision in the status, and changes nothing.
	ActionRecommend Action = "Recommend"
	// ActionApply starts a transition.
	ActionApply Action = "Apply"
)

// AutoPolicy is a policy that decides the mode of a world in mode Auto.
// +kubebuilder:validation:Enum=Calibrated;Threshold
type AutoPolicy string

// The policies (docs/policy.md).
const (
	// PolicyCalibrated switches if the time that it saves is worth more than the switch costs, as measured in this world.
	PolicyCalibrated AutoPolicy = "Calibrated"
	// PolicyThreshold switches at fixed numbers of requests: 256 and 205.
	PolicyThreshold AutoPolicy = "Threshold"
)

// AutoMode configures how mode Auto decides.
type AutoMode struct {
	// policy decides the mode. Calibrated, the default, uses a cost model that is fitted to this world. Threshold uses
	// fixed numbers of requests (256 and 205).
	// +kubebuilder:default=Calibrated
	// +optional
	Policy AutoPolicy `json:"policy,omitempty"`
	// action is the reaction to a decision. Recommend, the default, reports it in status.policy and in the condition
	// ModeOptimal. Apply also starts the switch.
	// +kubebuilder:default=Recommend
	// +optional
	Action Action `json:"action,omitempty"`
	// kernelProfile is the name of the measured kernels from which policy Calibrated starts, as MODEL/ENGINE/ROUTING.
	// They need not match this model, engine or hardware. They show how step durations grow, and measurements of this
	// world correct them. docs/policy.md lists the names. An unknown profile is reported in Degraded, with the names
	// that exist. The default is Qwen3-30B-A3B/vllm/power_law_1.2. Autoscaling in another mode uses the default.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:default="Qwen3-30B-A3B/vllm/power_law_1.2"
	// +optional
	KernelProfile string `json:"kernelProfile,omitempty"`
	// hybrids are layouts that policy Calibrated may choose in addition to ExpertParallel and TensorParallel, e.g.
	// {expertGroup: All, attentionGroup: 1}. Each is the same for all layers. A hybrid that does not fit the number of
	// ranks, the model or the engine is not chosen.
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	// +optional
	Hybrids []Groups `json:"hybrids,omitempty"`
}

// RangeStatus is the distribution of a range of layers in the active layout.
type RangeStatus struct {
	// firstLayer is the first layer of the range.
	FirstLayer int32 `json:"firstLayer"`
	// lastLayer is the last layer of the range.
	LastLayer int32 `json:"lastLayer"`
	// expertGroup is the number of ranks that share an expert.
	ExpertGroup int32 `json:"expertGroup"`
	// attentionGroup is the number of ranks that share the attention heads of a request.
	AttentionGroup int32 `json:"attentionGroup"`
}
