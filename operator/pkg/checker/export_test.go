package checker

import (
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// PiecesOf is the checker's own address rule, in the format of pkg/layout.
func PiecesOf(l *tangramv1.Layout, v *geometry.View, rank uint32) []layout.Piece {
	p := &player{Case: Case{Geometry: v}}
	var out []layout.Piece
	for _, q := range p.pieces(l, rank) {
		out = append(out, layout.Piece{Layer: q.layer, Bank: q.bank, Slot: q.slot, Expert: q.expert, Offset: q.offset,
			Run: geometry.Run{Start: q.start, Count: q.count}, Bytes: v.PieceBytes(q.count)})
	}
	return out
}
