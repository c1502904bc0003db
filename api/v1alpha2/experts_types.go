package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Experts configures redundant experts and rebalancing.
//
// +kubebuilder:validation:XValidation:rule="!has(self.redundant) || (has(self.rebalance) && self.rebalance.mode != 'Off')",fieldPath=".redundant",message="Rebalancing places redundant experts. Set experts.rebalance.mode to Apply, or remove experts.redundant."
type Experts struct {
	// redundant is the number of redundant expert slots per layer, in addition to one replica of each expert.
	// Rebalancing fills the slots with replicas of the experts with the most load. The slots use memory for weights. In
	// mode TensorParallel every rank has a shard of every expert, so the slots take effect only in mode ExpertParallel.
	// A change starts a transition.
	// +optional
	Redundant *RedundantExperts `json:"redundant,omitempty"`
	// rebalance configures how experts move between ranks when the load changes. It can be changed at any time.
	// +kubebuilder:default={}
	// +optional
	Rebalance Rebalance `json:"rebalance,omitempty"`
}

// RedundantExperts is a number of expert slots per layer. It is rounded up so that all ranks have the same number.
//
// +kubebuilder:validation:XValidation:rule="has(self.count) != has(self.max)",message="Set count for a fixed number of redundant experts, or max for an upper bound, not both."
type RedundantExperts struct {
	// count is the fixed number of slots per layer.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	// +optional
	Count int32 `json:"count,omitempty"`
	// max is the maximum number of slots per layer. The operator uses the fewest slots that balance the load equally
	// well and fit into memory.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	// +optional
	Max int32 `json:"max,omitempty"`
}

// RebalanceMode is the reaction to an unbalanced load.
// +kubebuilder:validation:Enum=Off;Recommend;Apply
type RebalanceMode string

// The modes.
const (
	RebalanceOff       RebalanceMode = "Off"
	RebalanceRecommend RebalanceMode = "Recommend"
	RebalanceApply     RebalanceMode = "Apply"
)

// Rebalance moves experts between ranks so that all ranks have equal work in each layer. The operator evaluates it once
// per interval, from a forecast of the load.
type Rebalance struct {
	// mode is the reaction to an unbalanced load. Off, the default, keeps experts on their ranks. Recommend evaluates
	// the load, and reports the moves that it would make in status.rebalance and in the condition Balanced. Apply also
	// moves the experts.
	// +kubebuilder:default=Off
	// +optional
	Mode RebalanceMode `json:"mode,omitempty"`
	// intervalSeconds is the time between two evaluations, in seconds. Each evaluation uses the load of one interval.
	// The default is 60.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=60
	// +optional
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`
	// maxMoves is the maximum number of expert moves in one rebalance, over all layers. With 0, the default, all moves
	// that are worth their cost are made.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxMoves int32 `json:"maxMoves,omitempty"`
	// paybackSeconds is the time, in seconds, within which a move must save the time that it takes, as measured in this
	// world. Raise it if the load is steady. With 0, moves have no cost. The default is 600.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	// +kubebuilder:default=600
	// +optional
	PaybackSeconds *int32 `json:"paybackSeconds,omitempty"`
	// minimumGainPercent is the minimum gain in balancedness for a rebalance, in percentage points. Balancedness is the
	// mean load of a rank divided by the maximum load, so 100 is best. The default is 2.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=2
	// +optional
	MinimumGainPercent *int32 `json:"minimumGainPercent,omitempty"`
}

// RebalanceStatus has the measurements of the last interval, and the decision from them. Balancedness is the mean load
// of a rank divided by the maximum load, in permille; 1000 is best. For all layers together, it is the sum of the means
// divided by the sum of the maximums.
type RebalanceStatus struct {
	// time is the end of the interval.
	Time metav1.Time `json:"time"`
	// reason is the reason of the condition Balanced.
	Reason string `json:"reason"`
	// message explains the decision, with figures.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// tokens is the number of tokens that were routed to experts in the interval, over all layers.
	Tokens int64 `json:"tokens"`
	// balancednessPermille is the balancedness of the active layout, measured in the last whole interval.
	// +optional
	BalancednessPermille *int32 `json:"balancednessPermille,omitempty"`
	// worstLayer is the index of the least balanced layer, numbered as in the model.
	// +optional
	WorstLayer *int32 `json:"worstLayer,omitempty"`
	// worstLayerBalancednessPermille is the balancedness of the least balanced layer.
	// +optional
	WorstLayerBalancednessPermille *int32 `json:"worstLayerBalancednessPermille,omitempty"`
	// decision is the decision for the forecast load. It is absent if the load was too small to decide.
	// +optional
	Decision *RebalanceDecision `json:"decision,omitempty"`
	// last is the last completed rebalance.
	// +optional
	Last *CompletedRebalance `json:"last,omitempty"`
}

// RebalanceDecision compares the active layout with the best layout found, for the forecast load.
type RebalanceDecision struct {
	// beforePermille is the balancedness of the active layout.
	BeforePermille int32 `json:"beforePermille"`
	// afterPermille is the balancedness of the proposed layout.
	AfterPermille int32 `json:"afterPermille"`
	// reachablePermille is the best balancedness found if moves have no cost.
	ReachablePermille int32 `json:"reachablePermille"`
	// upperBoundPermille is a proven upper bound. No placement with this number of slots has a higher balancedness.
	UpperBoundPermille int32 `json:"upperBoundPermille"`
	// moves is the number of expert moves to the proposed layout.
	Moves int32 `json:"moves"`
	// bytes is the number of bytes that the moves transfer.
	Bytes int64 `json:"bytes"`
	// rounds is the number of rounds of the moves if each rank sends and receives at most one expert per round. Agents
	// transfer all experts in parallel.
	Rounds int32 `json:"rounds"`
	// redundantExperts is the number of redundant experts per layer in the proposed layout.
	RedundantExperts int32 `json:"redundantExperts"`
}

// CompletedRebalance is a completed rebalance and its effect.
type CompletedRebalance struct {
	// time is the time at which the rebalance completed.
	Time metav1.Time `json:"time"`
	// moves is the number of expert moves.
	Moves int32 `json:"moves"`
	// bytes is the number of bytes that were transferred.
	Bytes int64 `json:"bytes"`
	// beforePermille is the balancedness before the rebalance, for the forecast load.
	BeforePermille int32 `json:"beforePermille"`
	// promisedPermille is the expected balancedness after the rebalance, for the forecast load.
	PromisedPermille int32 `json:"promisedPermille"`
	// counterfactualPermille is the balancedness that the first interval after the rebalance would have had without it.
	// +optional
	CounterfactualPermille *int32 `json:"counterfactualPermille,omitempty"`
	// measuredPermille is the measured balancedness of the first interval after the rebalance.
	// +optional
	MeasuredPermille *int32 `json:"measuredPermille,omitempty"`
}
