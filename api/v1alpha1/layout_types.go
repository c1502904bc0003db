package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// AllRanks is a group of all ranks that the world has, however many there are.
const AllRanks = "All"

// LayerRange is how a range of layers is shared out over the ranks. With groups of 1 experts are whole and spread over the ranks, and a request's
// heads are on one rank, which is data parallel; larger attention groups that are smaller than the world are data and tensor parallel at once.
//
// +kubebuilder:validation:XValidation:rule="!has(self.lastLayer) || self.firstLayer <= self.lastLayer",fieldPath=".lastLayer",message="lastLayer is below firstLayer: both count, and layers begin at 0"
type LayerRange struct {
	// firstLayer of the range, as the model counts them from 0; layers without experts count, too.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	// +kubebuilder:default=0
	// +optional
	FirstLayer int32 `json:"firstLayer"`
	// lastLayer of the range, included. Absent: the model's last one.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	// +optional
	LastLayer *int32 `json:"lastLayer,omitempty"`
	// expertGroup: ranks that share an expert, a slice of it each; a number that divides that of the ranks, or All. 1: experts are whole.
	// It says nothing of layers without experts.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 8192 : self == 'All'",message="expertGroup is a number of ranks, 1 to 8192, or All"
	// +kubebuilder:default=1
	// +optional
	ExpertGroup *intstr.IntOrString `json:"expertGroup,omitempty"`
	// attentionGroup: ranks that share the heads of a request; a number that divides that of the ranks, or All. 1: a request's KV cache is on one rank.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 8192 : self == 'All'",message="attentionGroup is a number of ranks, 1 to 8192, or All"
	// +kubebuilder:default=1
	// +optional
	AttentionGroup *intstr.IntOrString `json:"attentionGroup,omitempty"`
}

// RangeStatus is how a range of layers is shared out in a layout that is in force: a LayerRange that leaves nothing out.
type RangeStatus struct {
	// firstLayer and lastLayer, both included.
	FirstLayer int32 `json:"firstLayer"`
	LastLayer  int32 `json:"lastLayer"`
	// expertGroup: ranks that share an expert.
	ExpertGroup int32 `json:"expertGroup"`
	// attentionGroup: ranks that share the heads of a request.
	AttentionGroup int32 `json:"attentionGroup"`
}
