package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TransitionPhase is the phase of a LayoutTransition.
// +kubebuilder:validation:Enum=Planned;Preparing;Staging;Flipping;Retiring;Succeeded;Failed;Superseded;Aborted
type TransitionPhase string

// The phases in order (docs/architecture.md, section 4), and the four final phases.
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

// TransitionKind is the kind of a LayoutTransition.
// +kubebuilder:validation:Enum=Start;Scale;ModeSwitch;Replace;Rebalance;Repair
type TransitionKind string

// The kinds.
const (
	KindStart      TransitionKind = "Start"      // the first layout
	KindScale      TransitionKind = "Scale"      // another number of ranks, possibly another mode too
	KindModeSwitch TransitionKind = "ModeSwitch" // another mode, or other layers
	KindReplace    TransitionKind = "Replace"    // other pods
	KindRebalance  TransitionKind = "Rebalance"  // experts move between ranks
	KindRepair     TransitionKind = "Repair"     // members were lost; recorded at the end, so that the record does not delay the repair
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

// LayoutTransitionSpec is the intent of a transition. The operator writes it before it calls any agent, and never
// changes it.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="A LayoutTransition is a record of the operator. Change the MoEDeployment instead."
type LayoutTransitionSpec struct {
	// moeDeploymentName is the name of the MoEDeployment.
	MoEDeploymentName string `json:"moeDeploymentName"`
	// moeDeploymentGeneration is the generation of the MoEDeployment at the start of the transition.
	MoEDeploymentGeneration int64 `json:"moeDeploymentGeneration"`
	// kind is the kind of the transition: Start, Scale, ModeSwitch, Replace (of pods), Rebalance or Repair.
	Kind TransitionKind `json:"kind"`
	// summary describes the change, e.g. "4 ranks ExpertParallel -> 6 ranks ExpertParallel".
	// +kubebuilder:validation:MaxLength=1024
	Summary string `json:"summary"`
	// from is the layout before the transition.
	From TransitionEnd `json:"from"`
	// to is the target layout.
	To TransitionEnd `json:"to"`
	// planHash is the hash of the plan, in hexadecimal.
	PlanHash string `json:"planHash"`
	// members are the ids of the members of the target layout. The list has at most the first 256.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Members []string `json:"members,omitempty"`
	// flips is the number of flips of the plan.
	Flips int32 `json:"flips"`
	// expertBytes is the number of bytes of experts that the plan transfers between ranks.
	ExpertBytes int64 `json:"expertBytes"`
	// expertBytesLowerBound is the minimum number of bytes of experts that any plan can transfer.
	ExpertBytesLowerBound int64 `json:"expertBytesLowerBound"`
	// denseBytes is the number of bytes of weights outside experts that joining ranks need.
	DenseBytes int64 `json:"denseBytes"`
}

// TransitionEnd is the layout before or after a transition.
type TransitionEnd struct {
	// epoch is the epoch of the layout. It is absent for the target layout, whose epoch is in the status.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// layoutHash is the SHA-256 hash of the layout, in hexadecimal.
	// +optional
	LayoutHash string `json:"layoutHash,omitempty"`
	// ranks is the number of ranks of the layout.
	// +optional
	Ranks int32 `json:"ranks,omitempty"`
	// mode is the mode of the layout.
	// +optional
	Mode Mode `json:"mode,omitempty"`
}

// TransferredBytes counts bytes by transport and content.
type TransferredBytes struct {
	// process is the number of bytes between ranks of one pod, and inside a rank.
	Process int64 `json:"process"`
	// node is the number of bytes through the memory of another pod on the node.
	Node int64 `json:"node"`
	// tcp is the number of bytes over TCP connections.
	TCP int64 `json:"tcp"`
	// comm is the number of bytes by a communication library, e.g. NCCL.
	// +optional
	Comm int64 `json:"comm,omitempty"`
	// checkpoint is the number of bytes that were read from the checkpoint.
	Checkpoint int64 `json:"checkpoint"`
	// kv is the number of bytes of the KV cache. The other numbers do not include it.
	KV int64 `json:"kv"`
	// kvAhead is the part of kv that was transferred before the flips, while engines served.
	// +optional
	KVAhead int64 `json:"kvAhead,omitempty"`
}

// LostMember is a member that a repair removed from the world.
type LostMember struct {
	// id is the id of the member.
	ID string `json:"id"`
	// message explains why the member counts as lost.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// MissedMember is an observation for which the engine of one member abandoned its step. It describes the member that
// the engine observed. The engine's log and its agent (tangram_agent_unresponsive_ranks_total) report the same.
type MissedMember struct {
	// by is the id of the member whose engine made the observation.
	By string `json:"by"`
	// id is the id of the observed member.
	ID string `json:"id"`
	// cause is the observation. Gone: the connection of the observed member closed. Silent: it sent nothing before its
	// timeout. Stuck: it is alive and waited too long for another member. Hostile: it sent invalid messages. GaveUp: it
	// reported that it abandoned the step, or is in another step. Told: a third member reported it as gone.
	// +kubebuilder:validation:Enum=Gone;Silent;Stuck;Hostile;GaveUp;Told
	Cause string `json:"cause"`
	// doing is the activity of the engine at that time. Words: messages between two steps. Dispatch: rows to the ranks
	// of their experts. Combine: results back from these ranks. Exchange: the engine's own part of a step. Flip: the
	// flip to the next layout.
	// +kubebuilder:validation:Enum=Words;Dispatch;Combine;Exchange;Flip
	Doing string `json:"doing"`
	// layer is the layer of the model. It is set only for Dispatch and Combine.
	// +optional
	Layer *int32 `json:"layer,omitempty"`
}

// PhaseDurations has the durations of the phases over all flips. The operator's clock measures them, with microseconds.
type PhaseDurations struct {
	// wait is the time of a repair until all survivors have stopped.
	// +optional
	Wait *metav1.Duration `json:"wait,omitempty"`
	// fence is the time of a repair to decide on the remaining members and on the interrupted attempt.
	// +optional
	Fence *metav1.Duration `json:"fence,omitempty"`
	// plan is the time to compute the plan.
	Plan metav1.Duration `json:"plan"`
	// prepare is the time in which agents reserve memory.
	Prepare metav1.Duration `json:"prepare"`
	// stage is the time in which agents transfer bytes while engines serve.
	Stage metav1.Duration `json:"stage"`
	// flip is the time for the vote of all ranks and the switch of the layout.
	Flip metav1.Duration `json:"flip"`
	// retire is the time in which agents free the old layout.
	Retire metav1.Duration `json:"retire"`
}

// FlipStatus is a completed flip.
type FlipStatus struct {
	// kind is the kind of the flip: first, join, layout, leave or repair.
	Kind string `json:"kind"`
	// epoch is the epoch that the flip activated.
	Epoch int64 `json:"epoch"`
	// attempt is the number of the attempt that succeeded.
	Attempt int64 `json:"attempt"`
	// bytes counts the bytes that were transferred.
	Bytes TransferredBytes `json:"bytes"`
	// duration is the total time of all phases of the flip.
	Duration metav1.Duration `json:"duration"`
}

// ClientImpact is the effect of a transition on clients, measured at the gateways. The operator polls the gateways once
// a second, so each duration may be up to one second too long. The operator writes it ten seconds after the end of the
// transition.
type ClientImpact struct {
	// tokensPerSecondBefore is the number of tokens per second that clients received in the ten seconds before the
	// transition. It is 0 if the gateways were not polled yet.
	TokensPerSecondBefore int64 `json:"tokensPerSecondBefore"`
	// tokensPerSecondDuring is the number of tokens per second during the transition.
	TokensPerSecondDuring int64 `json:"tokensPerSecondDuring"`
	// tokensPerSecondAfter is the number of tokens per second in the ten seconds after the transition.
	TokensPerSecondAfter int64 `json:"tokensPerSecondAfter"`
	// longestGap is the longest time between two tokens of one request. It includes gaps that ended during the
	// transition or up to two seconds before.
	LongestGap metav1.Duration `json:"longestGap"`
	// longestGapBefore is the longest gap in the ten seconds before the transition.
	LongestGapBefore metav1.Duration `json:"longestGapBefore"`
	// silence is the longest time in which clients waited for tokens and no client received one. With several gateways
	// it is an upper bound.
	Silence metav1.Duration `json:"silence"`
}

// PeakMemory is the peak of memory for weights during a transition, with old and new pieces together. It is that of the
// rank that used the largest share of its memory.
type PeakMemory struct {
	// plannedBytes is the planned maximum for any rank, in bytes.
	PlannedBytes int64 `json:"plannedBytes"`
	// measuredBytes is the number of bytes that ranks reported when all pieces of a flip were present.
	MeasuredBytes int64 `json:"measuredBytes"`
}

// KVLoad is the distribution of requests over ranks after a transition, in tokens of KV cache that requests have
// reserved.
type KVLoad struct {
	// maxTokens is the number of reserved tokens of the rank with the most.
	MaxTokens int64 `json:"maxTokens"`
	// meanTokens is the mean over all ranks.
	MeanTokens int64 `json:"meanTokens"`
	// boundTokens is 1.25 times the mean. If a rank would have more, a transition also redistributes requests whose KV
	// it has to move anyway. Other requests stay, so maxTokens can be above the bound.
	BoundTokens int64 `json:"boundTokens"`
}

// LayoutTransitionStatus is the progress and the outcome of a transition.
type LayoutTransitionStatus struct {
	// conditions are Complete, Failed and Aborted. Exactly one is True once the transition has ended.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// phase is a summary for users: Planned, Preparing, Staging, Flipping or Retiring. At the end it is Succeeded,
	// Failed, Superseded or Aborted.
	// +optional
	Phase TransitionPhase `json:"phase,omitempty"`
	// epoch is the epoch that the transition reached.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// progress describes the current flip, e.g. "flip 2/4 layout: 12 of 40 MiB".
	// +optional
	Progress string `json:"progress,omitempty"`
	// flips lists the completed flips, at most the first 128.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	// +optional
	Flips []FlipStatus `json:"flips,omitempty"`
	// bytes counts the bytes that were transferred in all flips.
	// +optional
	Bytes TransferredBytes `json:"bytes,omitempty"`
	// phases has the duration of each phase over all flips.
	// +optional
	Phases PhaseDurations `json:"phases,omitempty"`
	// peakMemory is the planned and the measured peak of memory for weights.
	// +optional
	PeakMemory *PeakMemory `json:"peakMemory,omitempty"`
	// kvLoad is the distribution of requests over ranks at the end. It is absent without requests, and for engines that
	// do not report it, such as vLLM.
	// +optional
	KVLoad *KVLoad `json:"kvLoad,omitempty"`
	// sinceRequested is the time from the change of the spec, or from the loss of a pod, to the end. It includes the
	// start of pods, earlier transitions and back-off. Its start has a resolution of one second, as in condition Ready.
	// +optional
	SinceRequested *metav1.Duration `json:"sinceRequested,omitempty"`
	// lost lists the members that a repair removed, at most the first 64.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Lost []LostMember `json:"lost,omitempty"`
	// missed explains why the members of a repaired world stopped. Lost members are listed first.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Missed []MissedMember `json:"missed,omitempty"`
	// clientImpact is the effect on clients. It is absent if part of it is unknown: the operator restarted, or the
	// transition took longer than samples are kept (about four minutes).
	// +optional
	ClientImpact *ClientImpact `json:"clientImpact,omitempty"`
	// retries is the number of retries of calls, sources and unfinished attempts.
	// +optional
	Retries int32 `json:"retries,omitempty"`
	// startTime is the time at which the transition started.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// completionTime is the time at which the transition ended.
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`
	// message explains a failure.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Message string `json:"message,omitempty"`
}

// LayoutTransition is the record of one change of a world's layout: intent, cost and outcome. Only the operator writes
// it.
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
	// spec is the intent of the transition.
	// +required
	Spec LayoutTransitionSpec `json:"spec"`
	// status is the progress and the outcome of the transition.
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
