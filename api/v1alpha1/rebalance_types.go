package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RedundantBudget says how many redundant experts there are.
// +kubebuilder:validation:Enum=Fixed;Automatic
type RedundantBudget string

// The budgets.
const (
	// BudgetFixed: as many as spec.redundantExperts says.
	BudgetFixed RedundantBudget = "Fixed"
	// BudgetAutomatic: the fewest that are as good as spec.redundantExperts would be, and fit.
	BudgetAutomatic RedundantBudget = "Automatic"
)

// Rebalance moves experts of a world in mode Expert between its ranks, so that they have equal work in each layer. It
// is decided after each interval, from a forecast of the load; nothing moves that does not pay.
type Rebalance struct {
	// intervalSeconds: the load of so long is one window; after each it is decided anew.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:default=60
	// +optional
	IntervalSeconds int32 `json:"intervalSeconds,omitempty"`
	// maxMoves of experts in one rebalance, over all layers: those that gain most. 0: all that pay.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxMoves int32 `json:"maxMoves,omitempty"`
	// payBackSeconds is the price of a move: within so long it must gain the time that it takes, as measured in this
	// world. Raise it where the load is steady. 0: moves cost nothing.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	// +kubebuilder:default=600
	// +optional
	PayBackSeconds *int32 `json:"payBackSeconds,omitempty"`
	// minGainPercent of balancedness (mean over largest load of a rank, 100 is best), in points: a rebalance that
	// promises less is not begun.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=2
	// +optional
	MinGainPercent *int32 `json:"minGainPercent,omitempty"`
	// budget: Fixed (spec.redundantExperts) or Automatic (at most as many, and no more than gain anything and fit).
	// +kubebuilder:default=Fixed
	// +optional
	Budget RedundantBudget `json:"budget,omitempty"`
}

// RebalanceStatus is what was measured in the last window and decided from it. Balancedness is mean over largest load of
// a rank, over all layers (sum of means over sum of peaks): 1 is best.
type RebalanceStatus struct {
	// time at which the window ended.
	Time metav1.Time `json:"time"`
	// outcome: the reason of condition Balanced.
	Outcome string `json:"outcome"`
	// why it was decided so, with the numbers.
	// +kubebuilder:validation:MaxLength=2048
	// +optional
	Why string `json:"why,omitempty"`
	// tokens routed to experts in the window, over all layers.
	Tokens int64 `json:"tokens"`
	// balancedness measured in the last whole window, of the layout in force then.
	// +optional
	Balancedness *resource.Quantity `json:"balancedness,omitempty"`
	// worstLayer and its balancedness; numbered as in the model.
	// +optional
	WorstLayer *int32 `json:"worstLayer,omitempty"`
	// +optional
	WorstLayerBalancedness *resource.Quantity `json:"worstLayerBalancedness,omitempty"`
	// decision from the forecast; absent if there was too little to decide from.
	// +optional
	Decision *RebalanceDecision `json:"decision,omitempty"`
	// last rebalance that was done.
	// +optional
	Last *RebalanceDone `json:"last,omitempty"`
}

// RebalanceDecision compares the layout in force with what could be, on the load that is expected.
type RebalanceDecision struct {
	// before: balancedness of the layout in force; after: of the one proposed.
	Before resource.Quantity `json:"before"`
	After  resource.Quantity `json:"after"`
	// reachable with as many slots if moves cost nothing; floor: no placement of so many slots has more.
	Reachable resource.Quantity `json:"reachable"`
	Floor     resource.Quantity `json:"floor"`
	// moves of experts, the bytes they are, and the rounds of one expert to and from each rank that they would take; agents bring all of them side by side.
	Moves  int32 `json:"moves"`
	Bytes  int64 `json:"bytes"`
	Rounds int32 `json:"rounds"`
	// redundantExperts per layer that it has.
	RedundantExperts int32 `json:"redundantExperts"`
}

// RebalanceDone is a rebalance that was done, and what it brought.
type RebalanceDone struct {
	// time at which it ended.
	Time metav1.Time `json:"time"`
	// moves of experts, and their bytes.
	Moves int32 `json:"moves"`
	Bytes int64 `json:"bytes"`
	// before and promised: balancedness of the forecast before and after.
	Before   resource.Quantity `json:"before"`
	Promised resource.Quantity `json:"promised"`
	// without and measured: balancedness of the first window after it, as it would have been without it, and as it was.
	// +optional
	Without *resource.Quantity `json:"without,omitempty"`
	// +optional
	Measured *resource.Quantity `json:"measured,omitempty"`
}
