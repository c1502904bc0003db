package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MoEDeploymentStatus is the observed state of a world.
type MoEDeploymentStatus struct {
	// conditions: Available, Progressing, Degraded, Ready, RepairReady and CertificatesValid; Balanced while experts.rebalance is on; ModeOptimal in mode
	// Auto; ScalingActive with autoscaling; and while they are True, Reconciling, Stalled and PlaintextNetwork.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// state is the reason of the most important condition, for printer columns.
	// +optional
	State string `json:"state,omitempty"`
	// ready is readyReplicas and desiredReplicas, e.g. 4/6, for printer columns.
	// +optional
	Ready string `json:"ready,omitempty"`
	// model is the name that clients use for the model.
	// +optional
	Model string `json:"model,omitempty"`
	// replicas is the number of pods that selector matches.
	// +optional
	Replicas int32 `json:"replicas"`
	// desiredReplicas is the number of pods that the world shall have: spec.replicas, or what autoscaling decided.
	// +optional
	DesiredReplicas int32 `json:"desiredReplicas,omitempty"`
	// readyReplicas is the number of pods with all ranks in the active layout.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// readyStandbyReplicas is the number of pods outside the active layout that are ready to join.
	// +optional
	ReadyStandbyReplicas int32 `json:"readyStandbyReplicas,omitempty"`
	// selector of the pods of ranks, as autoscalers read it.
	// +optional
	Selector string `json:"selector,omitempty"`
	// epoch is the version number of the active layout. 0: there is none yet.
	// +optional
	Epoch int64 `json:"epoch"`
	// layoutHash of the active layout: SHA-256, in hexadecimal.
	// +optional
	LayoutHash string `json:"layoutHash,omitempty"`
	// mode of the active layout: ExpertParallel, TensorParallel, or Hybrid if layers differ or have other groups.
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// layers of the active layout, by ranges. Each layer is in one range. The value can be copied to spec.parallelism.layers, if it has
	// at most 24 ranges.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	Layers []RangeStatus `json:"layers,omitempty"`
	// ranks of the active layout.
	// +optional
	Ranks int32 `json:"ranks"`
	// members of the active layout, by rank: the first 256.
	// +listType=map
	// +listMapKey=rank
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Members []Member `json:"members,omitempty"`
	// transition in progress.
	// +optional
	Transition *CurrentTransition `json:"transition,omitempty"`
	// recentTransitions are the last transitions that completed, newest first.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	// +optional
	RecentTransitions []RecentTransition `json:"recentTransitions,omitempty"`
	// rebalance is the last evaluation of the experts' load. Set while experts.rebalance is on.
	// +optional
	Rebalance *RebalanceStatus `json:"rebalance,omitempty"`
	// policy has the last decisions of mode Auto and of autoscaling. Set with one of them only.
	// +optional
	Policy *PolicyStatus `json:"policy,omitempty"`
	// memory of weights and KV cache, and the transports between ranks, as reported by the agents.
	// +optional
	Memory *MemoryStatus `json:"memory,omitempty"`
	// load as reported by engines and gateways.
	// +optional
	Load *LoadStatus `json:"load,omitempty"`
	// endpoint of the gateway inside the cluster.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
}

// MaxMembers that a status lists.
const MaxMembers = 256

// Member of the active layout.
type Member struct {
	// rank in the layout.
	Rank int32 `json:"rank"`
	// id of the member: pod UID, device and incarnation. It is never reused.
	ID string `json:"id"`
	// pod of the rank.
	Pod string `json:"pod"`
	// node of the pod.
	// +optional
	Node string `json:"node,omitempty"`
}

// CurrentTransition is the progress of a transition.
type CurrentTransition struct {
	// name of the LayoutTransition.
	Name string `json:"name"`
	// phase of the current flip.
	Phase string `json:"phase"`
	// flip in progress. The first is 1.
	Flip int32 `json:"flip"`
	// flips of the transition.
	Flips int32 `json:"flips"`
	// bytesDone of the current flip.
	BytesDone int64 `json:"bytesDone"`
	// bytesTotal of the current flip.
	BytesTotal int64 `json:"bytesTotal"`
}

// RecentTransition is a transition that completed.
type RecentTransition struct {
	// name of the LayoutTransition.
	Name string `json:"name"`
	// summary, e.g. "4 ranks ExpertParallel -> 6 ranks ExpertParallel".
	Summary string `json:"summary"`
	// phase at the end: Succeeded, Failed, Superseded or Aborted.
	Phase TransitionPhase `json:"phase"`
	// completionTime of the transition.
	CompletionTime metav1.Time `json:"completionTime"`
	// message of a failure.
	// +optional
	Message string `json:"message,omitempty"`
}
