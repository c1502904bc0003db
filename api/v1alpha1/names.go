package v1alpha1

// Labels on what the operator makes. WorldLabel and ComponentLabel together are the scale
// subresource's selector for pods of ranks.
const (
	WorldLabel     = "serving.tangram.dev/world"     // name of the MoEDeployment
	ComponentLabel = "serving.tangram.dev/component" // one of the Component values
	OrdinalLabel   = "serving.tangram.dev/ordinal"   // of a pod of ranks within its world
	MemberLabel    = "serving.tangram.dev/member"    // "true" while a rank of the pod is in the layout in force
	StandbyLabel   = "serving.tangram.dev/standby"   // "true" while the pod is one of spec.standby

	ComponentRank    = "rank"
	ComponentGateway = "gateway"

	// DeletionCostAnnotation on a pod of ranks: on a scale-down the pods with the lowest cost
	// leave first (an integer, default 0), as ReplicaSets do it.
	DeletionCostAnnotation = "controller.kubernetes.io/pod-deletion-cost"

	// AbortAnnotation on a MoEDeployment names a LayoutTransition that shall end: a flip of it that is not permitted
	// yet is aborted, one that is ends and is the last. No other is begun until the spec changes or the annotation goes.
	AbortAnnotation = "serving.tangram.dev/abort"

	// ShareNodeMemoryLabel on a namespace, of the value ShareNodeMemoryAllowed: its MoEDeployments may have pods that share
	// memory on their node (spec.network.shareNodeMemory), by a hostPath volume.
	ShareNodeMemoryLabel   = "serving.tangram.dev/share-node-memory"
	ShareNodeMemoryAllowed = "allowed"

	// Finalizer of a MoEDeployment: its running flip is ended before its pods go.
	Finalizer = "serving.tangram.dev/world"
)

// Conditions of a MoEDeployment. Available, Progressing, Degraded and Ready are always there
// once the operator has seen the object, RepairReady too; Reconciling and Stalled are there only while True,
// as kstatus reads them.
const (
	ConditionAvailable     = "Available"     // True: a layout is in force, some rank and some gateway accept requests
	ConditionProgressing   = "Progressing"   // True: the world is on its way to the wanted shape
	ConditionDegraded      = "Degraded"      // True: something failed; what serves goes on serving
	ConditionReady         = "Ready"         // True: it serves in the wanted width and mode, nothing is under way
	ConditionRepairReady   = "RepairReady"   // True: the loss of any one rank could be repaired within the memory of the others
	ConditionBalanced      = "Balanced"      // True: no move of experts pays; there only while spec.rebalance is set
	ConditionScalingActive = "ScalingActive" // True: the operator decides how many pods there are; there only with autoscaling.slo
	ConditionOptimal       = "Optimal"       // True: no other mode would be worth a switch; there only in mode Auto
	ConditionReconciling   = "Reconciling"

	ConditionCertificatesValid = "CertificatesValid" // True: nothing that protects the world has ended, and all is renewed in time

	ConditionInsecureFabric = "InsecureFabric" // True: spec.network.insecureFabric; there only while it is

	ConditionStalled = "Stalled"
)

