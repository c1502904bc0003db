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
	// kvAhead: of kv, what came while engines stepped, before the flips
	// +optional
	KVAhead int64 `json:"kvAhead,omitempty"`
}

// LostMember that a repair left out of the world.
type LostMember struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

// MissedMember is what the engine of a member found of another one for which it gave its step up: the same as the engine's log
// and its agent (tangram_missed_ranks_total) tell.
type MissedMember struct {
	// by: the member that says so.
	By string `json:"by"`
	// id of the member that it missed.
	ID string `json:"id"`
	// cause: Gone, its connection closed; Silent, nothing came from it for as long as it may be silent; Stuck, it lives, and waited
	// for somebody for too long; Hostile, what it sent makes no sense; GaveUp, it says that it gave the step up, or is in another
	// one; Told, somebody else knew that it was gone.
	// +kubebuilder:validation:Enum=Gone;Silent;Stuck;Hostile;GaveUp;Told
	Cause string `json:"cause"`
	// doing: what they were doing. Words, between two steps; Dispatch, tokens' rows to the ranks of their experts; Combine, the sums
	// back; Exchange, of a step, the engine's own; Flip.
	// +kubebuilder:validation:Enum=Words;Dispatch;Combine;Exchange;Flip
	Doing string `json:"doing"`
	// layer of the model; of Dispatch and Combine.
	// +optional
	Layer *int32 `json:"layer,omitempty"`
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

// Felt is what clients felt of a transition, by the clocks of the gateways, which are asked once a second: each span is up to that much longer. It is
// written ten seconds after the end.
type Felt struct {
	// tokensPerSecond that clients were given in the ten seconds before (0: gateways were not asked for so long yet), from the start to the end, and in the
	// ten seconds after.
	Before int64 `json:"tokensPerSecondBefore"`
	During int64 `json:"tokensPerSecondDuring"`
	After  int64 `json:"tokensPerSecondAfter"`
	// longestGap between two tokens of one request, of those gaps that ended in the transition or up to two seconds before.
	LongestGap metav1.Duration `json:"longestGap"`
	// longestGapBefore: the same of the ten seconds before it.
	LongestGapBefore metav1.Duration `json:"longestGapBefore"`
	// silence: the longest time in which somebody who had a token waited for the next one, and nobody got any; with several gateways at most so long.
	Silence metav1.Duration `json:"silence"`
}

// PeakMemory of weights in a transition: of the rank that has most of its pool in use at a time, old and new pieces together.
type PeakMemory struct {
	// plannedBytes that no rank was to exceed.
	PlannedBytes int64 `json:"plannedBytes"`
	// measuredBytes, as the ranks told when all of a flip was there.
	MeasuredBytes int64 `json:"measuredBytes"`
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
	// peak of memory, planned and measured.
	// +optional
	Peak *PeakMemory `json:"peak,omitempty"`
	// sinceAsked: to the end from when the world was not as wanted any more (condition Ready, of whole seconds; or the start, where that is earlier): pods
	// that had to start, transitions before this one and back-offs count, too.
	// +optional
	SinceAsked *metav1.Duration `json:"sinceAsked,omitempty"`
	// lost: members that a repair left out.
	// +listType=atomic
	// +optional
	Lost []LostMember `json:"lost,omitempty"`
	// missed: of a repair, why its members stood still; those that are lost first.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Missed []MissedMember `json:"missed,omitempty"`
	// felt by clients; absent where not all of it is known: the operator began in the meantime, or it lasted longer than readings are kept, some four minutes.
	// +optional
	Felt *Felt `json:"felt,omitempty"`
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
// +kubebuilder:printcolumn:name="Gap",type=string,JSONPath=`.status.felt.longestGap`,priority=1
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
