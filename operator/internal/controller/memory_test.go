package controller

import (
	"testing"

	"github.com/stretchr/testify/require"

	api "tangram.dev/api/v1alpha2"
	"tangram.dev/operator/internal/world"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// The status shows the agents' memory and the transports of bytes; equal values appear once.
func TestStatusReportsAgentMemory(t *testing.T) {
	on := func(gpu string, moved *tangramv1.BytesByTransport) *tangramv1.StatusResponse {
		return &tangramv1.StatusResponse{Moved: moved, MemoryInfo: &tangramv1.MemoryInfo{Platform: "cuda", Pages: "36 MiB", Device: gpu, Capability: "9.0", Driver: "13.0"}}
	}
	of := func(all ...*tangramv1.StatusResponse) *api.MemoryStatus {
		s := &scene{seen: world.Snapshot{Statuses: map[string]*tangramv1.StatusResponse{}}}
		for i, a := range all {
			s.seen.Statuses[string(rune('a'+i))] = a
		}
		return memoryOf(&api.MoEDeployment{}, s)
	}
	require.Equal(t, &api.MemoryStatus{Platform: "cuda", Pages: "36 MiB", Device: "H100, H200", ComputeCapability: "9.0", Driver: "13.0", Transports: []string{"node", "process", "tcp"}},
		of(on("H200", &tangramv1.BytesByTransport{Weights: map[string]uint64{"tcp": 7, "node": 1}}),
			on("H100", &tangramv1.BytesByTransport{Weights: map[string]uint64{"tcp": 1}, Kv: map[string]uint64{"process": 5}}), on("H200", nil)))
	require.Equal(t, &api.MemoryStatus{}, of(), "no agent has reported")
	require.Equal(t, &api.MemoryStatus{}, of(&tangramv1.StatusResponse{World: "w"}), "an agent without a report")
}
