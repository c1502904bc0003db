package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TransitionPhase of a LayoutTransition.
// +kubebuilder:validation:Enum=Planned;Preparing;Staging;Flipping;Retiring;Succeeded;Failed;Superseded;Aborted
type TransitionPhase string

// The phases, in order (docs/architecture.md, section 4), and the four ends.
const (
	PhasePlanned    TransitionPhase = "Planned"
	PhasePreparing  TransitionPhase = "Preparing"
	PhaseStaging    TransitionPhase = "Staging"
	PhaseFlipping   TransitionPhase = "Flipping"
	PhaseRetiring   TransitionPhase = "Retiring"
	PhaseSucceeded  TransitionPhase = "Succeeded"
	PhaseFailed     TransitionPhase = "Failed"     // the attempt is burned; an old or intermediate layout serves on
	PhaseSuperseded TransitionPhase = "Superseded" // the spec changed; the running flip ended, the rest was planned anew
	PhaseAborted    TransitionPhase = "Aborted"    // by the user
)

// TransitionKind of a LayoutTransition.
// +kubebuilder:validation:Enum=Transition;Repair
type TransitionKind string

// The kinds.
const (
	KindTransition TransitionKind = "Transition"
	// KindRepair: members were lost. It is recorded when it has ended: a repair waits for nothing.
	KindRepair TransitionKind = "Repair"
)

// LayoutTransitionSpec is the intent: written before anything is asked of an agent, never changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a LayoutTransition records what the operator does; change the MoEDeployment instead"
type LayoutTransitionSpec struct {
	// deployment is the MoEDeployment's name.
	Deployment string `json:"deployment"`
	// generation of the MoEDeployment that asked for it.
	Generation int64 `json:"generation"`
	// kind: Transition if empty.
	// +optional
	Kind TransitionKind `json:"kind,omitempty"`
	// what it does, e.g. "4 ranks Expert -> 6 ranks Expert".
	What string `json:"what"`
	// fromEpoch and fromHash of the layout in force before.
	FromEpoch int64 `json:"fromEpoch"`
	// +optional
	FromHash string `json:"fromHash,omitempty"`
	// targetHash of the layout at the end; hex.
	TargetHash string `json:"targetHash"`
	// planHash of the plan; hex.
	PlanHash string `json:"planHash"`
	// ranks and mode wanted.
	Ranks int32 `json:"ranks"`
	Mode  Mode  `json:"mode"`
	// members that shall be in the layout at the end, by id.
	// +listType=atomic
	// +optional
	Members []string `json:"members,omitempty"`
	// flips of the plan.
	Flips int32 `json:"flips"`
	// expertBytes that the plan moves between ranks, and the least that any plan could move.
	ExpertBytes      int64 `json:"expertBytes"`
	ExpertBoundBytes int64 `json:"expertBoundBytes"`
	// denseBytes that joiners need.
	DenseBytes int64 `json:"denseBytes"`
}

// BytesBySource that the agents moved.
type BytesBySource struct {
	Local  int64 `json:"local"`
	Shared int64 `json:"shared"`
	TCP    int64 `json:"tcp"`
	// wire: by a communication library, e.g. NCCL
	// +optional
	Wire       int64 `json:"wire,omitempty"`
	Checkpoint int64 `json:"checkpoint"`
	KV         int64 `json:"kv"`
}

// LostMember that a repair left out of the world.
type LostMember struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

// PhaseSeconds on the operator's clock, with microseconds.
type PhaseSeconds struct {
	// wait: of a repair, until all who survive stand still.
	// +optional
	Wait *metav1.Duration `json:"wait,omitempty"`
	// fence: of a repair, until the survivors know who goes on and what became of the attempt that it broke.
	// +optional
	Fence   *metav1.Duration `json:"fence,omitempty"`
	Plan    metav1.Duration  `json:"plan"`
	Prepare metav1.Duration  `json:"prepare"`
	Stage   metav1.Duration  `json:"stage"`
	Flip    metav1.Duration  `json:"flip"`
	Retire  metav1.Duration  `json:"retire"`
}

// FlipStatus is one flip that ended.
type FlipStatus struct {
	// kind: first, join, layout, leave, repair.
	Kind    string          `json:"kind"`
	Epoch   int64           `json:"epoch"`
	Attempt int64           `json:"attempt"`
	Bytes   BytesBySource   `json:"bytes"`
	Took    metav1.Duration `json:"took"`
}

// LayoutTransitionStatus is how far it came and what came of it.
type LayoutTransitionStatus struct {
	// +optional
	Phase TransitionPhase `json:"phase,omitempty"`
	// epoch that was reached.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// progress of the running flip, e.g. "flip 2/4 layout: 12 of 40 MiB".
	// +optional
	Progress string `json:"progress,omitempty"`
	// flips that ended.
	// +listType=atomic
	// +optional
	Flips []FlipStatus `json:"flips,omitempty"`
	// bytes moved in all flips.
	// +optional
	Bytes BytesBySource `json:"bytes,omitempty"`
	// phases: time by phase, over all flips.
	// +optional
	Phases PhaseSeconds `json:"phases,omitempty"`
	// lost: members that a repair left out.
	// +listType=atomic
	// +optional
	Lost []LostMember `json:"lost,omitempty"`
	// retries of calls, sources and attempts found unfinished.
	// +optional
	Retries int32 `json:"retries,omitempty"`
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`
	// message: why it failed.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// LayoutTransition records one change of a world's layout: what was intended, what it cost,
// what came of it. The operator writes it; nobody else should.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=lt
// +kubebuilder:printcolumn:name="Deployment",type=string,JSONPath=`.spec.deployment`
// +kubebuilder:printcolumn:name="What",type=string,JSONPath=`.spec.what`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.spec.expertBytes`
// +kubebuilder:printcolumn:name="Bound",type=integer,JSONPath=`.spec.expertBoundBytes`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LayoutTransition struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +required
	Spec LayoutTransitionSpec `json:"spec"`
	// +optional
	Status LayoutTransitionStatus `json:"status,omitempty"`
}

// LayoutTransitionList is a list of LayoutTransition.
//
// +kubebuilder:object:root=true
type LayoutTransitionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LayoutTransition `json:"items"`
}
