// Package geometry turns a model's shape into the numbers that layouts are made
// of: granules, expert pitch, bank pitch, pages. Go twin of agent/layout/geometry.h;
// the rules are docs/architecture.md, section 8. Pure: no I/O, no clock.
package geometry

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

const (
	// PieceAlignment is the alignment of every Tensor piece and every dense tensor, in bytes.
	PieceAlignment = 256
	// SpareSlots is the number of slots of a bank beyond one per expert.
	SpareSlots = 32
	// DenseParts is the number of parts in which the dense weights are fetched.
	DenseParts = 16
)

// Run is a range of consecutive granules of one expert.
type Run struct{ Start, Count uint32 }

// End is the first granule after the run.
func (r Run) End() uint32 { return r.Start + r.Count }

// Overlap returns the common part of r and o; Count 0 if there is none.
func (r Run) Overlap(o Run) Run {
	start, end := max(r.Start, o.Start), min(r.End(), o.End())
	if end <= start {
		return Run{}
	}
	return Run{start, end - start}
}

// ShardOf is the shard rule: the granules of an expert that position `position` of a group of `group` ranks holds.
// Sizes differ by at most one. The longer runs rotate with the expert, so no rank gets the extra granule of every
// expert.
func ShardOf(granules, group, expert, position uint32) Run {
	base, extra, shift := granules/group, granules%group, expert%group
	run := Run{Start: position * base, Count: base}
	if (position+group-shift)%group < extra {
		run.Count++
	}
	// The number of longer runs before the position: at positions from the shift on, and at positions that wrap around.
	if position > shift {
		run.Start += min(position-shift, extra)
	}
	if wrapped := group - shift; extra > wrapped {
		run.Start += min(min(position, shift), extra-wrapped)
	}
	return run
}

// RoundUp rounds value up to a multiple of unit.
func RoundUp(value, unit uint64) uint64 { return (value + unit - 1) / unit * unit }

// View is a checked geometry with derived numbers. Immutable.
type View struct {
	Proto       *tangramv1.Geometry // read only
	Granules    uint32              // per expert
	ExpertBytes uint64              // of a whole expert, tail included
	ExpertPitch uint64              // from slot to slot in a bank of whole experts
	BankPitch   uint64              // from bank to bank
	DensePages  uint64
	Fingerprint []byte // SHA-256 of the deterministic wire form

	ordinals []int32
}

// most is far above any real model. It keeps products below 2^63 and loops short.
const most = 1 << 20

// New checks a geometry. The error names the field and its value.
func New(g *tangramv1.Geometry) (*View, error) {
	if g == nil {
		return nil, fmt.Errorf("geometry: missing")
	}
	bad := func(format string, args ...any) (*View, error) {
		return nil, fmt.Errorf("geometry: "+format, args...)
	}
	if g.Layers == 0 || g.Layers > 4096 {
		return bad("layers = %d, must be 1..4096", g.Layers)
	}
	last := int64(-1)
	for _, layer := range g.MoeLayers {
		if layer >= g.Layers || int64(layer) <= last {
			return bad("moe_layers must ascend below layers = %d, found %d", g.Layers, layer)
		}
		last = int64(layer)
	}
	switch {
	case g.Hidden == 0 || g.Hidden > most:
		return bad("hidden = %d", g.Hidden)
	case g.MoeInner == 0 || g.MoeInner > most:
		return bad("moe_inner = %d", g.MoeInner)
	case g.Experts == 0 || g.Experts > 65536:
		return bad("experts = %d", g.Experts)
	case g.GranuleRows == 0 || g.MoeInner%g.GranuleRows != 0:
		return bad("granule_rows = %d does not divide moe_inner = %d", g.GranuleRows, g.MoeInner)
	case g.GranuleBytes == 0 || g.GranuleBytes > 1<<40 || g.ExpertTailBytes > 1<<40:
		return bad("granule_bytes = %d, expert_tail_bytes = %d", g.GranuleBytes, g.ExpertTailBytes)
	case g.QueryHeads == 0 || g.KvHeads == 0 || g.QueryHeads%g.KvHeads != 0:
		return bad("%d query heads are not a multiple of %d KV heads", g.QueryHeads, g.KvHeads)
	case g.PageBytes < 256 || g.PageBytes&(g.PageBytes-1) != 0:
		return bad("page_bytes = %d is no power of two of at least 256", g.PageBytes)
	}
	if err := checkSections(g); err != nil {
		return nil, err
	}
	v := &View{Proto: g, Granules: g.MoeInner / g.GranuleRows}
	v.ordinals = make([]int32, g.Layers)
	for i := range v.ordinals {
		v.ordinals[i] = -1
	}
	for i, layer := range g.MoeLayers {
		v.ordinals[layer] = int32(i)
	}
	v.ExpertBytes = v.PieceBytes(v.Granules)
	v.ExpertPitch = RoundUp(v.ExpertBytes, g.PageBytes)
	// Whole pages let an expert change place by remapping, if they waste at most 3 %.
	if (v.ExpertPitch-v.ExpertBytes)*100 > v.ExpertBytes*3 {
		v.ExpertPitch = RoundUp(v.ExpertBytes, PieceAlignment)
	}
	v.BankPitch = RoundUp(uint64(g.Experts+SpareSlots)*v.ExpertPitch, g.PageBytes)
	v.DensePages = RoundUp(g.DenseBytes, g.PageBytes) / g.PageBytes
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
	if err != nil {
		return nil, fmt.Errorf("geometry: marshal: %w", err)
	}
	sum := sha256.Sum256(wire)
	v.Fingerprint = sum[:]
	return v, nil
}

// checkSections: sections of a row-major slab add up to a granule; other slab formats have none.
func checkSections(g *tangramv1.Geometry) error {
	if g.SlabFormat != tangramv1.SlabFormat_SLAB_FORMAT_ROW_MAJOR {
		if len(g.Sections) > 0 {
			return fmt.Errorf("geometry: %d sections, and slab_format is not row-major", len(g.Sections))
		}
		return nil
	}
	left := g.GranuleBytes
	for i, section := range g.Sections {
		if section.Lines == 0 || section.Bytes == 0 || section.Bytes > left/section.Lines {
			return fmt.Errorf("geometry: section %d of %d lines of %d bytes, %d of granule_bytes = %d are left for it", i, section.Lines, section.Bytes,
				left, g.GranuleBytes)
		}
		left -= section.Lines * section.Bytes
	}
	if left > 0 {
		return fmt.Errorf("geometry: sections leave %d bytes of granule_bytes = %d", left, g.GranuleBytes)
	}
	return nil
}

// PieceBytes returns the size of a piece of `count` granules, tail included.
func (v *View) PieceBytes(count uint32) uint64 {
	return uint64(count)*v.Proto.GranuleBytes + v.Proto.ExpertTailBytes
}

// MoELayers returns the number of layers with routed experts.
func (v *View) MoELayers() int { return len(v.Proto.MoeLayers) }

// Ordinal returns the MoE ordinal of a model layer, or -1.
func (v *View) Ordinal(layer uint32) int {
	if layer >= uint32(len(v.ordinals)) {
		return -1
	}
	return int(v.ordinals[layer])
}

// KVHeads returns the KV heads [first, last) that query heads [from, to) read.
func (v *View) KVHeads(from, to uint32) (first, last uint32) {
	perKV := v.Proto.QueryHeads / v.Proto.KvHeads
	return from / perKV, (to + perKV - 1) / perKV
}
