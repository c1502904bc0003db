package controller

import (
	"maps"
	"slices"
	"strings"

	api "tangram.dev/api/v1alpha2"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// memoryOf what the agents tell of theirs; nil: none tells anything.
func memoryOf(s *scene) *api.MemoryStatus {
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
	if out.Platform == "" {
		return nil
	}
	return out
}
