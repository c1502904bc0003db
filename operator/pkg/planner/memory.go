package planner

import (
	"errors"
	"fmt"
	"slices"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// memoryError rejects a plan because a flip does not fit a rank.
type memoryError struct {
	rank                uint32
	member              string
	flip                int
	kind                tangramv1.FlipKind
	peak, steady, limit uint64
}

func (e *memoryError) Error() string {
	advice := "use more ranks or increase the memory of the pool"
	if e.steady <= e.limit {
		advice = "the result would fit, but not the old and new layout together: increase the memory of the pool or use smaller steps"
	}
	if e.kind == tangramv1.FlipKind_FLIP_KIND_REPAIR {
		advice = "increase the memory of the pools by the headroom that a repair needs; until then the world can only restart from the checkpoint"
		if e.steady <= e.limit {
			advice = "the repaired layout would fit, but not together with pieces of older layouts that the rank holds: retire these pieces and repair again"
		}
	}
	return fmt.Sprintf("plan: flip %d (%v): rank %d (%s) needs %d bytes at its peak and %d after it, its pool has %d, %d too few: %s",
		e.flip, e.kind, e.rank, e.member, e.peak, e.steady, e.limit, e.peak-e.limit, advice)
}

// layerPages returns the pages of a rank's pieces of a layer. Further slots in the same bank count too: slots of whole
// experts (g = 1), or positions of the same group (g > 1), each position in pages of its own.
func (w *world) layerPages(layer *tangramv1.LayerLayout, at seat, shards *shardTable, slotsToo []uint32, positionsToo []int32) uint64 {
	if at.group < 0 {
		return 0
	}
	slots, page := layer.Experts[at.group].Slots, w.v.Proto.PageBytes
	if layer.ExpertGroupSize > 1 {
		pages := uint64(0)
		for _, p := range at.positions {
			pages += w.positionPages(slots, shards, p)
		}
		for _, p := range positionsToo {
			if !slices.Contains(at.positions, p) {
				pages += w.positionPages(slots, shards, p)
			}
		}
		return pages
	}
	pages, next := uint64(0), uint64(0)
	for s := range max(len(slots), len(slotsToo)) {
		if (s >= len(slots) || slots[s] == 0) && (s >= len(slotsToo) || slotsToo[s] == 0) {
			continue
		}
		start := uint64(s) * w.v.ExpertPitch
		first, end := max(start/page, next), (start+w.v.ExpertBytes-1)/page+1
		pages, next = pages+end-first, end
	}
	return pages
}

func (w *world) positionPages(slots []uint32, shards *shardTable, position int32) uint64 {
	bytes := uint64(0)
	for _, entry := range slots {
		if entry != 0 {
			bytes += geometry.RoundUp(w.v.PieceBytes(shards.of(entry-1, uint32(position)).Count), geometry.PieceAlignment)
		}
	}
	return geometry.RoundUp(bytes, w.v.Proto.PageBytes) / w.v.Proto.PageBytes
}

// IsNoMemory reports whether a plan was rejected because a flip does not fit a rank.
func IsNoMemory(err error) bool {
	var e *memoryError
	return errors.As(err, &e)
}
