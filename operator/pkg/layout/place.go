package layout

import (
	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Piece is a piece and its address on one rank.
type Piece struct {
	Layer  uint32 // model layer
	Bank   uint32
	Slot   uint32
	Expert uint32
	Run    geometry.Run
	Offset uint64 // of its first byte in the bank
	Bytes  uint64 // granules and tail
}

// Pieces returns the pieces of a rank under a valid layout, ordered by layer, group, position, slot.
func Pieces(l *tangramv1.Layout, v *geometry.View, rank uint32) []Piece {
	var out []Piece
	for _, layer := range l.Layers {
		out = append(out, LayerPieces(layer, v, rank)...)
	}
	return out
}

// LayerPieces returns Pieces of one layer; at g > 1, those of every position of the rank.
func LayerPieces(layer *tangramv1.LayerLayout, v *geometry.View, rank uint32) []Piece {
	var out []Piece
	for _, group := range layer.Experts {
		for position, holder := range group.Ranks {
			if holder == rank {
				out = append(out, PositionPieces(layer, group, v, uint32(position))...)
			}
		}
	}
	return out
}

// PositionPieces returns the pieces of one position of a group of the layer, ordered by slot. They are the same for
// every rank at that position.
func PositionPieces(layer *tangramv1.LayerLayout, group *tangramv1.ExpertGroup, v *geometry.View, position uint32) []Piece {
	size, bank := uint32(len(group.Ranks)), Bank(layer, v)
	next := PositionBase(group, v, position) // of the next filled slot, if g > 1
	var out []Piece
	for slot, entry := range group.Slots {
		if entry == 0 {
			continue
		}
		p := Piece{Layer: layer.Layer, Bank: bank, Slot: uint32(slot), Expert: entry - 1}
		p.Run = geometry.ShardOf(v.Granules, size, p.Expert, position)
		p.Bytes = v.PieceBytes(p.Run.Count)
		if size == 1 {
			p.Offset = uint64(slot) * v.ExpertPitch
		} else {
			p.Offset = next
			next += geometry.RoundUp(p.Bytes, geometry.PieceAlignment)
		}
		out = append(out, p)
	}
	return out
}

// PositionBase returns the offset at which the shards of a position begin in the bank of a group of g > 1, for any rank
// at that position. They follow those of all positions before it, each in pages of its own. For position g it is the
// size of the whole group.
func PositionBase(group *tangramv1.ExpertGroup, v *geometry.View, position uint32) uint64 {
	size := uint32(len(group.Ranks))
	if size == 1 {
		return 0
	}
	filled, byShift := uint64(0), make([]uint64, size) // experts of the group, by expert modulo g
	for _, entry := range group.Slots {
		if entry != 0 {
			filled++
			byShift[(entry-1)%size]++
		}
	}
	piece := func(count uint32) uint64 { return geometry.RoundUp(v.PieceBytes(count), geometry.PieceAlignment) }
	short, extra := v.Granules/size, v.Granules%size
	// The longer runs of position p are those of experts with p, p - 1, ... p - extra + 1 modulo g.
	longer := uint64(0)
	for x := range extra {
		longer += byShift[(size-x)%size]
	}
	base := uint64(0)
	for p := range position {
		base += geometry.RoundUp(longer*piece(short+1)+(filled-longer)*piece(short), v.Proto.PageBytes)
		longer += byShift[(p+1)%size] - byShift[(p+1+size-extra)%size]
	}
	return base
}
