package v1alpha2

import "k8s.io/apimachinery/pkg/api/resource"

// PageSize of the memory of weights and KV cache.
// +kubebuilder:validation:Enum="4Ki";"2Mi"
type PageSize string

// The page sizes.
const (
	Page4Ki PageSize = "4Ki"
	Page2Mi PageSize = "2Mi"
)

// Memory of a rank for weights and KV cache. Amounts are compared by value: a change from 1Gi to 1024Mi is no change.
//
// +kubebuilder:validation:XValidation:rule="(!has(self.weights) || !has(oldSelf.weights) || quantity(string(self.weights)).compareTo(quantity(string(oldSelf.weights))) == 0) && (!has(self.kvCache) || !has(oldSelf.kvCache) || quantity(string(self.kvCache)).compareTo(quantity(string(oldSelf.kvCache))) == 0) && (!has(self.pageSize) || !has(oldSelf.pageSize) || self.pageSize == oldSelf.pageSize)",message="The memory is immutable. To change it, create a MoEDeployment with another name."
type Memory struct {
	// weights is the memory for weights of each rank. It must hold the experts of the rank, all weights outside experts, and tuning.spareBanks layers of
	// experts; to survive the loss of a rank, also its share of that rank's experts. Left out, the operator computes it from the checkpoint, for minReplicas
	// (default: replicas) to maxReplicas (default: twice replicas), and writes it here; status.memory.budget shows its items. Immutable.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="The memory for weights must be above 0, e.g. 16Gi."
	// +optional
	Weights resource.Quantity `json:"weights,omitzero"`
	// kvCache is the memory for the KV cache of each rank. Left out, it is that of 65,536 tokens, and the operator writes it here. Immutable.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="The memory for the KV cache must be above 0, e.g. 16Gi."
	// +optional
	KVCache resource.Quantity `json:"kvCache,omitzero"`
	// pageSize of both, in the memory of pods. With 2Mi, pods request as many huge pages (hugepages-2Mi), which nodes must have reserved, and each expert
	// starts on a page boundary. Transitions are two to three times as fast, because pages are mapped and not copied. For models with experts of several
	// MiB. Immutable.
	// +kubebuilder:default="4Ki"
	// +optional
	PageSize PageSize `json:"pageSize,omitempty"`
}

// SlabFormat is how the pieces of an expert are laid out in memory.
// +kubebuilder:validation:Enum=GranuleMajor;RowMajor
type SlabFormat string

// The formats.
const (
	GranuleMajor SlabFormat = "GranuleMajor"
	RowMajor     SlabFormat = "RowMajor"
)

// Tuning has settings for experts of Tangram. The defaults suit most worlds.
//
// +kubebuilder:validation:XValidation:rule="(!has(self.granuleRows) || !has(oldSelf.granuleRows) || self.granuleRows == oldSelf.granuleRows) && (!has(self.slabFormat) || !has(oldSelf.slabFormat) || self.slabFormat == oldSelf.slabFormat) && (!has(self.spareBanks) || !has(oldSelf.spareBanks) || self.spareBanks == oldSelf.spareBanks) && (!has(self.handleSize) || !has(oldSelf.handleSize) || quantity(string(self.handleSize)).compareTo(quantity(string(oldSelf.handleSize))) == 0)",message="granuleRows, slabFormat, spareBanks and handleSize are immutable. To change them, create a MoEDeployment with another name."
type Tuning struct {
	// granuleRows is the smallest shard of an expert, in rows of moe_intermediate_size: a multiple of the quantization block. An expert can be sharded over
	// at most moe_intermediate_size / granuleRows ranks. Left out, the operator
	// chooses it for maxReplicas when it computes the memory; else it is at most 128, and small enough for 8 ranks. Immutable.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	GranuleRows int32 `json:"granuleRows,omitempty"`
	// slabFormat is how the pieces of an expert are laid out in memory. With GranuleMajor a shard is one contiguous range, so that experts are cut and
	// joined in few long copies. With RowMajor matrices are as in the checkpoint, as the kernels of other engines expect them. An engine rejects a format that it does not
	// support. Immutable.
	// +kubebuilder:default=GranuleMajor
	// +optional
	SlabFormat SlabFormat `json:"slabFormat,omitempty"`
	// spareBanks is the number of layers that one flip can rewrite. More layers mean fewer flips in a switch of the mode, and as much more memory for
	// weights. Immutable.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +kubebuilder:default=2
	// +optional
	SpareBanks int32 `json:"spareBanks,omitempty"`
	// handleSize is the unit in which GPU memory for weights is mapped: a multiple of 2Mi that holds a whole expert, e.g. 36Mi for Qwen3-235B-A22B. Smaller
	// units slow transitions down. For accelerator.type NVIDIA. The default is 2Mi. Immutable.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).asInteger() > 0 && quantity(string(self)).asInteger() % 2097152 == 0",message="handleSize must be a multiple of 2Mi, e.g. 36Mi."
	// +optional
	HandleSize *resource.Quantity `json:"handleSize,omitempty"`
	// maxStepStretchPercent bounds how much longer steps may take during a transition with strategy Smooth. Beyond it workers that transfer bytes sleep
	// more, down to a tenth of their time. Pods keep the value that they were created with.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=100
	// +optional
	MaxStepStretchPercent int32 `json:"maxStepStretchPercent,omitempty"`
	// historyLimit is the number of completed LayoutTransitions to keep.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=10
	// +optional
	HistoryLimit int32 `json:"historyLimit,omitempty"`
}

// MemoryItem of a budget.
type MemoryItem struct {
	// item, e.g. experts.
	// +kubebuilder:validation:MaxLength=128
	Item string `json:"item"`
	// bytes of each rank.
	Bytes int64 `json:"bytes"`
}

// MemoryStatus is where weights and KV cache are. If agents differ, each text lists all values, separated by commas.
type MemoryStatus struct {
	// weightsBytes of each rank: spec.memory.weights.
	// +optional
	WeightsBytes int64 `json:"weightsBytes,omitempty"`
	// kvCacheBytes of each rank: spec.memory.kvCache.
	// +optional
	KVCacheBytes int64 `json:"kvCacheBytes,omitempty"`
	// budget of a rank, if the operator computed spec.memory: its items add up to weights and kvCache.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Budget []MemoryItem `json:"budget,omitempty"`
	// platform: host or cuda.
	// +optional
	Platform string `json:"platform,omitempty"`
	// pages in which memory is mapped.
	// +optional
	Pages string `json:"pages,omitempty"`
	// device is the name of the GPU. Empty without an accelerator.
	// +optional
	Device string `json:"device,omitempty"`
	// computeCapability of the GPU, e.g. 9.0.
	// +optional
	ComputeCapability string `json:"computeCapability,omitempty"`
	// driver is the CUDA version of the GPU's driver, e.g. 13.0.
	// +optional
	Driver string `json:"driver,omitempty"`
	// transports by which weights and KV cache came from other ranks since the agents started: process (between ranks of one pod), node (the memory of
	// another pod of the node), tcp, or the name of a communication library.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Transports []string `json:"transports,omitempty"`
}
