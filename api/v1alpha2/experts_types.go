package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Experts says how many replicas of experts there are, and how experts follow the load.
//
// +kubebuilder:validation:XValidation:rule="!has(self.redundant) || (has(self.rebalance) && self.rebalance.mode != 'Off')",fieldPath=".redundant",message="Rebalancing places redundant experts. Set experts.rebalance.mode to Apply, or remove experts.redundant."
type Experts struct {
	// redundant expert slots per layer, in addition to one replica of each expert. Rebalancing fills them with replicas of the experts with the most load.
	// They use memory for weights. In mode TensorParallel, where every rank has a shard of every expert, they wait for mode ExpertParallel. A change
	// starts a transition.
	// +optional
	Redundant *RedundantExperts `json:"redundant,omitempty"`
	// rebalance configures how experts move between ranks. It can be changed at any time.
	// +kubebuilder:default={}
	// +optional
	Rebalance Rebalance `json:"rebalance,omitempty"`
}

// RedundantExperts is a number of expert slots per layer, rounded up to the same number on each rank.
//
// +kubebuilder:validation:XValidation:rule="has(self.count) != has(self.max)",message="Set count for a fixed number of redundant experts, or max for an upper bound, not both."
type RedundantExperts struct {
	// count is a fixed number of slots per layer.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	// +optional
	Count int32 `json:"count,omitempty"`
	// max is an upper bound: the operator uses the fewest slots that balance the load as well, and that fit into memory.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	// +optional
	Max int32 `json:"max,omitempty"`
}

// RebalanceMode says what happens to an unbalanced load.
// +kubebuilder:validation:Enum=Off;Recommend;Apply
type RebalanceMode string

// The modes.
const (
	RebalanceOff       RebalanceMode = "Off"
	RebalanceRecommend RebalanceMode = "Recommend"
	RebalanceApply     RebalanceMode = "Apply"
)

// Rebalance moves experts between ranks so that ranks have equal work in each layer. It is evaluated once per interval, from a forecast of the load.
type Rebalance struct {
	// mode: Off leaves experts where they are; Recommend evaluates the load and reports what it would move in status.rebalance and in the condition
	// Balanced; Apply also moves them.
	// +kubebuilder:default=Off
	// +optional
	Mode RebalanceMode `json:"mode,omitempty"`
	// intervalSeconds between two evaluations. Each uses the load of one interval.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=60
	// +optional
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`
	// maxMoves is the largest number of expert moves in one rebalance, over all layers. With 0, every move that pays is made.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxMoves int32 `json:"maxMoves,omitempty"`
	// paybackSeconds within which a move must save the time that it takes, as measured in this world. Raise it if the load is steady. With 0, moves cost
	// nothing.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	// +kubebuilder:default=600
	// +optional
	PaybackSeconds *int32 `json:"paybackSeconds,omitempty"`
	// minimumGainPercent is the smallest gain in balancedness, in percentage points, for which a rebalance starts. Balancedness is the mean load of a
	// rank divided by the largest, so 100 is best.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=2
	// +optional
	MinimumGainPercent *int32 `json:"minimumGainPercent,omitempty"`
}

// RebalanceStatus is what was measured in the last interval, and decided from it. Balancedness is the mean load of a rank divided by the largest, over all
// layers (sum of means over sum of peaks), in permille: 1000 is best.
type RebalanceStatus struct {
	// time at which the interval ended.
	Time metav1.Time `json:"time"`
	// reason of the condition Balanced.
	Reason string `json:"reason"`
	// message explains the decision, with figures.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Message string `json:"message,omitempty"`
	// tokens routed to experts in the interval, over all layers.
	Tokens int64 `json:"tokens"`
	// balancednessPermille of the active layout, measured in the last whole interval.
	// +optional
	BalancednessPermille *int32 `json:"balancednessPermille,omitempty"`
	// worstLayer is the least balanced layer, numbered as in the model.
	// +optional
	WorstLayer *int32 `json:"worstLayer,omitempty"`
	// worstLayerBalancednessPermille is the balancedness of that layer.
	// +optional
	WorstLayerBalancednessPermille *int32 `json:"worstLayerBalancednessPermille,omitempty"`
	// decision from the forecast. Absent if the load was too small to decide.
	// +optional
	Decision *RebalanceDecision `json:"decision,omitempty"`
	// last rebalance that was completed.
	// +optional
	Last *CompletedRebalance `json:"last,omitempty"`
}

// RebalanceDecision compares the active layout with the best one that was found, on the forecast of the load.
type RebalanceDecision struct {
	// beforePermille is the balancedness of the active layout.
	BeforePermille int32 `json:"beforePermille"`
	// afterPermille is the balancedness of the proposed layout.
	AfterPermille int32 `json:"afterPermille"`
	// reachablePermille is the best balancedness that was found if moves cost nothing.
	ReachablePermille int32 `json:"reachablePermille"`
	// upperBoundPermille is a proven bound: no placement with this many slots has a higher balancedness.
	UpperBoundPermille int32 `json:"upperBoundPermille"`
	// moves of experts that the proposal takes.
	Moves int32 `json:"moves"`
	// bytes that the moves transfer.
	Bytes int64 `json:"bytes"`
	// rounds of at most one expert to and from each rank that the moves would take; agents transfer all of them in parallel.
	Rounds int32 `json:"rounds"`
	// redundantExperts per layer in the proposal.
	RedundantExperts int32 `json:"redundantExperts"`
}

// CompletedRebalance is a rebalance that was completed, and its effect.
type CompletedRebalance struct {
	// time at which it completed.
	Time metav1.Time `json:"time"`
	// moves of experts.
	Moves int32 `json:"moves"`
	// bytes that were transferred.
	Bytes int64 `json:"bytes"`
	// beforePermille is the balancedness before, on the forecast of the load.
	BeforePermille int32 `json:"beforePermille"`
	// promisedPermille is the balancedness after, on the forecast of the load.
	PromisedPermille int32 `json:"promisedPermille"`
	// counterfactualPermille is the balancedness that the first interval afterwards would have had without the rebalance.
	// +optional
	CounterfactualPermille *int32 `json:"counterfactualPermille,omitempty"`
	// measuredPermille is the balancedness of the first interval afterwards.
	// +optional
	MeasuredPermille *int32 `json:"measuredPermille,omitempty"`
}
