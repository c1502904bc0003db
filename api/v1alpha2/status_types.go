package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MoEDeploymentStatus is the observed state of a world.
type MoEDeploymentStatus struct {
	// conditions are Available, Progressing, Degraded, Ready, RepairReady and CertificatesValid. Balanced is present
	// while experts.rebalance is on, ModeOptimal in mode Auto, and ScalingActive with autoscaling. Reconciling, Stalled
	// and PlaintextNetwork are present only while they are True.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// state is the reason of the most important condition. It is for printer columns.
	// +optional
	State string `json:"state,omitempty"`
	// ready is readyReplicas and desiredReplicas, e.g. 4/6. It is for printer columns.
	// +optional
	Ready string `json:"ready,omitempty"`
	// model is the name that clients use for the model.
	// +optional
	Model string `json:"model,omitempty"`
	// replicas is the number of pods that selector matches.
	// +optional
	Replicas int32 `json:"replicas"`
	// desiredReplicas is the desired number of pods: spec.replicas, or the number that autoscaling decided.
	// +optional
	DesiredReplicas int32 `json:"desiredReplicas,omitempty"`
	// readyReplicas is the number of pods with all ranks in the active layout.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`
	// readyStandbyReplicas is the number of pods outside the active layout that are ready to join.
	// +optional
	ReadyStandbyReplicas int32 `json:"readyStandbyReplicas,omitempty"`
	// selector is the label selector of the pods of ranks, in the form that autoscalers read.
	// +optional
	Selector string `json:"selector,omitempty"`
	// epoch is the version number of the active layout. It is 0 before the first layout.
	// +optional
	Epoch int64 `json:"epoch"`
	// layoutHash is the SHA-256 hash of the active layout, in hexadecimal.
	// +optional
	LayoutHash string `json:"layoutHash,omitempty"`
	// mode is the mode of the active layout: ExpertParallel, TensorParallel or Hybrid. It is Hybrid if layers differ or
	// have other groups.
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// layers are the ranges of layers of the active layout. Each layer is in one range. You can copy up to 24 ranges to
	// spec.parallelism.layers.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	Layers []RangeStatus `json:"layers,omitempty"`
	// ranks is the number of ranks of the active layout.
	// +optional
	Ranks int32 `json:"ranks"`
	// members are the members of the active layout, by rank. The list has at most the first 256.
	// +listType=map
	// +listMapKey=rank
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Members []Member `json:"members,omitempty"`
	// transition is the transition in progress.
	// +optional
	Transition *CurrentTransition `json:"transition,omitempty"`
	// recentTransitions are the last five transitions that ended, newest first.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	// +optional
	RecentTransitions []RecentTransition `json:"recentTransitions,omitempty"`
	// rebalance is the last evaluation of the experts' load. It is set only while experts.rebalance is on.
	// +optional
	Rebalance *RebalanceStatus `json:"rebalance,omitempty"`
	// policy has the last decisions of mode Auto and of autoscaling. It is set only with one of them.
	// +optional
	Policy *PolicyStatus `json:"policy,omitempty"`
	// memory describes the memory for weights and KV cache, and the transports between ranks, as reported by the
	// agents.
	// +optional
	Memory *MemoryStatus `json:"memory,omitempty"`
	// load is the load that engines and gateways report.
	// +optional
	Load *LoadStatus `json:"load,omitempty"`
	// endpoint is the address of the gateway inside the cluster.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
}

// MaxMembers is the maximum number of members that a status lists.
const MaxMembers = 256

// Member is a member of the active layout.
type Member struct {
	// rank is the index of the member in the layout.
	Rank int32 `json:"rank"`
	// id is the id of the member: pod UID, device and incarnation. It is never reused.
	ID string `json:"id"`
	// pod is the name of the pod.
	Pod string `json:"pod"`
	// node is the node of the pod.
	// +optional
	Node string `json:"node,omitempty"`
}

// CurrentTransition is the progress of a transition.
type CurrentTransition struct {
	// name is the name of the LayoutTransition.
	Name string `json:"name"`
	// phase is the phase of the current flip.
	Phase string `json:"phase"`
	// flip is the number of the current flip. The first is 1.
	Flip int32 `json:"flip"`
	// flips is the number of flips of the transition.
	Flips int32 `json:"flips"`
	// bytesDone is the number of bytes of the current flip that were transferred.
	BytesDone int64 `json:"bytesDone"`
	// bytesTotal is the number of bytes of the current flip.
	BytesTotal int64 `json:"bytesTotal"`
}

// RecentTransition is a transition that ended.
type RecentTransition struct {
	// name is the name of the LayoutTransition.
	Name string `json:"name"`
	// summary describes the change, e.g. "4 ranks ExpertParallel -> 6 ranks ExpertParallel".
	Summary string `json:"summary"`
	// phase is the phase at the end: Succeeded, Failed, Superseded or Aborted.
	Phase TransitionPhase `json:"phase"`
	// completionTime is the time at which the transition ended.
	CompletionTime metav1.Time `json:"completionTime"`
	// message explains a failure.
	// +optional
	Message string `json:"message,omitempty"`
}
