package layout

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// ApplyDelta returns base with the delta applied and the epoch set. It does not change base and shares unchanged layers
// with it. Layers in the delta are replaced whole and not renumbered. It does not validate the result.
func ApplyDelta(base *tangramv1.Layout, d *tangramv1.LayoutDelta, epoch uint64) (*tangramv1.Layout, error) {
	out := &tangramv1.Layout{
		World: base.World, Epoch: epoch, Revision: base.Revision, GeometryFingerprint: base.GeometryFingerprint,
		Members: base.Members, Layers: append([]*tangramv1.LayerLayout(nil), base.Layers...),
		Dense: base.Dense, Stages: base.Stages, Banks: base.Banks,
	}
	if len(d.GetRenumber()) != 0 {
		if len(d.Renumber) != len(base.Members) {
			return nil, fmt.Errorf("layout: renumber has %d entries for %d members", len(d.Renumber), len(base.Members))
		}
		replaced := make(map[uint32]bool, len(d.Layers)) // replaced whole; their old content does not matter
		for _, layer := range d.Layers {
			replaced[layer.GetLayer()] = true
		}
		for i, layer := range out.Layers {
			if replaced[uint32(i)] {
				continue
			}
			renumbered, err := renumber(layer, d.Renumber)
			if err != nil {
				return nil, fmt.Errorf("layout: layer %d: %w", i, err)
			}
			out.Layers[i] = renumbered
		}
	}
	if d.GetMembersChanged() {
		out.Members = d.Members
	}
	for _, layer := range d.GetLayers() {
		if layer.GetLayer() >= uint32(len(out.Layers)) {
			return nil, fmt.Errorf("layout: delta names layer %d of %d", layer.GetLayer(), len(out.Layers))
		}
		out.Layers[layer.Layer] = layer
	}
	if d.GetDense() != nil {
		out.Dense = d.Dense
	}
	if len(d.GetStages()) != 0 {
		out.Stages = d.Stages
	}
	if d.GetBanks() != 0 {
		out.Banks = d.Banks
	}
	return out, nil
}

// renumber returns the layer itself if none of its ranks changes its number.
func renumber(layer *tangramv1.LayerLayout, to []uint32) (*tangramv1.LayerLayout, error) {
	changed := false
	look := func(what string, ranks []uint32) error {
		for _, rank := range ranks {
			if rank >= uint32(len(to)) || to[rank] == 0 {
				return fmt.Errorf("leaving rank %d still %s", rank, what)
			}
			changed = changed || to[rank] != rank+1
		}
		return nil
	}
	for _, group := range layer.Experts {
		if err := look("owns experts", group.Ranks); err != nil {
			return nil, err
		}
	}
	for _, group := range layer.Attention {
		if err := look("has heads", group.Ranks); err != nil {
			return nil, err
		}
	}
	if !changed {
		return layer, nil
	}
	out := &tangramv1.LayerLayout{Layer: layer.Layer, BankOffset: layer.BankOffset,
		ExpertGroupSize: layer.ExpertGroupSize, AttentionGroupSize: layer.AttentionGroupSize}
	mapped := func(ranks []uint32) []uint32 {
		next := make([]uint32, len(ranks))
		for i, rank := range ranks {
			next[i] = to[rank] - 1
		}
		return next
	}
	for _, group := range layer.Experts {
		out.Experts = append(out.Experts, &tangramv1.ExpertGroup{Ranks: mapped(group.Ranks), Slots: group.Slots})
	}
	for _, group := range layer.Attention {
		out.Attention = append(out.Attention,
			&tangramv1.AttentionGroup{Ranks: mapped(group.Ranks), QueryHeadBounds: group.QueryHeadBounds})
	}
	return out, nil
}

// Diff returns a delta from a to b. Both are layouts of the same world, geometry and revision, whose ranks are the same
// members (no renumbering: members of a are a prefix of b's, or equal).
func Diff(a, b *tangramv1.Layout) (*tangramv1.LayoutDelta, error) {
	if len(a.Layers) != len(b.Layers) {
		return nil, fmt.Errorf("layout: diff of %d and %d layers", len(a.Layers), len(b.Layers))
	}
	if len(b.Members) < len(a.Members) {
		return nil, fmt.Errorf("layout: diff from %d to %d members needs a renumbering", len(a.Members), len(b.Members))
	}
	for i, m := range a.Members {
		if m.Id != b.Members[i].Id {
			return nil, fmt.Errorf("layout: rank %d is %s and %s", i, m.Id, b.Members[i].Id)
		}
	}
	d := &tangramv1.LayoutDelta{}
	if len(a.Members) != len(b.Members) {
		d.MembersChanged, d.Members = true, b.Members
	}
	for i := range a.Layers {
		if a.Layers[i] != b.Layers[i] && !proto.Equal(a.Layers[i], b.Layers[i]) {
			d.Layers = append(d.Layers, b.Layers[i])
		}
	}
	if !proto.Equal(a.Dense, b.Dense) {
		d.Dense = b.Dense
	}
	if !slices.EqualFunc(a.Stages, b.Stages, func(x, y *tangramv1.PipelineStage) bool { return proto.Equal(x, y) }) {
		d.Stages = b.Stages
	}
	if a.Banks != b.Banks {
		d.Banks = b.Banks
	}
	return d, nil
}
