package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ModePolicy decides the mode of a world in mode Auto.
// +kubebuilder:validation:Enum=Calibrated;Threshold
type ModePolicy string

// The policies (docs/policy.md).
const (
	// PolicyCalibrated switches when what it saves is worth more than the switch costs, by what this world measures.
	PolicyCalibrated ModePolicy = "Calibrated"
	// PolicyThreshold switches at the published numbers of requests: 256 and 205.
	PolicyThreshold ModePolicy = "Threshold"
)

// Autoscaling says how a world in mode Auto decides on its mode and, with slo, how a world in any mode decides on its width. All of it may be changed while it serves.
// +kubebuilder:validation:XValidation:rule="has(self.slo) == has(self.minReplicas) && has(self.slo) == has(self.maxReplicas)",message="the width is decided by slo between minReplicas and maxReplicas: set all three, or none"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",fieldPath=".minReplicas",message="minReplicas is above maxReplicas: lower it, or raise maxReplicas"
type Autoscaling struct {
	// policy: Calibrated or Threshold.
	// +kubebuilder:default=Calibrated
	// +optional
	Policy ModePolicy `json:"policy,omitempty"`
	// dryRun: what the policies decide is only recommended: status.policy and the conditions Optimal and ScalingActive tell it, and nothing is done.
	// false: it is done. mode Auto without autoscaling recommends, too.
	// +kubebuilder:default=true
	// +optional
	DryRun *bool `json:"dryRun,omitempty"`
	// prior: measured kernels that Calibrated begins with, until this world has measured its own.
	// +kubebuilder:default={}
	// +optional
	Prior KernelPrior `json:"prior,omitempty"`
	// minReplicas: pods at least. With slo, the operator decides how many pods there are, and replicas is only where it begins.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8192
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// maxReplicas: pods at most.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=8192
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// slo that the fewest pods are looked for that hold it. Absent: replicas says how many pods there are.
	// +optional
	SLO *SLO `json:"slo,omitempty"`
	// hybrids that mode Auto may choose beside Expert and Tensor, all layers alike, e.g. {expertGroup: All, attentionGroup: 1}: experts sliced over all ranks, each
	// request's heads on one. Absent: none. One that does not fit a width, the model or the engine is not chosen there. Only policy Calibrated chooses them.
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	// +optional
	Hybrids []Groups `json:"hybrids,omitempty"`
}

// Groups of ranks, as in LayerRange, of all layers.
type Groups struct {
	// expertGroup: ranks that share an expert; a number that divides that of the ranks, or All.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 8192 : self == 'All'",message="expertGroup is a number of ranks, 1 to 8192, or All"
	// +kubebuilder:default=1
	// +optional
	ExpertGroup *intstr.IntOrString `json:"expertGroup,omitempty"`
	// attentionGroup: ranks that share the heads of a request; a number that divides that of the ranks, or All.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 8192 : self == 'All'",message="attentionGroup is a number of ranks, 1 to 8192, or All"
	// +kubebuilder:default=1
	// +optional
	AttentionGroup *intstr.IntOrString `json:"attentionGroup,omitempty"`
}

// SLO of answers, by the clients' clock.
// +kubebuilder:validation:XValidation:rule="has(self.ttft) || has(self.tpot)",message="an SLO needs ttft or tpot, e.g. ttft: 2s"
type SLO struct {
	// ttft: the longest time to the first token.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('1h')",message="ttft must be above 0 and at most 1h, e.g. 2s"
	// +optional
	TTFT *metav1.Duration `json:"ttft,omitempty"`
	// tpot: the longest mean time between later tokens.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('1h')",message="tpot must be above 0 and at most 1h, e.g. 100ms"
	// +optional
	TPOT *metav1.Duration `json:"tpot,omitempty"`
	// attainment: percent of the answers that are to be within both.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	// +kubebuilder:default=90
	// +optional
	Attainment int32 `json:"attainment,omitempty"`
}

// KernelPrior names a table of measured kernels. They need not be those of this model, engine or hardware: the table says how steps grow and how the modes
// compare, and what this world measures corrects it.
type KernelPrior struct {
	// model that the kernels were measured with.
	// +kubebuilder:validation:Enum=Qwen3-30B-A3B;Qwen3-235B-A22B
	// +kubebuilder:default=Qwen3-30B-A3B
	// +optional
	Model string `json:"model,omitempty"`
	// engine whose kernels they are.
	// +kubebuilder:validation:Enum=sglang;trtllm;vllm
	// +kubebuilder:default=vllm
	// +optional
	Engine string `json:"engine,omitempty"`
	// routing of tokens to experts: how uneven it was.
	// +kubebuilder:validation:Enum=balanced;power_law_1.01;power_law_1.2
	// +kubebuilder:default=power_law_1.2
	// +optional
	Routing string `json:"routing,omitempty"`
}

// PolicyOutcome of what a policy was asked last.
// +kubebuilder:validation:Enum=Stay;Switch;NoDecision
type PolicyOutcome string

