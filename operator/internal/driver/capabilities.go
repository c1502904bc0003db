package driver

import (
	"fmt"
	"maps"
	"slices"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// differs says in which setting that both tell of two engines of a world differ: what an engine does not declare is not known of it. The size
// of blocks is one, as KV is carried between ranks in whole blocks. Empty: in none.
func differs(one, other *tangramv1.EngineStatus) (name, has, against string) {
	if one.GetKvBlockTokens() != other.GetKvBlockTokens() {
		return "kv_block_tokens", fmt.Sprint(one.GetKvBlockTokens()), fmt.Sprint(other.GetKvBlockTokens())
	}
	for _, name := range slices.Sorted(maps.Keys(one.GetSettings())) {
		if value, told := other.GetSettings()[name]; told && value != one.GetSettings()[name] {
			return name, one.GetSettings()[name], value
		}
	}
	return "", "", ""
}

// alike says which engine of a transition has other settings than the rest. Members of the layout in force come first: the world is
// right, and who joins is not.
func (t *truth) alike(target []string) error {
	all := idsOf(t.layout)
	for _, id := range target {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	place := func(id string) string {
		if rank := slices.Index(idsOf(t.layout), id); rank >= 0 {
			return fmt.Sprintf("rank %d, member %s", rank, id)
		}
		return fmt.Sprintf("member %s, the future rank %d", id, slices.Index(target, id))
	}
	// One that leaves may have no engine any more.
	all = slices.DeleteFunc(all, func(id string) bool { return !t.ranks[id].status.GetEngine().GetAttached() })
	for _, id := range all {
		if name, has, world := differs(t.ranks[id].status.GetEngine(), t.ranks[all[0]].status.GetEngine()); name != "" {
			return fmt.Errorf("%s is %s at the engine of %s, but %s at the engine of %s; ranks of a world compute together and exchange KV, so start "+
				"both engines with the same value", name, has, place(id), world, place(all[0]))
		}
	}
	return nil
}

// unlike says in what an engine that was started anew, in a layout that is in force, differs from those that were not, if it does. Where all
// were, the first counts.
func (t *truth) unlike(id string) string {
	engine := t.ranks[id].status.GetEngine()
	if !engine.GetAttached() || !engine.GetAttachedAfterFlip() {
		return ""
	}
	world, from := engine, id
	for _, fresh := range []bool{true, false} { // the last word has who was there before
		for _, other := range slices.Backward(union(idsOf(t.layout), idsOf(t.older))) {
			if e := t.ranks[other].status.GetEngine(); e.GetAttached() && e.GetAttachedAfterFlip() == fresh {
				world, from = e, other
			}
		}
	}
	if name, has, against := differs(engine, world); name != "" {
		return fmt.Sprintf("the engine was restarted with %s %s, but member %s has %s; start the engine with the same value", name, has, from, against)
	}
	return ""
}

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
				return shape, fmt.Errorf("layer %d: %d ranks should share the heads of a request, but the engine of member %s keeps them on "+
					"one rank; remove the attention group or set it to 1", l, n, id)
			}
		}
	}
	return shape, nil
}
