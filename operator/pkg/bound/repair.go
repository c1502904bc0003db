package bound

import (
	"slices"

	"tangram.dev/operator/pkg/geometry"
)

// RepairBytes returns the minimum that a repair must read from the checkpoint: every granule of every expert that no
// survivor holds, once, for any placement. The tail counts if no survivor holds anything of the expert. held[o][e] are
// the survivors' runs of expert e of the MoE layer with ordinal o.
func RepairBytes(v *geometry.View, held [][][]Held) uint64 {
	total := uint64(0)
	for _, experts := range held {
		for _, hs := range experts {
			if len(hs) == 0 {
				total += v.ExpertBytes
				continue
			}
			runs := make([]geometry.Run, len(hs))
			for i, h := range hs {
				runs[i] = h.Run
			}
			slices.SortFunc(runs, func(a, b geometry.Run) int { return int(a.Start) - int(b.Start) })
			end := uint32(0) // granules before it are held, or counted
			for _, r := range runs {
				total += uint64(max(r.Start, end)-end) * v.Proto.GranuleBytes
				end = max(end, r.End())
			}
			total += uint64(v.Granules-end) * v.Proto.GranuleBytes
		}
	}
	return total
}