// The outcomes.
const (
	OutcomeStay       PolicyOutcome = "Stay"
	OutcomeSwitch     PolicyOutcome = "Switch"
	OutcomeNoDecision PolicyOutcome = "NoDecision" // the layout stays
)

// PolicyStatus is what the policies of a world decided.
type PolicyStatus struct {
	// mode that the world is to be in: as decided last, and followed.
	Mode Mode `json:"mode"`
	// layout that the world is to have, as spec.layout would say it. Only in mode Hybrid.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1
	// +optional
	Layout []LayerRange `json:"layout,omitempty"`
	// replicas: pods that the world is to have, as decided last, and followed. Only with autoscaling.slo.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// width: what was said last of the number of pods. Only with autoscaling.slo.
	// +optional
	Width *WidthStatus `json:"width,omitempty"`
	// time at which the rest was true.
	Time metav1.Time `json:"time"`
	// outcome: Stay, Switch or NoDecision.
	Outcome PolicyOutcome `json:"outcome"`
	// reason, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// rejected modes, and why.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Rejected []RejectedMode `json:"rejected,omitempty"`
	// refused: options to which a switch failed. Such a switch is taken back, and its option is not chosen before its time is over: a minute after the
	// first failure, twice as long after each further one, an hour at most. A switch that succeeds clears its option.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Refused []RefusedOption `json:"refused,omitempty"`
	// decisions to switch, the newest first; also those of a dry run.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +optional
	Decisions []PolicyDecision `json:"decisions,omitempty"`
}

// WidthStatus is what the policy of the width said last.
type WidthStatus struct {
	// outcome: Stay, Switch or NoDecision.
	Outcome PolicyOutcome `json:"outcome"`
	// cause of NoDecision where somebody has to do something about it: TwoOwners, SLOOutOfReach or ModelContradicted.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Cause string `json:"cause,omitempty"`
	// reason, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// rejected widths, and why.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Rejected []RejectedWidth `json:"rejected,omitempty"`
}

// RejectedWidth is an alternative that was not taken.
type RejectedWidth struct {
	// replicas: pods.
	Replicas int32 `json:"replicas"`
	// mode in which, where that is decided with the width.
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// layout of mode Hybrid, in short.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layout string `json:"layout,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why"`
}

// RejectedMode is an alternative that was not taken.
type RejectedMode struct {
	Mode Mode `json:"mode"`
	// layout of mode Hybrid, in short.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layout string `json:"layout,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why"`
}

// RefusedOption is a mode at a width to which a switch failed.
type RefusedOption struct {
	// replicas: pods.
	Replicas int32 `json:"replicas"`
	Mode     Mode  `json:"mode"`
	// layout of mode Hybrid, in short.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layout string `json:"layout,omitempty"`
	// failures since a switch to it succeeded last.
	// +kubebuilder:validation:Minimum=1
	Failures int32 `json:"failures"`
	// until: it is not chosen before.
	Until metav1.Time `json:"until"`
	// why the last switch failed.
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why"`
}

// PolicyDecision to switch, or to have another number of pods.
type PolicyDecision struct {
	Time metav1.Time `json:"time"`
	From Mode        `json:"from"`
	To   Mode        `json:"to"`
	// toLayout of mode Hybrid, in short.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ToLayout string `json:"toLayout,omitempty"`
	// fromReplicas and toReplicas: pods, of a decision on the width.
	// +optional
	FromReplicas int32 `json:"fromReplicas,omitempty"`
	// +optional
	ToReplicas int32 `json:"toReplicas,omitempty"`
	// dryRun: it was not followed.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why"`
}

// WidthIsDecided says whether the operator decides how many pods the world has.
func (d *MoEDeployment) WidthIsDecided() bool {
	a := d.Spec.Autoscaling
	return a != nil && a.SLO != nil && a.MinReplicas != nil && a.MaxReplicas != nil
}

// DryRun says whether what policies decide is only recommended, and not followed: unless the spec says that it is not.
func (d *MoEDeployment) DryRun() bool {
	a := d.Spec.Autoscaling
	return a == nil || a.DryRun == nil || *a.DryRun
}

// WantedReplicas is how many pods the world is to have: as spec.replicas says, or as was decided, within its bounds.
func (d *MoEDeployment) WantedReplicas() int32 {
	if !d.WidthIsDecided() || d.DryRun() {
		return d.Spec.Replicas
	}
	n := d.Spec.Replicas
	if d.Status.Policy != nil && d.Status.Policy.Replicas > 0 {
		n = d.Status.Policy.Replicas
	}
	return min(max(n, *d.Spec.Autoscaling.MinReplicas), *d.Spec.Autoscaling.MaxReplicas)
}

// WantedLayout is the layout of mode Hybrid that the world is to have: as spec.layout says, or as the policy of mode Auto decided.
func (d *MoEDeployment) WantedLayout() []LayerRange {
	if d.Spec.Mode != ModeAuto {
		return d.Spec.Layout
	}
	if d.Status.Policy != nil {
		return d.Status.Policy.Layout
	}
	return nil
}
