package v1alpha2

// Labels on what the operator makes. WorldLabel and ComponentLabel together are the scale
// subresource's selector for pods of ranks.
const (
	WorldLabel     = "serving.tangram.dev/world"     // name of the MoEDeployment
	ComponentLabel = "serving.tangram.dev/component" // one of the Component values
	OrdinalLabel   = "serving.tangram.dev/ordinal"   // of a pod of ranks within its world
	MemberLabel    = "serving.tangram.dev/member"    // "true" while a rank of the pod is in the active layout
	StandbyLabel   = "serving.tangram.dev/standby"   // "true" while the pod is one of spec.standbyReplicas

	ComponentRank    = "rank"
	ComponentGateway = "gateway"
	ComponentSize    = "size" // the pod that reads the checkpoint to compute the memory

	// DeletionCostAnnotation on a pod of ranks: a scale-down removes the pods with the lowest cost first (an integer, default 0), as ReplicaSets do.
	DeletionCostAnnotation = "controller.kubernetes.io/pod-deletion-cost"

	// AbortAnnotation on a MoEDeployment names a LayoutTransition to abort: its flip is aborted if it has no permit yet, and is its last one otherwise. No
	// transition starts until the spec changes or the annotation is removed.
	AbortAnnotation = "serving.tangram.dev/abort"

	// NodeMemorySharingLabel on a namespace, with the value NodeMemorySharingAllowed: its MoEDeployments may set spec.network.nodeMemorySharing, which
	// gives pods a hostPath volume.
	NodeMemorySharingLabel   = "serving.tangram.dev/node-memory-sharing"
	NodeMemorySharingAllowed = "allowed"

	// Finalizer of a MoEDeployment: its running flip ends before its pods are deleted.
	Finalizer = "serving.tangram.dev/world"
)

// Conditions of a MoEDeployment. Available, Progressing, Degraded, Ready and RepairReady are present once the operator has seen the object. Reconciling and
// Stalled are present only while True, as kstatus reads them.
const (
	ConditionAvailable         = "Available"         // True: a layout is active, and a rank and a gateway accept requests
	ConditionProgressing       = "Progressing"       // True: the world is changing to the desired layout
	ConditionDegraded          = "Degraded"          // True: something failed; serving continues if it can
	ConditionReady             = "Ready"             // True: the desired layout is active, and nothing is in progress
	ConditionRepairReady       = "RepairReady"       // True: the loss of any one rank could be repaired within the memory of the others
	ConditionBalanced          = "Balanced"          // True: no move of experts pays; present while experts.rebalance is on
	ConditionScalingActive     = "ScalingActive"     // True: the operator chooses the number of replicas; present with spec.autoscaling
	ConditionModeOptimal       = "ModeOptimal"       // True: no other mode is worth a switch; present in mode Auto
	ConditionCertificatesValid = "CertificatesValid" // True: every certificate is valid, and is renewed in time
	ConditionPlaintextNetwork  = "PlaintextNetwork"  // True: spec.network.encryption is None; present only then
	ConditionReconciling       = "Reconciling"
	ConditionStalled           = "Stalled"
)

