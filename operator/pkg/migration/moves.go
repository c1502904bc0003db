// Package migration turns two placements into moves, sources, rounds and cycles. Pure.
package migration

import (
	"errors"
	"fmt"

	"tangram.dev/operator/pkg/placement"
)

// ErrInput is wrapped by every error about what the caller gave.
var ErrInput = errors.New("migration: bad input")

// Nowhere is the source of a move whose expert no rank holds: the checkpoint has it.
const Nowhere int32 = -1

// Move is one expert of one layer that must arrive in a slot.
type Move struct {
	Layer, Expert int32
	To, Slot      int32   // rank, and its slot counted from the rank's first
	From          []int32 // ranks that hold it, in order; empty: only the checkpoint does
	Source        int32   // the one of them that sends it, once Sources chose; else Nowhere
	Round         int32   // when, once Rounds chose; moves from the checkpoint too
}

// Moves lists the (rank, expert) that the new placement holds and the old one lacks, by
// layer, rank and slot. gone [rank] marks ranks of the old placement that cannot send (they
// died); nil: none. A rank that leaves can send.
func Moves(old, now *placement.Placement, gone []bool) ([]Move, error) {
	if err := alike(old, now); err != nil {
		return nil, err
	}
	var out []Move
	holders := make([][]int32, now.Experts)
	for l := range now.Layers() {
		for e := range holders {
			holders[e] = nil // moves keep the slices
		}
		for g := range old.Ranks() {
			if g < len(gone) && gone[g] {
				continue
			}
			for _, e := range old.Rank(l, g) {
				if e == placement.Empty {
					continue
				}
				if n := len(holders[e]); n == 0 || holders[e][n-1] != int32(g) {
					holders[e] = append(holders[e], int32(g))
				}
			}
		}
		for g := range now.Ranks() {
			for i, e := range now.Rank(l, g) {
				if e == placement.Empty || holds(old, l, g, e) && (g >= len(gone) || !gone[g]) {
					continue
				}
				out = append(out, Move{Layer: int32(l), Expert: e, To: int32(g), Slot: int32(i), From: holders[e], Source: Nowhere})
			}
		}
	}
	return out, nil
}

func holds(p *placement.Placement, l, g int, e int32) bool {
	if g >= p.Ranks() {
		return false
	}
	for _, x := range p.Rank(l, g) {
		if x == e {
			return true
		}
	}
	return false
}

func alike(old, now *placement.Placement) error {
	for _, p := range []*placement.Placement{old, now} {
		if p == nil {
			return fmt.Errorf("%w: a placement is missing", ErrInput)
		}
		if err := p.Valid(); err != nil {
			return err
		}
	}
	if old.Experts != now.Experts || old.Layers() != now.Layers() {
		return fmt.Errorf("%w: the old placement has %d layers of %d experts, the new one %d of %d",
			ErrInput, old.Layers(), old.Experts, now.Layers(), now.Experts)
	}
	return nil
}

// Degree is the most moves that one rank sends or receives: no schedule has fewer rounds.
func Degree(moves []Move) int {
	in, out, most := map[int32]int{}, map[int32]int{}, 0
	for _, m := range moves {
		in[m.To]++
		most = max(most, in[m.To])
		if m.Source != Nowhere {
			out[m.Source]++
			most = max(most, out[m.Source])
		}
	}
	return most
}
