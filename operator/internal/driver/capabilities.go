package driver

import (
	"fmt"
	"maps"
	"slices"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// differs returns a setting in which two engines of a world differ. Settings that one of them does not declare do not
// count. The block size counts, because KV is migrated in whole blocks. It returns an empty name if no setting differs.
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

// alike rejects an engine of a transition whose settings differ from the others'. Members of the active layout come
// first, so the joiner is blamed, not the world.
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
	// A leaver may have no engine.
	all = slices.DeleteFunc(all, func(id string) bool { return !t.ranks[id].status.GetEngine().GetAttached() })
	for _, id := range all {
		if name, has, world := differs(t.ranks[id].status.GetEngine(), t.ranks[all[0]].status.GetEngine()); name != "" {
			return fmt.Errorf("%s is %s at the engine of %s, but %s at the engine of %s; ranks of a world compute together and exchange KV, so start "+
				"both engines with the same value", name, has, place(id), world, place(all[0]))
		}
	}
	return nil
}

// unlike says in which setting a restarted engine of an active layout differs from engines that were not restarted. If
// all were restarted, the first one counts.
func (t *truth) unlike(id string) string {
	engine := t.ranks[id].status.GetEngine()
	if !engine.GetAttached() || !engine.GetAttachedAfterFlip() {
		return ""
	}
	world, from := engine, id
	for _, fresh := range []bool{true, false} { // members that were not restarted take precedence
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

// suit returns a shape that all engines of a transition support, or names an engine that does not and the remedy. The
// engines are those of target and of the active layout, because a world has layers of both on its way. Even shards are
// handled with the geometry (readModel), slab formats between an engine and its agent.
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
