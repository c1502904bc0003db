package controller

import (
	"maps"
	"slices"
	"strings"

	api "tangram.dev/api/v1alpha2"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// memoryOf returns the memory of the ranks, from the spec and the agents' reports.
func memoryOf(d *api.MoEDeployment, s *scene) *api.MemoryStatus {
	ways := map[string]bool{}
	each := func(of func(*tangramv1.MemoryInfo) string) string {
		texts := map[string]bool{}
		for _, a := range s.seen.Statuses {
			texts[of(a.GetMemoryInfo())] = true
		}
		delete(texts, "")
		return strings.Join(slices.Sorted(maps.Keys(texts)), ", ")
	}
	for _, a := range s.seen.Statuses {
		for _, moved := range []map[string]uint64{a.GetMoved().GetWeights(), a.GetMoved().GetKv()} {
			for way := range moved {
				ways[way] = true
			}
		}
	}
	out := &api.MemoryStatus{
		Platform: each((*tangramv1.MemoryInfo).GetPlatform), Pages: each((*tangramv1.MemoryInfo).GetPages), Device: each((*tangramv1.MemoryInfo).GetDevice),
		ComputeCapability: each((*tangramv1.MemoryInfo).GetCapability), Driver: each((*tangramv1.MemoryInfo).GetDriver),
		Transports: slices.Sorted(maps.Keys(ways)),
	}
	out.WeightsBytes, out.KVCacheBytes = d.Spec.Memory.Weights.Value(), d.Spec.Memory.KVCache.Value()
	if d.Status.Memory != nil {
		out.Budget = d.Status.Memory.Budget
	}
	return out
}
