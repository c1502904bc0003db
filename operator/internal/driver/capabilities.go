package driver

import (
	"fmt"
	"maps"
	"slices"

	"tangram.dev/operator/pkg/layout"
)

// suit makes of a wanted shape one that all engines of a transition compute, or says which of them does not and what to do. They are
// those of target and of the layout in force: on its way a world has layers of both. Even shards are a matter of the geometry
// (readModel), and formats of slabs one between an engine and its agent.
func (t *truth) suit(shape layout.Shape, target []string) (layout.Shape, error) {
	for _, id := range slices.Concat(target, idsOf(t.layout)) {
		if !t.ranks[id].status.GetEngine().GetAttentionDataOnly() {
			continue
		}
		shape.AttentionByData = true
		for _, l := range slices.Sorted(maps.Keys(shape.Layers)) {
			if n := shape.Layers[l].AttentionGroup; n > 1 {
				return shape, fmt.Errorf("layer %d: %d ranks are to share the heads of a request, and the engine of member %s keeps them on "+
					"one rank: leave the attention group out, or make it 1", l, n, id)
			}
		}
	}
	return shape, nil
}
