package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// Autoscaling says how a world in mode Auto decides. All of it may be changed while it serves.
type Autoscaling struct {
	// policy: Calibrated or Threshold.
	// +kubebuilder:default=Calibrated
	// +optional
	Policy ModePolicy `json:"policy,omitempty"`
	// dryRun: what would be done is told in status.policy and by the condition Optimal, and not done.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`
	// prior: measured kernels that Calibrated begins with, until this world has measured its own.
	// +kubebuilder:default={}
	// +optional
	Prior KernelPrior `json:"prior,omitempty"`
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

// PolicyStatus is what the policy of a world in mode Auto decided.
type PolicyStatus struct {
	// mode that the world is to be in: as decided last, and followed.
	Mode Mode `json:"mode"`
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
	// decisions to switch, the newest first; also those of a dry run.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +optional
	Decisions []PolicyDecision `json:"decisions,omitempty"`
}

// RejectedMode is an alternative that was not taken.
type RejectedMode struct {
	Mode Mode `json:"mode"`
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why"`
}

// PolicyDecision to switch.
type PolicyDecision struct {
	Time metav1.Time `json:"time"`
	From Mode        `json:"from"`
	To   Mode        `json:"to"`
	// dryRun: it was not followed.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why"`
}
