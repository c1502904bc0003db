package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// at is a world in a shape, without the named ranks.
func at(t *testing.T, v *geometry.View, n int, s layout.Shape, lost ...int) *broken {
	t.Helper()
	b := &broken{world: &world{v: v, spare: 1}, dead: map[string]bool{}}
	_, err := b.to(b.ids(n), s)
	require.NoError(t, err)
	for _, rank := range lost {
		b.dead[b.now.Members[rank].Id] = true
	}
	return b
}

func (b *broken) repaired(t *testing.T) *planner.Result {
	t.Helper()
	result, err := b.repair()
	require.NoError(t, err)
	b.now, b.dead = result.Final, map[string]bool{}
	return result
}

// In Tensor one rank is lost: the survivors take its position in turn, layer by layer. A new member takes it over again
// for its share of the bytes and nothing else.
func TestLostPositionIsSharedAndRestoredInPlace(t *testing.T) {
	v := view(t, shape(12, 8, 7, 0)) // 6 MoE layers
	b := at(t, v, 4, tensorShape, 1)
	lost := uint64(6) * 12 * 2 * v.Proto.GranuleBytes // its quarter
	result := b.repaired(t)
	require.Equal(t, lost, result.Plan.Cost.CheckpointBytes)
	require.Equal(t, lost, result.Plan.Cost.ExpertBytes)
	require.Zero(t, result.Plan.Cost.LocalBytes)
	require.Equal(t, "TensorParallel", layout.ModeOf(b.now))
	require.False(t, layout.Is(b.now, layout.Tensor))
	took := map[uint32]int{}
	for _, l := range v.Proto.MoeLayers {
		ranks := b.now.Layers[l].Experts[0].Ranks
		require.Equal(t, []uint32{0, 1, 2}, []uint32{ranks[0], ranks[2], ranks[3]}, "who lives stays at its position")
		took[ranks[1]]++
		require.Equal(t, uint32(3), b.now.Layers[l].AttentionGroupSize)
	}
	require.Equal(t, map[uint32]int{0: 2, 1: 2, 2: 2}, took)

	before := b.now
	result, err := b.to(b.ids(4), tensorShape)
	require.NoError(t, err)
	require.Equal(t, []tangramv1.FlipKind{tangramv1.FlipKind_FLIP_KIND_JOIN, tangramv1.FlipKind_FLIP_KIND_LAYOUT}, kinds(result.Plan))
	require.Equal(t, lost, result.Plan.Cost.ExpertBytes)
	require.Zero(t, result.Plan.Cost.LocalBytes)
	require.True(t, layout.Is(b.now, layout.Tensor))
	for i, layer := range b.now.Layers {
		require.Equal(t, before.Layers[i].BankOffset, layer.BankOffset)
	}
}

// A world can have more than a thousand ranks: it grows, loses one, and is restored.
func TestMoreThanAThousandRanks(t *testing.T) {
	const ranks = 1100
	v := view(t, shape(1200, 2, 1, 0))
	b := at(t, v, ranks-50, expertShape)
	_, err := b.to(b.ids(ranks), expertShape)
	require.NoError(t, err)
	require.Len(t, b.now.Members, ranks)
	b.dead[b.now.Members[1050].Id] = true
	result := b.repaired(t)
	require.Len(t, b.now.Members, ranks-1)
	require.Equal(t, v.ExpertBytes, result.Plan.Cost.CheckpointBytes, "the one expert that nobody else had")
}

// A member replaced in TensorParallel, without a repair in between, is in place too.
func TestReplacedTensorMemberMovesOneShare(t *testing.T) {
	v := view(t, shape(12, 8, 3, 0))
	b := at(t, v, 4, tensorShape)
	target := append(b.ids(3), b.ids(5)[4])
	result, err := b.to(target, tensorShape)
	require.NoError(t, err)
	require.Equal(t, uint64(2)*12*2*v.Proto.GranuleBytes, result.Plan.Cost.ExpertBytes)
	require.Zero(t, result.Plan.Cost.LocalBytes)
	require.Len(t, result.Plan.Flips, 3, "join, layout, leave")
}

