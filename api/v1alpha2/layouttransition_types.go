package v1alpha2

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
	PhaseFailed     TransitionPhase = "Failed"     // the old or an intermediate layout stays active
	PhaseSuperseded TransitionPhase = "Superseded" // the spec changed: the running flip ended, and the rest was planned again
	PhaseAborted    TransitionPhase = "Aborted"    // by the user
)

// TransitionKind of a LayoutTransition.
// +kubebuilder:validation:Enum=Start;Scale;ModeSwitch;Replace;Rebalance;Repair
type TransitionKind string

// The kinds.
const (
	KindStart      TransitionKind = "Start"      // the first layout
	KindScale      TransitionKind = "Scale"      // another number of ranks, possibly another mode too
	KindModeSwitch TransitionKind = "ModeSwitch" // another mode, or other layers
	KindReplace    TransitionKind = "Replace"    // other pods
	KindRebalance  TransitionKind = "Rebalance"  // experts move between ranks
	KindRepair     TransitionKind = "Repair"     // members were lost. It is recorded at its end, because a repair waits for nothing
)

// Conditions of a LayoutTransition. Exactly one is True once it has ended.
const (
	TransitionComplete = "Complete"
	TransitionFailed   = "Failed"
	TransitionAborted  = "Aborted"
)

// Reasons of those conditions.
const (
	ReasonSucceeded     = "Succeeded"     // Complete
	ReasonInProgress    = "InProgress"    // Complete=False
	ReasonAttemptFailed = "AttemptFailed" // Failed
	ReasonSuperseded    = "Superseded"    // Aborted: the spec changed; the rest is planned again
	ReasonAbortedByUser = "AbortedByUser" // Aborted
)

// LayoutTransitionSpec is the intent. It is written before any agent is called, and never changed.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="A LayoutTransition is a record of the operator. Change the MoEDeployment instead."
type LayoutTransitionSpec struct {
	// moeDeploymentName is the name of the MoEDeployment.
	MoEDeploymentName string `json:"moeDeploymentName"`
	// moeDeploymentGeneration is the generation of the MoEDeployment at the start.
	MoEDeploymentGeneration int64 `json:"moeDeploymentGeneration"`
	// kind: Start, Scale, ModeSwitch, Replace (pods), Rebalance or Repair.
	Kind TransitionKind `json:"kind"`
	// summary, e.g. "4 ranks ExpertParallel -> 6 ranks ExpertParallel".
	// +kubebuilder:validation:MaxLength=1024
	Summary string `json:"summary"`
	// from is the layout before.
	From TransitionEnd `json:"from"`
	// to is the layout at the end.
	To TransitionEnd `json:"to"`
	// planHash of the plan, in hexadecimal.
	PlanHash string `json:"planHash"`
	// members of the layout at the end, by id: the first 256.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Members []string `json:"members,omitempty"`
	// flips of the plan.
	Flips int32 `json:"flips"`
	// expertBytes that the plan transfers between ranks.
	ExpertBytes int64 `json:"expertBytes"`
	// expertBytesLowerBound is the least that any plan could transfer.
	ExpertBytesLowerBound int64 `json:"expertBytesLowerBound"`
	// denseBytes of weights outside experts that joining ranks need.
	DenseBytes int64 `json:"denseBytes"`
}

// TransitionEnd is a layout at one end of a transition.
type TransitionEnd struct {
	// epoch of the layout. Absent for the layout at the end, whose epoch is in the status.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// layoutHash: SHA-256, in hexadecimal.
	// +optional
	LayoutHash string `json:"layoutHash,omitempty"`
	// ranks of the layout.
	// +optional
	Ranks int32 `json:"ranks,omitempty"`
	// mode of the layout.
	// +optional
	Mode Mode `json:"mode,omitempty"`
}

// TransferredBytes by transport and content.
type TransferredBytes struct {
	// process: between ranks of one pod, and inside a rank.
	Process int64 `json:"process"`
	// node: through the memory of another pod on the node.
	Node int64 `json:"node"`
	// tcp: over TCP connections.
	TCP int64 `json:"tcp"`
	// comm: by a communication library, e.g. NCCL.
	// +optional
	Comm int64 `json:"comm,omitempty"`
	// checkpoint: read from the checkpoint.
	Checkpoint int64 `json:"checkpoint"`
	// kv is the KV cache. It is not part of the other numbers.
	KV int64 `json:"kv"`
	// kvAhead is the part of kv that was transferred before the flips, while engines served.
	// +optional
	KVAhead int64 `json:"kvAhead,omitempty"`
}

