package layout

import (
	"cmp"
	"fmt"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Mode is the parallelism mode that users set for a whole world.
type Mode int

const (
	// Expert spreads whole experts over ranks; a request's KV is on one rank (g = 1, t = 1).
	Expert Mode = iota + 1
	// Tensor gives every rank a shard of every expert and of the heads (g = P, t = P). Engines that keep all heads of a
	// request on one rank split only the experts (Shape.AttentionByData).
	Tensor
	// Hybrid follows Shape.Layers; a layer that it does not name is as in Expert.
	Hybrid
)

func (m Mode) String() string {
	switch m {
	case Expert:
		return "ExpertParallel"
	case Tensor:
		return "TensorParallel"
	case Hybrid:
		return "Hybrid"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// ParseMode reads "ExpertParallel", "TensorParallel" or "Hybrid".
func ParseMode(s string) (Mode, error) {
	for _, m := range []Mode{Expert, Tensor, Hybrid} {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("unknown mode %q: use ExpertParallel, TensorParallel or Hybrid", s)
}

// LayerShape is the sharding of one layer: g ranks share an expert, t ranks share a request's heads. Both divide the
// number of ranks; groups are consecutive ranks. 0: as the mode says.
type LayerShape struct{ ExpertGroup, AttentionGroup uint32 }

// Shape is the desired sharding of a world.
type Shape struct {
	Mode   Mode
	Layers map[uint32]LayerShape // by model layer; layers not named follow Mode
	// AttentionByData: layers that follow Mode keep a request's heads on one rank (t = 1), also in TensorParallel.
	AttentionByData bool
	// Placement of whole experts, in layers of g = 1: [MoE ordinal][rank] experts, ascending, each at most once on a
	// rank and on at least one rank. nil, or a nil layer: one copy of each, assigned so that the fewest bytes move.
	Placement [][][]uint32
}

// Shares reports whether ranks share experts (hold shards of them) in some layer, in a world of more than one rank.
func (s Shape) Shares() bool {
	if s.Mode == Tensor {
		return true
	}
	for _, l := range s.Layers {
		if l.ExpertGroup > 1 {
			return true
		}
	}
	return false
}

// Resolve returns the shape of every model layer on `ranks` ranks. The error names the number that does not fit and
// values that do.
func (s Shape) Resolve(v *geometry.View, ranks uint32) ([]LayerShape, error) {
	if ranks == 0 {
		return nil, fmt.Errorf("shape: 0 ranks; a world needs at least 1 rank")
	}
	var whole LayerShape
	switch s.Mode {
	case Expert, Hybrid:
		whole = LayerShape{1, 1}
	case Tensor:
		whole = LayerShape{ranks, ranks}
		if s.AttentionByData {
			whole.AttentionGroup = 1
		}
	default:
		return nil, fmt.Errorf("shape: %v is neither ExpertParallel nor TensorParallel nor Hybrid", s.Mode)
	}
	for layer := range s.Layers {
		if layer >= v.Proto.Layers {
			return nil, fmt.Errorf("shape: layer %d of %d", layer, v.Proto.Layers)
		}
	}
	if s.Placement != nil && len(s.Placement) != v.MoELayers() {
		return nil, &BadPlacement{fmt.Sprintf("a placement of %d layers for a model with %d layers of experts", len(s.Placement), v.MoELayers())}
	}
	out := make([]LayerShape, v.Proto.Layers)
	for l := range out {
		own := s.Layers[uint32(l)]
		out[l] = LayerShape{cmp.Or(own.ExpertGroup, whole.ExpertGroup), cmp.Or(own.AttentionGroup, whole.AttentionGroup)}
		if v.Ordinal(uint32(l)) < 0 {
			out[l].ExpertGroup = 0
		}
		placed := s.PlacementOf(v.Ordinal(uint32(l)))
		if err := out[l].check(v, uint32(l), ranks, placed != nil); err != nil {
			return nil, err
		}
		if err := out[l].checkPlacement(v, uint32(l), ranks, placed); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// check validates the shape of a layer. It has no zeros, except the expert group of a layer without experts.
func (s LayerShape) check(v *geometry.View, layer, ranks uint32, placed bool) error {
	g, t := s.ExpertGroup, s.AttentionGroup
	if v.Ordinal(layer) >= 0 {
		if ranks%g != 0 {
			return fmt.Errorf("shape: layer %d: expert groups of %d do not divide %d ranks", layer, g, ranks)
		}
		if g > v.Granules {
			return fmt.Errorf("shape: layer %d: %d ranks share an expert of %d granules of %d rows; at most %d can: %s", layer, g,
				v.Granules, v.Proto.GranuleRows, v.Granules, wayOut(v, g))
		}
		if groups := ranks / g; groups > v.Proto.Experts && !placed {
			return fmt.Errorf("shape: layer %d: %d expert groups of %d ranks for %d experts; at most %d ranks can share them",
				layer, groups, g, v.Proto.Experts, v.Proto.Experts*g)
		}
		if v.Proto.EvenShardsOnly && v.Granules%g != 0 {
			return fmt.Errorf("shape: layer %d: the engine takes even shards only and %d granules do not divide by %d ranks; "+
				"possible group sizes: %v", layer, v.Granules, g, Divisors(v.Granules))
		}
	}
	if g > 1 && g == ranks {
		whole := &tangramv1.ExpertGroup{Ranks: make([]uint32, g), Slots: make([]uint32, v.Proto.Experts)}
		for e := range whole.Slots {
			whole.Slots[e] = uint32(e) + 1
		}
		if bytes := PositionBase(whole, v, g); bytes > v.BankPitch {
			return fmt.Errorf("shape: layer %d: the shards of %d ranks, each in pages of its own, need %d bytes of a bank of %d: use fewer "+
				"ranks to a group", layer, g, bytes, v.BankPitch)
		}
	}
	if ranks%t != 0 {
		return fmt.Errorf("shape: layer %d: attention groups of %d do not divide %d ranks", layer, t, ranks)
	}
	if _, err := HeadBounds(v, t); err != nil {
		return fmt.Errorf("shape: layer %d: %w", layer, err)
	}
	return nil
}

// wayOut suggests a remedy if a group has more ranks than an expert has granules.
func wayOut(v *geometry.View, ranks uint32) string {
	block := geometry.BlockRows(v.Proto.Dtype)
	rows := geometry.RowsFor(v.Proto.MoeInner, block, ranks, v.Proto.GranuleRows)
	if rows == 0 {
		return fmt.Sprintf("use smaller groups, as %d rows in blocks of %d give no more", v.Proto.MoeInner, block)
	}
	return fmt.Sprintf("set granuleRows to %d or less (spec.model.granuleRows, --granule-rows), or use smaller groups", rows)
}

// Divisors returns the divisors of n, ascending.
func Divisors(n uint32) []uint32 {
	var out []uint32
	for d := uint32(1); d <= n; d++ {
		if n%d == 0 {
			out = append(out, d)
		}
	}
	return out
}

// HeadBounds splits the query heads over t ranks: position p computes [b[p], b[p+1]). With at least as many ranks as KV
// heads, ranks are distributed evenly over KV heads, and each KV head's query heads over its ranks, so that a rank
// reads one KV head. Otherwise the split is contiguous and even.
func HeadBounds(v *geometry.View, t uint32) ([]uint32, error) {
	heads, kv := v.Proto.QueryHeads, v.Proto.KvHeads
	if t == 0 {
		return nil, fmt.Errorf("attention group size 0")
	}
	if t > heads {
		return nil, fmt.Errorf("%d ranks share %d query heads; at most %d can", t, heads, heads)
	}
	bounds := []uint32{0}
	if t < kv {
		for p := uint32(1); p <= t; p++ {
			bounds = append(bounds, uint32(uint64(heads)*uint64(p)/uint64(t)))
		}
		return bounds, nil
	}
	perKV := heads / kv
	for h := range kv {
		// KV head h gets ranks [t*h/kv, t*(h+1)/kv): at most ceil(t/kv) <= perKV.
		n := uint32(uint64(t)*uint64(h+1)/uint64(kv)) - uint32(uint64(t)*uint64(h)/uint64(kv))
		for i := uint32(1); i <= n; i++ {
			bounds = append(bounds, h*perKV+uint32(uint64(perKV)*uint64(i)/uint64(n)))
		}
	}
	return bounds, nil
}
