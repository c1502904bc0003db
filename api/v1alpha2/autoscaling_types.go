package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Autoscaling lets the operator choose the number of replicas: the fewest between minReplicas and maxReplicas that meet the SLO.
type Autoscaling struct {
	// action for a decision. Recommend reports it in status.policy and in the condition ScalingActive; Apply also scales the world. In mode Auto, mode and
	// replicas are decided together if both actions are the same; otherwise replicas are decided for the mode in use.
	// +kubebuilder:default=Recommend
	// +optional
	Action Action `json:"action,omitempty"`
	// slo of answers, by the clients' clocks.
	// +required
	SLO SLO `json:"slo"`
}

// SLO of answers.
//
// +kubebuilder:validation:XValidation:rule="has(self.ttftMilliseconds) || has(self.tpotMilliseconds)",message="An SLO needs ttftMilliseconds or tpotMilliseconds, e.g. ttftMilliseconds: 2000."
type SLO struct {
	// ttftMilliseconds is the longest time to the first token.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	// +optional
	TTFTMilliseconds *int32 `json:"ttftMilliseconds,omitempty"`
	// tpotMilliseconds is the longest mean time between the tokens of an answer after the first.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	// +optional
	TPOTMilliseconds *int32 `json:"tpotMilliseconds,omitempty"`
	// attainmentPercent is the share of answers that must meet both times.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	// +kubebuilder:default=90
	// +optional
	AttainmentPercent int32 `json:"attainmentPercent,omitempty"`
}

// PolicyOutcome of a policy's last evaluation.
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
	// mode that the world shall have, by the last decision that was applied.
	Mode Mode `json:"mode"`
	// layers of a hybrid that the world shall have, as spec.parallelism.layers would say it.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1
	// +optional
	Layers []LayerRange `json:"layers,omitempty"`
	// replicas that the world shall have, by the last decision that was applied. Set with spec.autoscaling only.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// scaling is the last evaluation of the number of replicas. Set with spec.autoscaling only.
	// +optional
	Scaling *ScalingStatus `json:"scaling,omitempty"`
	// time of the last evaluation.
	Time metav1.Time `json:"time"`
	// outcome of the last evaluation of the mode: Stay, Switch or NoDecision.
	Outcome PolicyOutcome `json:"outcome"`
	// message explains the outcome, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
	// rejected modes, each with the reason.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Rejected []RejectedMode `json:"rejected,omitempty"`
	// backoff lists options to which a switch failed. Such a switch is reverted, and its option is not chosen before its time is over: one minute after the
	// first failure, twice as long after each further one, one hour at most. A successful switch clears its option.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Backoff []FailedOption `json:"backoff,omitempty"`
	// decisions to switch, newest first, including those that were only recommended.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +optional
	Decisions []PolicyDecision `json:"decisions,omitempty"`
}

// ScalingStatus is the last evaluation of the number of replicas.
type ScalingStatus struct {
	// outcome: Stay, Switch or NoDecision.
	Outcome PolicyOutcome `json:"outcome"`
	// reason of NoDecision if the user must act: TwoOwners, SLOOutOfReach or ModelContradicted.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// message explains the outcome, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
	// rejected numbers of replicas, each with the reason.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Rejected []RejectedReplicas `json:"rejected,omitempty"`
}

// RejectedReplicas is a number of replicas that was not chosen.
type RejectedReplicas struct {
	// replicas that were considered.
	Replicas int32 `json:"replicas"`
	// mode that was considered. Set in mode Auto only.
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// layers of a hybrid, abbreviated.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layers string `json:"layers,omitempty"`
	// message explains the rejection, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// RejectedMode is a mode that was not chosen.
type RejectedMode struct {
	// mode that was considered.
	Mode Mode `json:"mode"`
	// layers of a hybrid, abbreviated.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layers string `json:"layers,omitempty"`
	// message explains the rejection, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// FailedOption is a mode at a number of replicas to which a switch failed.
type FailedOption struct {
	// replicas of the option.
	Replicas int32 `json:"replicas"`
	// mode of the option.
	Mode Mode `json:"mode"`
	// layers of a hybrid, abbreviated.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layers string `json:"layers,omitempty"`
	// failures since the last successful switch to it.
	// +kubebuilder:validation:Minimum=1
	Failures int32 `json:"failures"`
	// until this time the option is not chosen.
	Until metav1.Time `json:"until"`
	// message of the last failure.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// PolicyDecision is a decision to switch the mode, or to change the number of replicas.
type PolicyDecision struct {
	// time of the decision.
	Time metav1.Time `json:"time"`
	// from is the mode before.
	From Mode `json:"from"`
	// to is the mode after.
	To Mode `json:"to"`
	// toLayers of a hybrid, abbreviated.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ToLayers string `json:"toLayers,omitempty"`
	// fromReplicas is the number of replicas before. Set if the number was decided.
	// +optional
	FromReplicas int32 `json:"fromReplicas,omitempty"`
	// toReplicas is the number of replicas after. Set if the number was decided.
	// +optional
	ToReplicas int32 `json:"toReplicas,omitempty"`
	// action: Apply, or Recommend if nothing was started.
	Action Action `json:"action"`
	// message explains the decision, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}
