package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Autoscaling lets the operator choose the number of replicas. The operator chooses the fewest between minReplicas and
// maxReplicas that meet the SLO.
type Autoscaling struct {
	// action is the reaction to a decision. Recommend, the default, reports it in status.policy and in the condition
	// ScalingActive. Apply also scales the world. In mode Auto, mode and replicas are decided together if both actions
	// are the same. Otherwise, replicas are decided for the active mode.
	// +kubebuilder:default=Recommend
	// +optional
	Action Action `json:"action,omitempty"`
	// slo is the service level objective for responses. The times are measured at the gateways.
	// +required
	SLO SLO `json:"slo"`
}

// SLO is a service level objective (SLO) for responses. It needs at least one of the two times.
//
// +kubebuilder:validation:XValidation:rule="has(self.ttftMilliseconds) || has(self.tpotMilliseconds)",message="An SLO needs ttftMilliseconds or tpotMilliseconds, e.g. ttftMilliseconds: 2000."
type SLO struct {
	// ttftMilliseconds is the maximum time to the first token (TTFT), in milliseconds. Without it, this time has no
	// limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	// +optional
	TTFTMilliseconds *int32 `json:"ttftMilliseconds,omitempty"`
	// tpotMilliseconds is the maximum time per output token (TPOT), in milliseconds. It is the mean time between the
	// tokens of a response, after the first token. Without it, this time has no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	// +optional
	TPOTMilliseconds *int32 `json:"tpotMilliseconds,omitempty"`
	// attainmentPercent is the minimum percentage of responses that must meet both times. The default is 90.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	// +kubebuilder:default=90
	// +optional
	AttainmentPercent int32 `json:"attainmentPercent,omitempty"`
}

// PolicyOutcome is the result of a policy's last evaluation.
// +kubebuilder:validation:Enum=Stay;Switch;NoDecision
type PolicyOutcome string

// The outcomes.
const (
	OutcomeStay       PolicyOutcome = "Stay"
	OutcomeSwitch     PolicyOutcome = "Switch"
	OutcomeNoDecision PolicyOutcome = "NoDecision" // the layout stays
)

// PolicyStatus has the decisions of the policies of a world.
type PolicyStatus struct {
	// mode is the desired mode, by the last decision that was applied.
	Mode Mode `json:"mode"`
	// layers are the desired layers of a hybrid layout, in the form of spec.parallelism.layers.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1
	// +optional
	Layers []LayerRange `json:"layers,omitempty"`
	// replicas is the desired number of replicas, by the last decision that was applied. It is set only with
	// spec.autoscaling.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// scaling is the last evaluation of the number of replicas. It is set only with spec.autoscaling.
	// +optional
	Scaling *ScalingStatus `json:"scaling,omitempty"`
	// time is the time of the last evaluation.
	Time metav1.Time `json:"time"`
	// outcome is the result of the last evaluation of the mode: Stay, Switch or NoDecision.
	Outcome PolicyOutcome `json:"outcome"`
	// message explains the outcome, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
	// rejected lists the modes that were not chosen, each with the reason.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Rejected []RejectedMode `json:"rejected,omitempty"`
	// backoff lists options to which a switch failed. A failed switch is reverted, and its option is not chosen during
	// the back-off. The back-off is one minute after the first failure. It doubles with each further failure, to at
	// most one hour. A successful switch removes its option from the list.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Backoff []FailedOption `json:"backoff,omitempty"`
	// decisions lists the last decisions to switch, newest first. It includes decisions that were only recommended.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	// +optional
	Decisions []PolicyDecision `json:"decisions,omitempty"`
}

// ScalingStatus is the last evaluation of the number of replicas.
type ScalingStatus struct {
	// outcome is the result of the evaluation: Stay, Switch or NoDecision.
	Outcome PolicyOutcome `json:"outcome"`
	// reason is the cause of NoDecision if the user must act: TwoOwners, SLOOutOfReach or ModelContradicted.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Reason string `json:"reason,omitempty"`
	// message explains the outcome, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
	// rejected lists the numbers of replicas that were not chosen, each with the reason.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Rejected []RejectedReplicas `json:"rejected,omitempty"`
}

// RejectedReplicas is a number of replicas that was not chosen.
type RejectedReplicas struct {
	// replicas is the number of replicas that was considered.
	Replicas int32 `json:"replicas"`
	// mode is the mode that was considered. It is set only in mode Auto.
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// layers are the layers of a hybrid layout, abbreviated.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layers string `json:"layers,omitempty"`
	// message explains the rejection, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// RejectedMode is a mode that was not chosen.
type RejectedMode struct {
	// mode is the mode that was considered.
	Mode Mode `json:"mode"`
	// layers are the layers of a hybrid layout, abbreviated.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layers string `json:"layers,omitempty"`
	// message explains the rejection, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// FailedOption is a mode at a number of replicas to which a switch failed.
type FailedOption struct {
	// replicas is the number of replicas of the option.
	Replicas int32 `json:"replicas"`
	// mode is the mode of the option.
	Mode Mode `json:"mode"`
	// layers are the layers of a hybrid layout, abbreviated.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Layers string `json:"layers,omitempty"`
	// failures is the number of failed switches to the option since the last successful one.
	// +kubebuilder:validation:Minimum=1
	Failures int32 `json:"failures"`
	// until is the time before which the option is not chosen.
	Until metav1.Time `json:"until"`
	// message explains the last failure.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// PolicyDecision is a decision to switch the mode or to change the number of replicas.
type PolicyDecision struct {
	// time is the time of the decision.
	Time metav1.Time `json:"time"`
	// from is the mode before the decision.
	From Mode `json:"from"`
	// to is the mode that was decided.
	To Mode `json:"to"`
	// toLayers are the layers of the hybrid layout that was decided, abbreviated.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	ToLayers string `json:"toLayers,omitempty"`
	// fromReplicas is the number of replicas before the decision. It is set only if the number was decided.
	// +optional
	FromReplicas int32 `json:"fromReplicas,omitempty"`
	// toReplicas is the number of replicas that was decided. It is set only if the number was decided.
	// +optional
	ToReplicas int32 `json:"toReplicas,omitempty"`
	// action is Apply, or Recommend if no transition was started.
	Action Action `json:"action"`
	// message explains the decision, with figures.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}
