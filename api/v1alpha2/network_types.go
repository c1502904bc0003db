package v1alpha2

// Encryption of the connections between pods of a world.
// +kubebuilder:validation:Enum=Required;None
type Encryption string

// The values.
const (
	EncryptionRequired Encryption = "Required"
	EncryptionNone     Encryption = "None"
)

// NodeMemorySharing of the agents on one node.
// +kubebuilder:validation:Enum=Disabled;Enabled
type NodeMemorySharing string

// The values.
const (
	NodeMemorySharingDisabled NodeMemorySharing = "Disabled"
	NodeMemorySharingEnabled  NodeMemorySharing = "Enabled"
)

// Network between the pods of a world.
type Network struct {
	// encryption of weights, KV cache and the messages of engines within a step. With None they cross the network in plain text, and every client that
	// reaches a pod's port is trusted: only for a network without other users. Calls to agents and from gateways stay encrypted. With None the condition
	// PlaintextNetwork is True. Immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network.encryption is immutable, because all pods of a world must agree. To change it, create a MoEDeployment with another name."
	// +kubebuilder:default=Required
	// +optional
	Encryption Encryption `json:"encryption,omitempty"`
	// nodeMemorySharing lets agents of the world on one node map each other's memory, so that weights and KV cache are copied within the node and do not
	// cross the network; on GPUs, by peer access. Pods then mount a folder of the node (a hostPath volume). The namespace must allow that: by the label
	// serving.tangram.dev/node-memory-sharing=allowed, and by a Pod Security level that admits hostPath volumes. Without the label no pod is created, and
	// Degraded reports it. Immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network.nodeMemorySharing is immutable, because pods keep the volumes that they were created with. To change it, create a MoEDeployment with another name."
	// +kubebuilder:default=Disabled
	// +optional
	NodeMemorySharing NodeMemorySharing `json:"nodeMemorySharing,omitempty"`
}

// Certificates of a world.
type Certificates struct {
	// issuerSecretName names a Secret of the same namespace with the authority that signs the certificates of the world: a self-signed certificate in
	// tls.crt and its ECDSA key in tls.key, as certificate managers create and renew them. Without it the operator creates an authority. A change renews
	// all certificates while the world serves.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	IssuerSecretName string `json:"issuerSecretName,omitempty"`
}