// LostMember is a member that a repair removed from the world.
type LostMember struct {
	// id of the member.
	ID string `json:"id"`
	// message explains why it counts as lost.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// MissedMember is what the engine of one member observed of another, for which it abandoned its step. The engine's log and its agent
// (tangram_agent_unresponsive_ranks_total) report the same.
type MissedMember struct {
	// by is the id of the observing member.
	By string `json:"by"`
	// id of the observed member.
	ID string `json:"id"`
	// cause: Gone, its connection closed; Silent, it sent nothing before its timeout; Stuck, it is alive and waited too long for another; Hostile, it sent
	// invalid messages; GaveUp, it reported that it abandoned the step, or is in another one; Told, a third member reported it as gone.
	// +kubebuilder:validation:Enum=Gone;Silent;Stuck;Hostile;GaveUp;Told
	Cause string `json:"cause"`
	// doing is the activity at that time: Words, between two steps; Dispatch, rows to the ranks of their experts; Combine, the results back; Exchange, the
	// engine's own part of a step; Flip.
	// +kubebuilder:validation:Enum=Words;Dispatch;Combine;Exchange;Flip
	Doing string `json:"doing"`
	// layer of the model, for Dispatch and Combine.
	// +optional
	Layer *int32 `json:"layer,omitempty"`
}

// PhaseDurations on the operator's clock, over all flips, with microseconds.
type PhaseDurations struct {
	// wait of a repair until all survivors have stopped.
	// +optional
	Wait *metav1.Duration `json:"wait,omitempty"`
	// fence of a repair: the decision on the remaining members and on the interrupted attempt.
	// +optional
	Fence *metav1.Duration `json:"fence,omitempty"`
	// plan: computing the plan.
	Plan metav1.Duration `json:"plan"`
	// prepare: agents reserve memory.
	Prepare metav1.Duration `json:"prepare"`
	// stage: agents transfer bytes while engines serve.
	Stage metav1.Duration `json:"stage"`
	// flip: the vote of all ranks, and the switch of the layout.
	Flip metav1.Duration `json:"flip"`
	// retire: agents free the old layout.
	Retire metav1.Duration `json:"retire"`
}

// FlipStatus is a flip that ended.
type FlipStatus struct {
	// kind: first, join, layout, leave or repair.
	Kind string `json:"kind"`
	// epoch that the flip activated.
	Epoch int64 `json:"epoch"`
	// attempt that succeeded.
	Attempt int64 `json:"attempt"`
	// bytes that were transferred.
	Bytes TransferredBytes `json:"bytes"`
	// duration of all its phases.
	Duration metav1.Duration `json:"duration"`
}

// ClientImpact is what clients observed, by the clocks of the gateways. Gateways are polled once a second, so each duration may be that much longer. It is
// written ten seconds after the end.
type ClientImpact struct {
	// tokensPerSecondBefore that clients received in the ten seconds before. 0: gateways were not polled yet.
	TokensPerSecondBefore int64 `json:"tokensPerSecondBefore"`
	// tokensPerSecondDuring the transition.
	TokensPerSecondDuring int64 `json:"tokensPerSecondDuring"`
	// tokensPerSecondAfter, in the ten seconds after.
	TokensPerSecondAfter int64 `json:"tokensPerSecondAfter"`
	// longestGap between two tokens of one request, of gaps that ended during the transition or up to two seconds before.
	LongestGap metav1.Duration `json:"longestGap"`
	// longestGapBefore: the same, in the ten seconds before.
	LongestGapBefore metav1.Duration `json:"longestGapBefore"`
	// silence is the longest time in which clients waited for tokens and no client received one. With several gateways it is an upper bound.
	Silence metav1.Duration `json:"silence"`
}

// PeakMemory of weights during a transition, on the rank that used most of its memory: old and new pieces together.
type PeakMemory struct {
	// plannedBytes that no rank was to exceed.
	PlannedBytes int64 `json:"plannedBytes"`
	// measuredBytes, as reported by the ranks when all pieces of a flip were present.
	MeasuredBytes int64 `json:"measuredBytes"`
}

// LayoutTransitionStatus is the progress and the outcome.
type LayoutTransitionStatus struct {
	// conditions: Complete, Failed, Aborted. Exactly one is True once the transition has ended.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// phase, for people: Planned, Preparing, Staging, Flipping, Retiring, and at the end Succeeded, Failed, Superseded or Aborted.
	// +optional
	Phase TransitionPhase `json:"phase,omitempty"`
	// epoch that was reached.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// progress of the current flip, e.g. "flip 2/4 layout: 12 of 40 MiB".
	// +optional
	Progress string `json:"progress,omitempty"`
	// flips that ended: the first 128.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Flips []FlipStatus `json:"flips,omitempty"`
	// bytes transferred in all flips.
	// +optional
	Bytes TransferredBytes `json:"bytes,omitempty"`
	// phases: durations by phase, over all flips.
	// +optional
	Phases PhaseDurations `json:"phases,omitempty"`
	// peakMemory, planned and measured.
	// +optional
	PeakMemory *PeakMemory `json:"peakMemory,omitempty"`
	// sinceRequested is the time from the change of the spec, or the loss of a pod, to the end: the start of pods, earlier transitions and back-off are
	// included. Whole seconds, as condition Ready has them.
	// +optional
	SinceRequested *metav1.Duration `json:"sinceRequested,omitempty"`
	// lost members that a repair removed: the first 64.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Lost []LostMember `json:"lost,omitempty"`
	// missed explains why the members of a repaired world stopped, lost members first.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Missed []MissedMember `json:"missed,omitempty"`
	// clientImpact is what clients observed. Absent if part of it is unknown: the operator restarted, or the transition took longer than samples are kept,
	// about four minutes.
	// +optional
	ClientImpact *ClientImpact `json:"clientImpact,omitempty"`
	// retries of calls, sources and unfinished attempts.
	// +optional
	Retries int32 `json:"retries,omitempty"`
	// startTime of the transition.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// completionTime of the transition.
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`
	// message of a failure.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// LayoutTransition is the record of one change of a world's layout: intent, cost and outcome. Only the operator writes it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=moet
// +kubebuilder:printcolumn:name="Deployment",type=string,JSONPath=`.spec.moeDeploymentName`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.kind`
// +kubebuilder:printcolumn:name="Change",type=string,JSONPath=`.spec.summary`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`,priority=1
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.spec.expertBytes`,priority=1
// +kubebuilder:printcolumn:name="Bound",type=integer,JSONPath=`.spec.expertBytesLowerBound`,priority=1
// +kubebuilder:printcolumn:name="Gap",type=string,JSONPath=`.status.clientImpact.longestGap`,priority=1
type LayoutTransition struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the intent.
	// +required
	Spec LayoutTransitionSpec `json:"spec"`
	// status is the progress and the outcome.
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