// Reasons of the conditions.
const (
	ReasonServing            = "Serving"            // Available, Ready: all is as wanted
	ReasonNoLayout           = "NoLayout"           // Available=False: no layout is in force yet
	ReasonNoRankAccepts      = "NoRankAccepts"      // Available=False: engines are down
	ReasonNoGateway          = "NoGateway"          // Available=False: ranks accept requests, no gateway does
	ReasonWaitingForPods     = "WaitingForPods"     // Progressing: pods start, or their engines attach
	ReasonTransition         = "Transition"         // Progressing: a LayoutTransition runs
	ReasonReleasingPods      = "ReleasingPods"      // Progressing: pods that left the world are deleted
	ReasonAsWanted           = "AsWanted"           // Progressing=False, Degraded=False
	ReasonPodsUnschedulable  = "PodsUnschedulable"  // Degraded: no node has room, with the scheduler's words
	ReasonPodsFailing        = "PodsFailing"        // Degraded: an image does not start, a model path is missing, ...
	ReasonRefusedByCluster   = "RefusedByCluster"   // Degraded: the API server does not take an object: quota, limit range, Pod Security, ...
	ReasonIssuerMissing      = "IssuerMissing"      // Degraded: the Secret that spec.certificates.issuerSecretName names is missing or cannot be used
	ReasonTransitionFailed   = "TransitionFailed"   // Degraded: the last transition failed; it is tried again, ever more slowly
	ReasonMemberLost         = "MemberLost"         // Degraded: members are lost or stand still; a repair runs
	ReasonRepairFailed       = "RepairFailed"       // Degraded: a repair failed; it is tried again, ever more slowly
	ReasonRepairing          = "Repairing"          // Progressing: a repair runs, or is about to
	ReasonSuspended          = "Suspended"          // Progressing=False, Ready=False: spec.suspend holds the next transition back
	ReasonAborted            = "Aborted"            // Progressing=False, Ready=False: the user aborted the transition
	ReasonHeadroom           = "Headroom"           // RepairReady: there is room for the repair
	ReasonNoHeadroom         = "NoHeadroom"         // RepairReady=False: bytes are short, with the numbers
	ReasonNoSurvivor         = "NoSurvivor"         // RepairReady=False: without one rank the world starts again from the checkpoint
	ReasonNoCheckpoint       = "NoCheckpoint"       // RepairReady=False: agents cannot read it, and it would be needed
	ReasonUnknown            = "Unknown"            // RepairReady=Unknown
	ReasonObserving          = "Observing"          // Balanced=Unknown: too little load was seen
	ReasonNotInModeExpert    = "NotInModeExpert"    // Balanced=Unknown: experts are shared by ranks in every layer
	ReasonNoMovePays         = "NoMovePays"         // Balanced: the layout in force is as good as it gets for the price
	ReasonNotWorthIt         = "NotWorthIt"         // Balanced: moves would gain less than spec.rebalance.minGainPercent
	ReasonRebalancing        = "Rebalancing"        // Balanced=False: experts move, or are about to
	ReasonRebalanceFailed    = "RebalanceFailed"    // Balanced=False: it is tried again, ever more slowly; what serves goes on
	ReasonBestMode           = "BestMode"           // Optimal
	ReasonDryRun             = "DryRun"             // Optimal=False: another mode is wanted, and spec.autoscaling.dryRun; ScalingActive=False: the same of the width
	ReasonDecides            = "Decides"            // ScalingActive
	ReasonTwoOwners          = "TwoOwners"          // ScalingActive=False: a HorizontalPodAutoscaler wants to decide, too; the width stays
	ReasonSLOOutOfReach      = "SLOOutOfReach"      // ScalingActive=False: no width holds the SLO, even without load; the width stays
	ReasonModelContradicted  = "ModelContradicted"  // ScalingActive=False: what is measured contradicts the cost model; the width stays
	ReasonSwitching          = "Switching"          // Optimal=False: the world is on its way to the mode that was decided
	ReasonNoDecision         = "NoDecision"         // Optimal=Unknown: too little is known, or what is told cannot be right; the layout stays
	ReasonAdoptionRefused    = "AdoptionRefused"    // Degraded: an object of the wanted name belongs to somebody else
	ReasonAgentsUnreachable  = "AgentsUnreachable"  // Degraded: agents do not answer
	ReasonInsufficientMemory = "InsufficientMemory" // Degraded: the wanted layout does not fit, with the numbers
	ReasonLayoutDoesNotFit   = "LayoutDoesNotFit"   // Degraded, Progressing=False: spec.layout is none for so many ranks, this model or its engine; the layout in force stays
	ReasonSharingNotAllowed  = "SharingNotAllowed"  // Degraded: spec.network.shareNodeMemory, and the namespace's label does not allow it: no pod is made
	ReasonDeleting           = "Deleting"           // Progressing: the MoEDeployment is being deleted
	ReasonValid              = "Valid"              // CertificatesValid
	ReasonPlainText          = "PlainText"          // InsecureFabric: weights, KV and steps can be read and forged on the way
	ReasonExpired            = "Expired"            // CertificatesValid=False: connections that use it fail
	ReasonRenewalFailed      = "RenewalFailed"      // CertificatesValid=False: a renewal failed; it is tried again
)

// Events, beside those named like a reason above.
const (
	EventPodCreated          = "PodCreated"
	EventPodReleased         = "PodReleased" // with name and UID
	EventTransitionStarted   = "TransitionStarted"
	EventTransitionSucceeded = "TransitionSucceeded"
	EventTransitionReplanned = "TransitionReplanned" // the spec changed; the running flip was ended first
	EventTransitionAborted   = "TransitionAborted"   // the user did
	EventModeDecided         = "ModeDecided"         // in mode Auto, with the reason
	EventDecisionTakenBack   = "DecisionTakenBack"   // of a mode or width that the operator decided on: the transition failed, with the reason
	EventWidthDecided        = "WidthDecided"        // with autoscaling.slo, with the reason
	EventRebalanced          = "Rebalanced"          // with moves, bytes, balancedness before and after
	EventRepaired            = "Repaired"            // with members lost, seconds and bytes
	EventSessionFlaps        = "SessionFlaps"        // the connection of a gateway to a rank breaks again and again
	EventWorldRestarted      = "WorldRestarted"      // nobody survived who could hold it; it starts again from the checkpoint
)
