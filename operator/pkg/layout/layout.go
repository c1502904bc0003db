package layout

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/geometry"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Hash is the layout's content hash: SHA-256 of the deterministic wire form.
func Hash(l *tangramv1.Layout) ([]byte, error) {
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("layout: marshal: %w", err)
	}
	sum := sha256.Sum256(wire)
	return sum[:], nil
}

// Bank returns the bank of a MoE layer of a valid layout.
func Bank(layer *tangramv1.LayerLayout, v *geometry.View) uint32 {
	return uint32(int64(v.Ordinal(layer.Layer)) + int64(layer.BankOffset))
}

// RankOf returns the rank of a member, or -1.
func RankOf(l *tangramv1.Layout, member string) int {
	return slices.IndexFunc(l.GetMembers(), func(m *tangramv1.Member) bool { return m.Id == member })
}

// Pages returns the number of distinct pages that the pieces touch, over all banks.
func Pages(pieces []Piece, v *geometry.View) uint64 {
	sorted := slices.Clone(pieces)
	slices.SortFunc(sorted, func(a, b Piece) int {
		if a.Bank != b.Bank {
			return int(a.Bank) - int(b.Bank)
		}
		if a.Offset < b.Offset {
			return -1
		}
		return 1
	})
	var pages uint64
	bank, next := int64(-1), uint64(0) // next: first page of the bank not counted yet
	for _, p := range sorted {
		if int64(p.Bank) != bank {
			bank, next = int64(p.Bank), 0
		}
		first, end := p.Offset/v.Proto.PageBytes, (p.Offset+p.Bytes-1)/v.Proto.PageBytes+1
		if first = max(first, next); end > first {
			pages += end - first
			next = end
		}
	}
	return pages
}

// HoldsDense reports whether the rank holds the dense weights.
func HoldsDense(l *tangramv1.Layout, rank uint32) bool {
	return slices.Contains(l.Dense.GetRanks(), rank)
}

// SteadyBytes returns the memory for a rank's pieces and dense weights, in whole pages.
func SteadyBytes(l *tangramv1.Layout, v *geometry.View, rank uint32) uint64 {
	pages := Pages(Pieces(l, v, rank), v)
	if HoldsDense(l, rank) {
		pages += v.DensePages
	}
	return pages * v.Proto.PageBytes
}

// KVHeadsOf returns the KV heads [first, last) that position p of the group holds.
func KVHeadsOf(g *tangramv1.AttentionGroup, p int, v *geometry.View) (first, last uint32) {
	return v.KVHeads(g.QueryHeadBounds[p], g.QueryHeadBounds[p+1])
}

// InventoryOf returns the inventory of a rank that holds exactly its pieces of a valid layout.
func InventoryOf(l *tangramv1.Layout, v *geometry.View, rank uint32) *tangramv1.Inventory {
	out := &tangramv1.Inventory{Dense: HoldsDense(l, rank), Revision: l.Revision}
	for _, p := range Pieces(l, v, rank) {
		out.Layer = append(out.Layer, p.Layer)
		out.Bank = append(out.Bank, p.Bank)
		out.Slot = append(out.Slot, p.Slot)
		out.Expert = append(out.Expert, p.Expert)
		out.GranuleStart = append(out.GranuleStart, p.Run.Start)
		out.GranuleCount = append(out.GranuleCount, p.Run.Count)
	}
	return out
}
