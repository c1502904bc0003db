package v1alpha2

// Encryption selects whether connections between pods of a world are encrypted.
// +kubebuilder:validation:Enum=Required;None
type Encryption string

// The values.
const (
	EncryptionRequired Encryption = "Required"
	EncryptionNone     Encryption = "None"
)

// NodeMemorySharing selects whether agents on one node map each other's memory.
// +kubebuilder:validation:Enum=Disabled;Enabled
type NodeMemorySharing string

// The values.
const (
	NodeMemorySharingDisabled NodeMemorySharing = "Disabled"
	NodeMemorySharingEnabled  NodeMemorySharing = "Enabled"
)

// Network configures the connections between the pods of a world.
type Network struct {
	// encryption protects weights, KV cache and the messages of engines within a step. Required is the default. With
	// None they cross the network in plain text, and every client that reaches a pod's port is trusted. Use None only
	// on a network without other users. Calls to agents and from gateways stay encrypted. With None, the condition
	// PlaintextNetwork is True. This field is immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network.encryption is immutable, because all pods of a world must agree. To change it, create a MoEDeployment with another name."
	// +kubebuilder:default=Required
	// +optional
	Encryption Encryption `json:"encryption,omitempty"`
	// nodeMemorySharing lets agents of the world on one node map each other's memory. Weights and KV cache are then
	// copied within the node and do not cross the network; on GPUs, by peer access. Pods mount a folder of the node (a
	// hostPath volume). The namespace must allow this with the label serving.tangram.dev/node-memory-sharing=allowed,
	// and with a Pod Security level that admits hostPath volumes. Without the label the operator creates no pod, and
	// the condition Degraded reports it. The default is Disabled. This field is immutable.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="network.nodeMemorySharing is immutable, because pods keep the volumes that they were created with. To change it, create a MoEDeployment with another name."
	// +kubebuilder:default=Disabled
	// +optional
	NodeMemorySharing NodeMemorySharing `json:"nodeMemorySharing,omitempty"`
}

// Certificates configures the certificates of a world.
type Certificates struct {
	// issuerSecretName is the name of a Secret in the same namespace with the authority that signs the certificates of
	// the world. It has a self-signed certificate in tls.crt and its ECDSA key in tls.key, as certificate managers
	// create and renew them. Without it, the operator creates an authority. A change renews all certificates while the
	// world serves.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	IssuerSecretName string `json:"issuerSecretName,omitempty"`
}
