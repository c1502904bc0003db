// Package layout has the rules of tangramv1.Layout: validity, deltas, hashes, and the address of each piece of a rank.
// Go twin of agent/layout/layout.h; tests/golden checks that both agree. Pure: no I/O, no clock.
package layout

import (
	"bytes"
	"fmt"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// maxSpareBanks limits the memory that a received layout can make a reader allocate.
const maxSpareBanks = 4096

// Validate rejects a layout that does not give every expert a complete set of owners, every layer its heads, and every
// MoE layer its own bank. Safe for messages off the wire. The error names layer, group and numbers.
func Validate(l *tangramv1.Layout, v *geometry.View) error {
	if len(l.GetMembers()) == 0 {
		return fmt.Errorf("layout: no members")
	}
	if !bytes.Equal(l.GeometryFingerprint, v.Fingerprint) {
		return fmt.Errorf("layout: made for geometry %.16x, this is %.16x", l.GeometryFingerprint, v.Fingerprint)
	}
	ids := make(map[string]bool, len(l.Members))
	for rank, m := range l.Members {
		if m.GetId() == "" || ids[m.GetId()] {
			return fmt.Errorf("layout: rank %d: member id %q is empty or listed twice", rank, m.GetId())
		}
		ids[m.Id] = true
	}
	if moe := uint32(v.MoELayers()); l.Banks < moe || l.Banks > moe+maxSpareBanks {
		return fmt.Errorf("layout: %d banks for %d MoE layers", l.Banks, moe)
	}
	if uint32(len(l.Layers)) != v.Proto.Layers {
		return fmt.Errorf("layout: %d layers, the geometry has %d", len(l.Layers), v.Proto.Layers)
	}
	check := checker{v: v, members: len(l.Members), placed: make([]int, len(l.Members)),
		owned: make([]bool, v.Proto.Experts), here: make([]bool, v.Proto.Experts)}
	user := make([]int, l.Banks)
	for i, layer := range l.Layers {
		if layer.GetLayer() != uint32(i) || layer == nil {
			return fmt.Errorf("layout: entry %d is for layer %d", i, layer.GetLayer())
		}
		if err := check.layer(layer); err != nil {
			return fmt.Errorf("layout: layer %d: %w", i, err)
		}
		o := v.Ordinal(layer.Layer)
		if o < 0 {
			continue
		}
		bank := int64(o) + int64(layer.BankOffset)
		if bank < 0 || bank >= int64(l.Banks) {
			return fmt.Errorf("layout: layer %d: bank %d of %d", i, bank, l.Banks)
		}
		if user[bank] != 0 {
			return fmt.Errorf("layout: layers %d and %d share bank %d", user[bank]-1, i, bank)
		}
		user[bank] = i + 1
	}
	last := int64(-1)
	for _, rank := range l.Dense.GetRanks() {
		if int64(rank) >= int64(len(l.Members)) || int64(rank) <= last {
			return fmt.Errorf("layout: dense ranks must ascend below %d, found %d", len(l.Members), rank)
		}
		last = int64(rank)
	}
	if len(l.Dense.GetRanks()) == 0 {
		return fmt.Errorf("layout: no rank has the dense weights")
	}
	return nil
}

// checker reuses its arrays from layer to layer.
type checker struct {
	v       *geometry.View
	members int
	placed  []int  // by rank: its group of the layer, + 1
	owned   []bool // by expert
	here    []bool // by expert, within one group
}

func (c *checker) layer(layer *tangramv1.LayerLayout) error {
	if c.v.Ordinal(layer.Layer) >= 0 {
		if err := c.experts(layer); err != nil {
			return err
		}
	} else if len(layer.Experts) != 0 {
		return fmt.Errorf("it has expert groups, but no experts in this model")
	}
	return c.attention(layer)
}

// place records the ranks of one group of a layer. `repeats`: a rank may have several of its positions.
func (c *checker) place(ranks []uint32, size uint32, group int, repeats bool) error {
	if len(ranks) == 0 || uint32(len(ranks)) != size {
		return fmt.Errorf("%d ranks, but the group size of the layer is %d", len(ranks), size)
	}
	for _, rank := range ranks {
		if int64(rank) >= int64(c.members) {
			return fmt.Errorf("rank %d of %d", rank, c.members)
		}
		switch before := c.placed[rank] - 1; {
		case before >= 0 && before != group:
			return fmt.Errorf("rank %d is in two groups of the layer", rank)
		case before == group && !repeats:
			return fmt.Errorf("rank %d is listed twice", rank)
		}
		c.placed[rank] = group + 1
	}
	return nil
}

func (c *checker) experts(layer *tangramv1.LayerLayout) error {
	clear(c.placed)
	clear(c.owned)
	experts := c.v.Proto.Experts
	for i, group := range layer.Experts {
		size := uint32(len(group.GetRanks()))
		if err := c.place(group.GetRanks(), layer.ExpertGroupSize, i, true); err != nil {
			return fmt.Errorf("expert group %d: %w", i, err)
		}
		if size > c.v.Granules {
			return fmt.Errorf("expert group %d: %d ranks share an expert of %d granules; at most %d can", i, size,
				c.v.Granules, c.v.Granules)
		}
		if c.v.Proto.EvenShardsOnly && c.v.Granules%size != 0 {
			return fmt.Errorf("expert group %d: the engine takes even shards only and %d granules do not divide by %d ranks",
				i, c.v.Granules, size)
		}
		if uint32(len(group.Slots)) > experts+geometry.SpareSlots {
			return fmt.Errorf("expert group %d: %d slots, a bank has %d", i, len(group.Slots), experts+geometry.SpareSlots)
		}
		clear(c.here)
		for _, slot := range group.Slots {
			if slot == 0 {
				continue
			}
			if slot > experts {
				return fmt.Errorf("expert group %d: expert %d of %d", i, slot-1, experts)
			}
			if c.here[slot-1] {
				return fmt.Errorf("expert group %d: expert %d twice", i, slot-1)
			}
			c.here[slot-1], c.owned[slot-1] = true, true
		}
		if end := PositionBase(group, c.v, size); end > c.v.BankPitch {
			return fmt.Errorf("expert group %d: the shards of %d positions need %d bytes of a bank of %d", i, size, end, c.v.BankPitch)
		}
	}
	for e, ok := range c.owned {
		if !ok {
			return fmt.Errorf("expert %d has no owner", e)
		}
	}
	return nil
}

func (c *checker) attention(layer *tangramv1.LayerLayout) error {
	if len(layer.Attention) == 0 {
		return fmt.Errorf("no attention group")
	}
	clear(c.placed)
	heads := c.v.Proto.QueryHeads
	for i, group := range layer.Attention {
		if err := c.place(group.GetRanks(), layer.AttentionGroupSize, i, false); err != nil {
			return fmt.Errorf("attention group %d: %w", i, err)
		}
		b := group.QueryHeadBounds
		if len(b) != len(group.Ranks)+1 || b[0] != 0 || b[len(b)-1] != heads {
			return fmt.Errorf("attention group %d: query_head_bounds must be %d numbers from 0 to %d", i,
				len(group.Ranks)+1, heads)
		}
		for p := range group.Ranks {
			if b[p] >= b[p+1] {
				return fmt.Errorf("attention group %d: position %d has no query head (%d ranks for %d query heads)", i, p,
					len(group.Ranks), heads)
			}
		}
	}
	return nil
}
