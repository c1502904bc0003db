package planner

import (
	"fmt"

	"tangram.dev/operator/pkg/layout"
)

// checkKV rejects a shape whose KV does not fit. Requests keep no home, so the reserved blocks count as evenly
// distributed over the target's ranks, each of which is the home of its share. In a layer with t > 1, every rank of the
// home's group holds the pages of the KV heads that its query heads read, replicated ones too.
func (w *world) checkKV(shapes []layout.LayerShape) error {
	var blocks, block uint64
	for _, m := range w.info {
		if m.KV.BlockTokens == 0 || m.KV.Pages == 0 {
			continue
		}
		if block != 0 && block != uint64(m.KV.BlockTokens) {
			return fmt.Errorf("plan: engines disagree on tokens in a KV block: %d and %d", block, m.KV.BlockTokens)
		}
		block = uint64(m.KV.BlockTokens)
		blocks += (m.KV.ReservedTokens + block - 1) / block
	}
	for i, rank := range w.target {
		kv := w.info[rank].KV
		if kv.Pages == 0 {
			continue
		}
		perShare := uint64(0) // head pages on this rank if every rank is the home of one block
		for _, s := range shapes {
			bounds, err := layout.HeadBounds(w.v, s.AttentionGroup)
			if err != nil {
				return err
			}
			p := i % int(s.AttentionGroup)
			first, last := w.v.KVHeads(bounds[p], bounds[p+1])
			perShare += uint64(last-first) * uint64(s.AttentionGroup)
		}
		need := (perShare*blocks + uint64(len(w.target)) - 1) / uint64(len(w.target))
		if need > kv.Pages {
			return fmt.Errorf("plan: KV: %d blocks of %d tokens are reserved; in the target shape rank %d (%s) needs %d head pages "+
				"for its share and has %d: wait for requests to end, use more ranks, or a shape that replicates fewer KV heads",
				blocks, block, i, w.members[rank].Id, need, kv.Pages)
		}
	}
	return nil
}