// Reasons of the conditions.
const (
	ReasonServing            = "Serving"            // Available, Ready: the desired layout serves
	ReasonNoLayout           = "NoLayout"           // Available=False: no layout is active yet
	ReasonEnginesNotReady    = "EnginesNotReady"    // Available=False: no engine accepts requests
	ReasonGatewayNotReady    = "GatewayNotReady"    // Available=False: ranks accept requests, no gateway does
	ReasonWaitingForPods     = "WaitingForPods"     // Progressing: pods start, or their engines attach
	ReasonTransition         = "Transition"         // Progressing: a LayoutTransition is in progress
	ReasonReleasingPods      = "ReleasingPods"      // Progressing: pods that left the world are deleted
	ReasonReconciled         = "Reconciled"         // Progressing=False, Degraded=False
	ReasonPodsUnschedulable  = "PodsUnschedulable"  // Degraded: no node has room, with the scheduler's message
	ReasonPodsFailing        = "PodsFailing"        // Degraded: containers do not start, e.g. for want of an image
	ReasonObjectRejected     = "ObjectRejected"     // Degraded: the API server rejects an object: quota, limit range, Pod Security, ...
	ReasonIssuerMissing      = "IssuerMissing"      // Degraded: the Secret of spec.certificates.issuerSecretName is missing or invalid
	ReasonTransitionFailed   = "TransitionFailed"   // Degraded: the last transition failed; it is retried with back-off
	ReasonMemberLost         = "MemberLost"         // Degraded: members are lost or stopped; a repair runs
	ReasonRepairFailed       = "RepairFailed"       // Degraded: a repair failed; it is retried with back-off
	ReasonRepairing          = "Repairing"          // Progressing: a repair runs, or is about to
	ReasonSuspended          = "Suspended"          // Progressing=False, Ready=False: spec.suspend holds the next transition back
	ReasonAborted            = "Aborted"            // Progressing=False, Ready=False: the user aborted the transition
	ReasonHeadroom           = "Headroom"           // RepairReady: there is memory for the repair
	ReasonNoHeadroom         = "NoHeadroom"         // RepairReady=False: memory is missing, with figures
	ReasonNotRepairable      = "NotRepairable"      // RepairReady=False: without one rank the world restarts from the checkpoint
	ReasonNoCheckpoint       = "NoCheckpoint"       // RepairReady=False: a repair needs the checkpoint, and agents cannot read it
	ReasonUnknown            = "Unknown"            // RepairReady=Unknown
	ReasonObserving          = "Observing"          // Balanced=Unknown: the load was too small to decide
	ReasonExpertsSharded     = "ExpertsSharded"     // Balanced=Unknown: ranks share every expert
	ReasonNoMovePays         = "NoMovePays"         // Balanced: no move of experts is worth its cost
	ReasonGainTooSmall       = "GainTooSmall"       // Balanced: moves would gain less than experts.rebalance.minimumGainPercent
	ReasonRebalancing        = "Rebalancing"        // Balanced=False: experts move, or are about to
	ReasonRebalanceFailed    = "RebalanceFailed"    // Balanced=False: it is retried with back-off; serving continues
	ReasonBestMode           = "BestMode"           // ModeOptimal
	ReasonRecommended        = "Recommended"        // ModeOptimal, ScalingActive, Balanced=False: a change is recommended, and the action is Recommend
	ReasonDecides            = "Decides"            // ScalingActive
	ReasonTwoOwners          = "TwoOwners"          // ScalingActive=False: a HorizontalPodAutoscaler also scales the world; replicas stay
	ReasonSLOOutOfReach      = "SLOOutOfReach"      // ScalingActive=False: no number of replicas meets the SLO, even without load; replicas stay
	ReasonModelContradicted  = "ModelContradicted"  // ScalingActive=False: measurements contradict the cost model; replicas stay
	ReasonSwitching          = "Switching"          // ModeOptimal=False: the world is switching to the mode that was decided
	ReasonNoDecision         = "NoDecision"         // ModeOptimal=Unknown: too little is known to decide; the layout stays
	ReasonNameConflict       = "NameConflict"       // Degraded: an object of the desired name belongs to another owner
	ReasonAgentsUnreachable  = "AgentsUnreachable"  // Degraded: agents do not answer
	ReasonInsufficientMemory = "InsufficientMemory" // Degraded: the desired layout does not fit into memory, with figures
	ReasonLayoutDoesNotFit   = "LayoutDoesNotFit"   // Degraded, Progressing=False: spec.parallelism does not fit the ranks, the model or the engine; the active layout stays
	ReasonInvalidSpec        = "InvalidSpec"        // Degraded: a value of the spec that only the operator can check is invalid
	ReasonSharingNotAllowed  = "SharingNotAllowed"  // Degraded: the namespace does not allow spec.network.nodeMemorySharing; no pod is created
	ReasonSizing             = "Sizing"             // Progressing: a pod reads the checkpoint, from which the memory is computed
	ReasonDeleting           = "Deleting"           // Progressing: the MoEDeployment is being deleted
	ReasonValid              = "Valid"              // CertificatesValid
	ReasonUnencrypted        = "Unencrypted"        // PlaintextNetwork: weights, KV cache and steps can be read and forged on the network
	ReasonExpired            = "Expired"            // CertificatesValid=False: connections that use the certificate fail
	ReasonRenewalFailed      = "RenewalFailed"      // CertificatesValid=False: a renewal failed; it is retried
)

// Events. Others are named like a reason above.
const (
	EventPodCreated          = "PodCreated"
	EventPodReleased         = "PodReleased" // with name and UID
	EventTransitionStarted   = "TransitionStarted"
	EventTransitionSucceeded = "TransitionSucceeded"
	EventTransitionReplanned = "TransitionReplanned" // the spec changed; the running flip was ended first
	EventTransitionAborted   = "TransitionAborted"   // by the user
	EventModeDecided         = "ModeDecided"         // in mode Auto, with the message
	EventDecisionReverted    = "DecisionReverted"    // the transition of a decided mode or number of replicas failed, with the message
	EventReplicasDecided     = "ReplicasDecided"     // with spec.autoscaling, with the message
	EventRebalanced          = "Rebalanced"          // with moves, bytes, balancedness before and after
	EventRepaired            = "Repaired"            // with lost members, seconds and bytes
	EventSessionFlaps        = "SessionFlaps"        // the connection of a gateway to a rank breaks repeatedly
	EventWorldRestarted      = "WorldRestarted"      // no survivor could hold the world; it restarts from the checkpoint
)