func kinds(p *tangramv1.Plan) (out []tangramv1.FlipKind) {
	for _, flip := range p.Flips {
		out = append(out, flip.Kind)
	}
	return out
}

func TestRepairMovesNothing_WhenAllMembersSurvive(t *testing.T) {
	for _, s := range []layout.Shape{expertShape, tensorShape} {
		b := at(t, view(t, shape(9, 6, 3, 40)), 3, s)
		before := b.now
		result := b.repaired(t)
		require.Equal(t, before.Epoch+1, b.now.Epoch)
		require.True(t, proto.Equal(&tangramv1.Cost{}, result.Plan.Cost))
		require.Empty(t, result.Plan.Flips[0].Delta.Layers)
		for i, layer := range b.now.Layers {
			require.True(t, proto.Equal(before.Layers[i], layer))
		}
	}
}

func TestLostExpertsGoToRanksWithFewest(t *testing.T) {
	v := view(t, shape(22, 6, 5, 0))
	b := at(t, v, 6, expertShape, 2, 5)
	b.repaired(t)
	total := make([]int, 4)
	for _, l := range v.Proto.MoeLayers {
		for _, g := range b.now.Layers[l].Experts {
			n := 0
			for _, entry := range g.Slots {
				if entry != 0 {
					n++
				}
			}
			require.InDelta(t, 5.5, n, 0.5)
			total[g.Ranks[0]] += n
		}
	}
	require.Equal(t, []int{22, 22, 22, 22}, total, "ties go to those with the fewest bytes over all layers")
	require.Equal(t, "ExpertParallel", layout.ModeOf(b.now))
}

// Pieces that a survivor staged or did not retire yet are used, and stay in place.
func TestRepairKeepsExtraPiecesInPlace(t *testing.T) {
	v := view(t, shape(24, 6, 1, 0))
	b := at(t, v, 4, expertShape)
	wide := b.now
	// A new member joins and gets experts; it dies before the others retire them.
	_, err := b.to(b.ids(5), expertShape)
	require.NoError(t, err)
	b.dead[b.now.Members[4].Id] = true
	b.others = []*tangramv1.Layout{wide}
	result := b.repaired(t)
	require.True(t, proto.Equal(&tangramv1.Cost{}, result.Plan.Cost), "%v", result.Plan.Cost)
	for rank := range uint32(4) {
		require.Equal(t, layout.InventoryOf(wide, v, rank), layout.InventoryOf(b.now, v, rank))
	}

	// The same in TensorParallel: a member took over a doubled position and died.
	b = at(t, view(t, shape(12, 8, 2, 0)), 3, tensorShape, 0)
	b.repaired(t)
	doubled := b.now
	_, err = b.to(b.ids(3), tensorShape)
	require.NoError(t, err)
	b.dead[b.now.Members[2].Id] = true
	b.others = []*tangramv1.Layout{doubled}
	result = b.repaired(t)
	require.Zero(t, result.Plan.Cost.CheckpointBytes+result.Plan.Cost.ExpertBytes+result.Plan.Cost.LocalBytes)
}

func TestIrreparableLossesAreExplained(t *testing.T) {
	v := view(t, shape(12, 8, 2, 0))
	b := at(t, v, 4, layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{1: {ExpertGroup: 2}}}, 2, 3)
	_, err := b.repair()
	require.True(t, planner.IsBeyondRepair(err))
	require.ErrorContains(t, err, "layer 1: no survivor can take position 0 of expert group 1, ranks [2 3]")

	in := planner.RepairInput{World: "w", Revision: "r1", Geometry: v, Current: b.now}
	_, err = planner.Repair(in)
	require.True(t, planner.IsBeyondRepair(err))
	require.ErrorContains(t, err, "no member survives")
	in.Survivors = []planner.Member{{Member: &tangramv1.Member{Id: "stranger"}}}
	_, err = planner.Repair(in)
	require.ErrorContains(t, err, `"stranger" survives, but is no member of the layout of epoch 1`)
	in.Current = nil
	_, err = planner.Repair(in)
	require.ErrorContains(t, err, "no layout is active yet")
	require.False(t, planner.IsBeyondRepair(err))
}

