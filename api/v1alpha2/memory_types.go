package v1alpha2

import "k8s.io/apimachinery/pkg/api/resource"

// PageSize is the page size of the memory for weights and KV cache.
// +kubebuilder:validation:Enum="4Ki";"2Mi"
type PageSize string

// The page sizes.
const (
	Page4Ki PageSize = "4Ki"
	Page2Mi PageSize = "2Mi"
)

// Memory is the memory of a rank for weights and KV cache. Amounts are compared by value, so a change from 1Gi to
// 1024Mi changes nothing.
//
// +kubebuilder:validation:XValidation:rule="(!has(self.weights) || !has(oldSelf.weights) || quantity(string(self.weights)).compareTo(quantity(string(oldSelf.weights))) == 0) && (!has(self.kvCache) || !has(oldSelf.kvCache) || quantity(string(self.kvCache)).compareTo(quantity(string(oldSelf.kvCache))) == 0) && (!has(self.pageSize) || !has(oldSelf.pageSize) || self.pageSize == oldSelf.pageSize)",message="The memory is immutable. To change it, create a MoEDeployment with another name."
type Memory struct {
	// weights is the memory of each rank for weights. It must hold the experts of the rank, all weights outside
	// experts, and tuning.spareBanks layers of experts. To survive the loss of a rank, it must also hold its share of
	// the lost rank's experts. If you leave it out, the operator computes it from the checkpoint and writes it here.
	// The result is enough for minReplicas (default: replicas) to maxReplicas (default: twice replicas).
	// status.memory.budget shows its items. This field is immutable once set.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="The memory for weights must be above 0, e.g. 16Gi."
	// +optional
	Weights resource.Quantity `json:"weights,omitzero"`
	// kvCache is the memory of each rank for the KV cache. If you leave it out, the operator uses the memory of 65,536
	// tokens and writes it here. This field is immutable once set.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="The memory for the KV cache must be above 0, e.g. 16Gi."
	// +optional
	KVCache resource.Quantity `json:"kvCache,omitzero"`
	// pageSize is the page size of the memory for weights and KV cache in pods. The default is 4Ki. With 2Mi, pods
	// request huge pages (hugepages-2Mi) for this memory, which nodes must have reserved. Each expert then starts on a
	// page boundary. Transitions are two to three times as fast, because pages are mapped and not copied. Use 2Mi for
	// models with experts of several MiB. This field is immutable.
	// +kubebuilder:default="4Ki"
	// +optional
	PageSize PageSize `json:"pageSize,omitempty"`
}

// SlabFormat is the arrangement of the pieces of an expert in memory.
// +kubebuilder:validation:Enum=GranuleMajor;RowMajor
type SlabFormat string

// The formats.
const (
	GranuleMajor SlabFormat = "GranuleMajor"
	RowMajor     SlabFormat = "RowMajor"
)

