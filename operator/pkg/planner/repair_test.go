package planner_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/bound"
	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// broken is a world after a fence.
type broken struct {
	*world
	dead map[string]bool
}

// repair plans, checks, compares with the bound, and moves the world there.
func (b *broken) repair() (*planner.Result, error) {
	c := checker.Case{Geometry: b.v, Revision: "r1", Before: b.now, Inventories: map[string]*tangramv1.Inventory{}, Limits: b.limit,
		Lost: b.dead, Others: b.others}
	in := planner.RepairInput{World: "w", Revision: "r1", Geometry: b.v, Current: b.now}
	held := make([][][]bound.Held, b.v.MoELayers())
	for o := range held {
		held[o] = make([][]bound.Held, b.v.Proto.Experts)
	}
	for rank, m := range b.now.Members {
		if b.dead[m.Id] {
			continue
		}
		inv := b.inventory(m.Id)
		c.Inventories[m.Id] = inv
		c.Target = append(c.Target, m.Id)
		in.Survivors = append(in.Survivors, planner.Member{Member: m, Inventory: inv, MemoryBytes: b.limit[m.Id]})
		for i, layer := range inv.Layer {
			o := b.v.Ordinal(layer)
			held[o][inv.Expert[i]] = append(held[o][inv.Expert[i]], bound.Held{Rank: uint32(rank),
				Run: geometry.Run{Start: inv.GranuleStart[i], Count: inv.GranuleCount[i]}})
		}
	}
	slices.Reverse(in.Survivors) // in any order
	result, err := planner.Repair(in)
	if err != nil {
		return nil, err
	}
	c.Plan = result.Plan
	b.lastCase = c
	if err := checker.Check(c); err != nil {
		return nil, fmt.Errorf("CHECKER: %w", err)
	}
	least, cost := bound.RepairBytes(b.v, held), result.Plan.Cost
	if tail := b.v.Proto.ExpertTailBytes; tail > 0 && b.wholeGroupLost() { // each new shard reads the tail then
		shards := tail * uint64(b.v.Granules) * uint64(b.v.Proto.Experts) * uint64(b.v.MoELayers())
		if cost.CheckpointBytes < least || cost.CheckpointBytes > least+shards {
			return nil, fmt.Errorf("%d bytes from the checkpoint, the least is %d", cost.CheckpointBytes, least)
		}
	} else if cost.CheckpointBytes != least {
		return nil, fmt.Errorf("%d bytes from the checkpoint, the least is %d", cost.CheckpointBytes, least)
	}
	if cost.ExpertBoundBytes != least {
		return nil, fmt.Errorf("%d bytes declared as the least, it is %d", cost.ExpertBoundBytes, least)
	}
	return result, nil
}

// wholeGroupLost: no rank of one of several groups survives. If all others are in other groups of the layer, that is
// beyond repair.
func (b *broken) wholeGroupLost() bool {
	for _, layer := range b.now.Layers {
		for _, g := range layer.Experts {
			if len(g.Ranks) > 1 && !slices.ContainsFunc(g.Ranks, func(r uint32) bool { return !b.dead[b.now.Members[r].Id] }) {
				return true
			}
		}
	}
	return false
}

func (b *broken) kill(r *rand.Rand, n int) {
	b.dead = map[string]bool{}
	for len(b.dead) < n {
		b.dead[b.now.Members[r.IntN(len(b.now.Members))].Id] = true
	}
}

// Worlds at a random point of a chain repeatedly lose 1 to k ranks, with staged or not yet retired pieces; then they
// are planned to a random shape.
func TestRandomRepairsAreValidAndReadMinimum(t *testing.T) {
	r := source(t)
	repairs, beyond, doubled, withExtras := 0, 0, 0, 0
	for i := range worlds(120) {
		tail := uint64(r.IntN(3) / 2 * 40)
		v := view(t, shape(1+uint32(r.IntN(40)), 1+uint32(r.IntN(16)), 1+uint32(r.IntN(6)), tail))
		w := &world{v: v, spare: 1 + uint32(r.IntN(2))}
		for step := range 4 {
			n := 1 + r.IntN(8)
			if uint32(n) > v.Proto.Experts && uint32(n) > v.Granules {
				continue
			}
			name := fmt.Sprintf("world %d, step %d: E %d G %d L %d tail %d, %d ranks", i, step, v.Proto.Experts, v.Granules,
				v.Proto.Layers, tail, n)
			before := w.now
			w.others, w.lose = nil, nil
			s := randomShape(r, v, uint32(n))
			result, err := w.to(w.ids(n), s)
			require.NoError(t, err, name)
			if pure(s) { // from a repaired layout too
				require.Equal(t, result.Plan.Cost.ExpertBoundBytes, result.Plan.Cost.ExpertBytes, name)
			}
			b := &broken{world: w}
			at := append([]*tangramv1.Layout{before}, result.Layouts...)
			if k := r.IntN(len(at)); at[k] != nil { // somewhere in the chain
				w.now = at[k]
				if r.IntN(2) == 0 && k+1 < len(at) {
					b.others = append(b.others, at[k+1]) // staged
				}
				if r.IntN(2) == 0 && k > 0 && at[k-1] != nil && len(b.others) == 0 {
					b.others = append(b.others, at[k-1]) // not yet retired
				}
			}
			if r.IntN(3) == 0 && tail == 0 {
				b.lose = func() bool { return r.IntN(50) == 0 }
			}
			for range 1 + r.IntN(2) {
				b.kill(r, r.IntN(len(w.now.Members)))
				result, err := b.repair()
				if planner.IsBeyondRepair(err) {
					require.True(t, b.wholeGroupLost(), "%s: %v", name, err)
					beyond++
					break
				}
				require.NoError(t, err, name)
				cost := result.Plan.Cost
				if len(b.others) == 0 && b.lose == nil {
					require.Equal(t, cost.CheckpointBytes, cost.ExpertBytes, "%s: nothing moves between survivors", name)
				}
				if len(b.others) > 0 {
					withExtras++
				}
				require.Len(t, result.Plan.Flips, 1, name)
				w.now = result.Final
				if b.lose != nil || r.IntN(2) == 0 {
					b.others = nil // retired; otherwise lost pieces would reappear
				}
				repairs++
				for _, layer := range w.now.Layers {
					for _, g := range layer.Experts {
						if ranks := slices.Sorted(slices.Values(g.Ranks)); len(slices.Compact(ranks)) < len(g.Ranks) {
							doubled++
						}
					}
				}
			}
		}
	}
	t.Logf("%d repairs, %d with unnamed pieces, %d groups with a doubled rank, %d beyond repair", repairs, withExtras, doubled, beyond)
	require.Positive(t, doubled)
	require.Positive(t, beyond)
	require.Positive(t, withExtras)
}