func TestRepairMemoryErrorIncludesNumbers(t *testing.T) {
	for _, s := range []layout.Shape{expertShape, tensorShape} {
		v := view(t, shape(12, 8, 4, 0))
		b := at(t, v, 4, s, 3)
		sound := b.now
		result := b.repaired(t)
		need := result.Plan.Flips[0].Parts[1].PeakBytes
		b.now, b.dead = sound, map[string]bool{sound.Members[3].Id: true}
		id := sound.Members[1].Id
		b.limit = map[string]uint64{id: need}
		_, err := b.repair()
		require.NoError(t, err, "exactly the peak suffices")
		b.limit[id] = need - 1
		_, err = b.repair()
		require.True(t, planner.IsNoMemory(err))
		require.ErrorContains(t, err, "rank 1 ("+id+") needs")
		require.ErrorContains(t, err, "1 too few")
	}
}

func TestCheckerRejectsCorruptedRepairs(t *testing.T) {
	v := view(t, shape(11, 6, 3, 0))
	for mode, s := range map[string]layout.Shape{"ExpertParallel": expertShape, "TensorParallel": tensorShape} {
		b := at(t, v, 4, s, 1)
		b.repaired(t)
		sound := b.lastCase
		require.NoError(t, checker.Check(sound))
		// again recomputes the hash of the delta's layout, so that only the rule under test can reject.
		again := func(c *checker.Case) {
			next, err := layout.ApplyDelta(c.Before, c.Plan.Flips[0].Delta, c.Before.Epoch+1)
			require.NoError(t, err)
			require.NoError(t, layout.Validate(next, v))
			c.Plan.Flips[0].TargetHash, err = layout.Hash(next)
			require.NoError(t, err)
		}
		fetches := func(c *checker.Case) *tangramv1.Fetches {
			for _, part := range c.Plan.Flips[0].Parts {
				if part.Fetches != nil {
					return part.Fetches
				}
			}
			return nil
		}
		for name, spoil := range map[string]func(*checker.Case){
			"from the dead":      func(c *checker.Case) { fetches(c).Source[0] = 4 },
			"from who lacks it":  func(c *checker.Case) { fetches(c).Source[0] = 3 },
			"a fetch too few":    func(c *checker.Case) { fetches(c).GranuleCount[0]-- },
			"a part too few":     func(c *checker.Case) { c.Plan.Flips[0].Parts = c.Plan.Flips[0].Parts[1:] },
			"a flip too many":    func(c *checker.Case) { c.Plan.Flips = append(c.Plan.Flips, c.Plan.Flips[0]) },
			"the wrong one left": func(c *checker.Case) { c.Lost = map[string]bool{b.now.Members[0].Id: true} },
			"another bank":       func(c *checker.Case) { l := c.Plan.Flips[0].Delta.Layers; l[len(l)-1].BankOffset++; again(c) },
			"survivors reordered": func(c *checker.Case) {
				d := c.Plan.Flips[0].Delta
				d.Members[0], d.Members[1] = d.Members[1], d.Members[0]
				again(c)
			},
			"given all to one": func(c *checker.Case) {
				g := c.Plan.Flips[0].Delta.Layers[2].Experts
				if mode == "ExpertParallel" {
					g[0].Slots, g[1].Slots = append(g[0].Slots, g[1].Slots[len(g[1].Slots)-1]), g[1].Slots[:len(g[1].Slots)-1]
				} else {
					g[0].Ranks[2] = g[0].Ranks[0]
				}
				again(c)
			},
			"without heads": func(c *checker.Case) {
				l := c.Plan.Flips[0].Delta.Layers[1]
				l.AttentionGroupSize, l.Attention = 1, []*tangramv1.AttentionGroup{{Ranks: []uint32{0}, QueryHeadBounds: []uint32{0, 12}}}
				again(c)
			},
		} {
			t.Run(mode+", "+name, func(t *testing.T) {
				bad := sound
				bad.Plan = proto.CloneOf(sound.Plan)
				spoil(&bad)
				require.Error(t, checker.Check(bad))
			})
		}
	}
}
