// Package migration computes moves, sources, rounds and cycles between two placements. Pure.
package migration

import (
	"errors"
	"fmt"

	"tangram.dev/operator/pkg/placement"
)

// ErrInput is wrapped by every error about invalid input.
var ErrInput = errors.New("migration: bad input")

// Nowhere is the source of a move whose expert no rank holds: it comes from the checkpoint.
const Nowhere int32 = -1

// Move is the move of one expert of one layer to a slot.
type Move struct {
	Layer, Expert int32
	To, Slot      int32   // rank, and its slot counted from the rank's first
	From          []int32 // ranks that hold it, in order; empty: only the checkpoint has it
	Source        int32   // the sender among From, set by Sources; otherwise Nowhere
	Round         int32   // set by Rounds, also for moves from the checkpoint
}

// Moves lists the (rank, expert) pairs that the new placement holds and the old one lacks, by layer, rank and slot.
// gone [rank] marks ranks of the old placement that died and cannot send; nil: none. A leaving rank can send.
func Moves(old, now *placement.Placement, gone []bool) ([]Move, error) {
	if err := alike(old, now); err != nil {
		return nil, err
	}
	var out []Move
	holders := make([][]int32, now.Experts)
	for l := range now.Layers() {
		for e := range holders {
			holders[e] = nil // moves retain the old slices
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

// Degree returns the maximum number of moves that one rank sends or receives: a lower bound on the rounds.
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