// Tuning has advanced settings. The defaults suit most worlds.
//
// +kubebuilder:validation:XValidation:rule="(!has(self.granuleRows) || !has(oldSelf.granuleRows) || self.granuleRows == oldSelf.granuleRows) && (!has(self.slabFormat) || !has(oldSelf.slabFormat) || self.slabFormat == oldSelf.slabFormat) && (!has(self.spareBanks) || !has(oldSelf.spareBanks) || self.spareBanks == oldSelf.spareBanks) && (!has(self.handleSize) || !has(oldSelf.handleSize) || quantity(string(self.handleSize)).compareTo(quantity(string(oldSelf.handleSize))) == 0)",message="granuleRows, slabFormat, spareBanks and handleSize are immutable. To change them, create a MoEDeployment with another name."
type Tuning struct {
	// granuleRows is the size of the smallest shard of an expert, in rows of moe_intermediate_size. It must be a
	// multiple of the quantization block. An expert can be sharded over at most moe_intermediate_size / granuleRows
	// ranks. If you leave it out, the operator chooses it for maxReplicas when it computes the memory. If the operator
	// does not compute the memory, the default is at most 128, and small enough for 8 ranks. This field is immutable
	// once set.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1048576
	// +optional
	GranuleRows int32 `json:"granuleRows,omitempty"`
	// slabFormat is the arrangement of the pieces of an expert in memory. With GranuleMajor, the default, a shard is
	// one contiguous range, so experts are cut and joined in few long copies. With RowMajor, matrices are stored as in
	// the checkpoint, as the kernels of other engines expect. An engine rejects a format that it does not support. This
	// field is immutable.
	// +kubebuilder:default=GranuleMajor
	// +optional
	SlabFormat SlabFormat `json:"slabFormat,omitempty"`
	// spareBanks is the number of layers that one flip can rewrite. With more, a mode switch needs fewer flips, and
	// weights need correspondingly more memory. The default is 2. This field is immutable.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	// +kubebuilder:default=2
	// +optional
	SpareBanks int32 `json:"spareBanks,omitempty"`
	// handleSize is the unit in which GPU memory for weights is mapped. It is a multiple of 2Mi that holds a whole
	// expert, e.g. 36Mi for Qwen3-235B-A22B. Smaller units make transitions slower. It needs accelerator.type NVIDIA.
	// The default is 2Mi. This field is immutable once set.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).asInteger() > 0 && quantity(string(self)).asInteger() % 2097152 == 0",message="handleSize must be a multiple of 2Mi, e.g. 36Mi."
	// +optional
	HandleSize *resource.Quantity `json:"handleSize,omitempty"`
	// maxStepStretchPercent is the maximum increase of the duration of steps during a transition with strategy Smooth,
	// in percent. Above it, workers that transfer bytes sleep more, and work at least a tenth of their time. The
	// default is 100. Pods keep the value with which they were created.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=100
	// +optional
	MaxStepStretchPercent int32 `json:"maxStepStretchPercent,omitempty"`
	// historyLimit is the number of completed LayoutTransitions to keep. The default is 10.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=10
	// +optional
	HistoryLimit int32 `json:"historyLimit,omitempty"`
}

// MemoryItem is an item of a memory budget.
type MemoryItem struct {
	// item is the name of the item, e.g. experts.
	// +kubebuilder:validation:MaxLength=128
	Item string `json:"item"`
	// bytes is the number of bytes of each rank.
	Bytes int64 `json:"bytes"`
}

// MemoryStatus describes the memory for weights and KV cache. If agents differ, each text lists all values, separated
// by commas.
type MemoryStatus struct {
	// weightsBytes is the memory of each rank for weights, spec.memory.weights, in bytes.
	// +optional
	WeightsBytes int64 `json:"weightsBytes,omitempty"`
	// kvCacheBytes is the memory of each rank for the KV cache, spec.memory.kvCache, in bytes.
	// +optional
	KVCacheBytes int64 `json:"kvCacheBytes,omitempty"`
	// budget lists the memory of a rank by item, if the operator computed spec.memory. The items add up to weights and
	// kvCache.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Budget []MemoryItem `json:"budget,omitempty"`
	// platform is host or cuda.
	// +optional
	Platform string `json:"platform,omitempty"`
	// pages describes the pages in which memory is mapped.
	// +optional
	Pages string `json:"pages,omitempty"`
	// device is the name of the GPU. It is empty without an accelerator.
	// +optional
	Device string `json:"device,omitempty"`
	// computeCapability is the compute capability of the GPU, e.g. 9.0.
	// +optional
	ComputeCapability string `json:"computeCapability,omitempty"`
	// driver is the CUDA version of the GPU's driver, e.g. 13.0.
	// +optional
	Driver string `json:"driver,omitempty"`
	// transports lists the transports by which ranks fetched weights and KV cache from other ranks since the agents
	// started. process is between ranks of one pod. node is through the memory of another pod on the node. Other values
	// are tcp and the name of a communication library.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Transports []string `json:"transports,omitempty"`
}
