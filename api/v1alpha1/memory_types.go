package v1alpha1

// MemoryStatus is what weights and KV cache lie in. Where agents differ, each text has all that they tell, with commas between.
type MemoryStatus struct {
	// platform: host, or cuda.
	// +optional
	Platform string `json:"platform,omitempty"`
	// pages that memory is mapped in, for people.
	// +optional
	Pages string `json:"pages,omitempty"`
	// device is the name of the GPU; empty on the host.
	// +optional
	Device string `json:"device,omitempty"`
	// computeCapability of the GPU, e.g. 9.0.
	// +optional
	ComputeCapability string `json:"computeCapability,omitempty"`
	// driver: the CUDA version that the GPU's driver is of, e.g. 13.0.
	// +optional
	Driver string `json:"driver,omitempty"`
	// ways by which weights and KV cache came from other ranks since the agents started: process (between ranks of one pod), or the name of a transport
	// (node: memory of another pod of the node; tcp).
	// +listType=atomic
	// +optional
	Ways []string `json:"ways,omitempty"`
}
