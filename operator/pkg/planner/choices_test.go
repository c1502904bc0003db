package planner_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"tangram.dev/operator/pkg/checker"
	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// crew is a world whose members have explicit names and nodes, and possibly incomplete inventories.
type crew struct {
	v    *geometry.View
	node map[string]string
	now  *tangramv1.Layout
	held map[string]*tangramv1.Inventory // instead of the layout's inventory
	lost map[string]bool
}

func (c *crew) plan(t *testing.T, s layout.Shape, target ...string) (*planner.Result, error) {
	t.Helper()
	in := planner.Input{World: "w", Revision: "r1", Geometry: c.v, Current: c.now, Target: target, Shape: s}
	check := checker.Case{Geometry: c.v, Revision: "r1", Before: c.now, Inventories: map[string]*tangramv1.Inventory{}, Lost: c.lost, Target: target, Shape: s}
	for rank, m := range c.now.GetMembers() {
		inv := layout.InventoryOf(c.now, c.v, uint32(rank))
		if other := c.held[m.Id]; other != nil {
			inv = other
		}
		if !c.lost[m.Id] {
			in.Members = append(in.Members, planner.Member{Member: m, Inventory: inv})
			check.Inventories[m.Id] = inv
		}
	}
	for _, id := range target {
		if layout.RankOf(c.now, id) < 0 {
			in.Members = append(in.Members, planner.Member{Member: &tangramv1.Member{Id: id, Node: c.node[id]}})
		}
	}
	result, err := planner.Plan(in)
	if err != nil {
		return nil, err
	}
	check.Plan = result.Plan
	return result, checker.Check(check)
}

// to plans, checks and moves the world there.
func (c *crew) to(t *testing.T, s layout.Shape, target ...string) *planner.Result {
	t.Helper()
	result, err := c.plan(t, s, target...)
	require.NoError(t, err)
	c.now = result.Final
	return result
}

// damage removes some pieces, and possibly the dense weights.
func (c *crew) damage(id string, dense bool, gone func(i int, inv *tangramv1.Inventory) bool) {
	whole := layout.InventoryOf(c.now, c.v, uint32(layout.RankOf(c.now, id)))
	inv := &tangramv1.Inventory{Revision: whole.Revision, Dense: dense}
	for i := range whole.Layer {
		if gone == nil || !gone(i, whole) {
			hold(inv, whole.Layer[i], whole.Bank[i], whole.Slot[i], whole.Expert[i], whole.GranuleStart[i], whole.GranuleCount[i])
		}
	}
	if c.held == nil {
		c.held = map[string]*tangramv1.Inventory{}
	}
	c.held[id] = inv
}

func hold(inv *tangramv1.Inventory, layer, bank, slot, expert, start, count uint32) {
	inv.Layer, inv.Bank, inv.Slot = append(inv.Layer, layer), append(inv.Bank, bank), append(inv.Slot, slot)
	inv.Expert, inv.GranuleStart, inv.GranuleCount = append(inv.Expert, expert), append(inv.GranuleStart, start), append(inv.GranuleCount, count)
}

func placed(layers ...[][]uint32) layout.Shape {
	return layout.Shape{Mode: layout.Expert, Placement: layers}
}

// The source is the nearest holder; of equals the one that sends least so far, then the lowest rank.
func TestSourcesAreNearestAndLeastUsed(t *testing.T) {
	for name, c := range map[string]struct {
		node map[string]string
		want []uint32 // source of experts 0 to 3 for the third: rank+1
	}{
		"equally far":         {map[string]string{"a": "x", "b": "y", "c": "z"}, []uint32{1, 2, 1, 2}},
		"equally near":        {map[string]string{"a": "x", "b": "x", "c": "x"}, []uint32{1, 2, 1, 2}},
		"the first is nearer": {map[string]string{"a": "x", "b": "y", "c": "x"}, []uint32{1, 1, 1, 1}},
		"the other is nearer": {map[string]string{"a": "x", "b": "y", "c": "y"}, []uint32{2, 2, 2, 2}},
	} {
		crew := &crew{v: view(t, shape(6, 4, 1, 0)), node: c.node}
		crew.to(t, placed([][]uint32{{0, 1}, {2, 3}, {4, 5}}), "a", "b", "c")
		all := []uint32{0, 1, 2, 3, 4, 5}
		crew.to(t, placed([][]uint32{all, all, {4, 5}}), "a", "b", "c")
		result := crew.to(t, placed([][]uint32{all, all, all}), "a", "b", "c")
		require.Len(t, result.Plan.Flips, 1, name)
		for _, part := range result.Plan.Flips[0].Parts {
			if part.Rank != 2 {
				require.Nil(t, part.Fetches, name)
				continue
			}
			require.Equal(t, []uint32{0, 1, 2, 3}, part.Fetches.Expert, name)
			require.Equal(t, c.want, part.Fetches.Source, name)
		}
	}
}

// The parts of the dense weights come from the nearest holders in turn, or from the checkpoint if there are none.
func TestDenseSourcesRotateAmongNearest(t *testing.T) {
	v := view(t, shape(4, 4, 1, 0))
	turns := func(of ...uint32) (out []uint32) {
		for i := range geometry.DenseParts {
			out = append(out, of[i%len(of)])
		}
		return out
	}
	for name, c := range map[string]struct {
		node string // of the joiner; a is on x, b on y, c on y
		want []uint32
	}{"far from all": {"z", turns(1, 2, 3)}, "beside one": {"x", turns(1)}, "beside two": {"y", turns(2, 3)}} {
		crew := &crew{v: v, node: map[string]string{"a": "x", "b": "y", "c": "y", "d": c.node}}
		crew.to(t, expertShape, "a", "b", "c")
		join := crew.to(t, expertShape, "a", "b", "c", "d").Plan.Flips[0]
		require.Equal(t, tangramv1.FlipKind_FLIP_KIND_JOIN, join.Kind)
		require.Nil(t, join.Parts[0].Dense, name)
		require.Equal(t, c.want, join.Parts[3].Dense.SourceByPart, name)
		require.Zero(t, join.Cost.CheckpointBytes)
	}
	crew := &crew{v: v}
	crew.to(t, expertShape, "a", "b")
	crew.damage("a", false, nil)
	result := crew.to(t, expertShape, "a", "b")
	require.Len(t, result.Plan.Flips, 1, "the dense weights alone are lacking")
	require.Equal(t, turns(2), result.Plan.Flips[0].Parts[0].Dense.SourceByPart)
	require.Nil(t, result.Plan.Flips[0].Parts[1].Dense)
	require.True(t, proto.Equal(&tangramv1.Cost{DenseBytes: v.Proto.DenseBytes, DenseBoundBytes: v.Proto.DenseBytes}, result.Plan.Cost))
	crew.damage("a", false, nil)
	crew.damage("b", false, nil)
	result = crew.to(t, expertShape, "a", "b")
	require.Equal(t, turns(0, 2), result.Plan.Flips[0].Parts[0].Dense.SourceByPart, "one reads, the other takes it from there")
	require.Equal(t, turns(1, 0), result.Plan.Flips[0].Parts[1].Dense.SourceByPart)
	require.Equal(t, v.Proto.DenseBytes, result.Plan.Cost.CheckpointBytes)
}

// With FromCheckpoint a rank reads all that it lacks from the checkpoint, and the costs include it.
func TestFromCheckpointIgnoresOtherHolders(t *testing.T) {
	v := view(t, shape(6, 4, 2, 64))
	crew := &crew{v: v}
	crew.to(t, expertShape, "a", "b")
	in := planner.Input{World: "w", Revision: "r1", Geometry: v, Current: crew.now, Target: []string{"a", "b", "c"}, Shape: expertShape}
	for rank, m := range crew.now.Members {
		in.Members = append(in.Members, planner.Member{Member: m, Inventory: layout.InventoryOf(crew.now, v, uint32(rank))})
	}
	in.Members = append(in.Members, planner.Member{Member: &tangramv1.Member{Id: "c"}})
	usual, err := planner.Plan(in)
	require.NoError(t, err)
	require.Zero(t, usual.Plan.Cost.CheckpointBytes)
	in.Options.FromCheckpoint = true
	alone, err := planner.Plan(in)
	require.NoError(t, err)
	require.Equal(t, usual.Final, alone.Final, "the same layout")
	require.Equal(t, usual.Plan.Cost.ExpertBytes, alone.Plan.Cost.ExpertBytes)
	require.Equal(t, alone.Plan.Cost.ExpertBytes+v.Proto.DenseBytes, alone.Plan.Cost.CheckpointBytes)
	fetches := 0
	for _, flip := range alone.Plan.Flips {
		for _, part := range flip.Parts {
			for _, source := range append(part.GetFetches().GetSource(), part.GetDense().GetSourceByPart()...) {
				require.Zero(t, source)
				fetches++
			}
		}
	}
	require.NotZero(t, fetches)
}

// Dense weights with few holders spread from joiner to joiner: no rank sends much more than all of them once, and no
// part takes many hops.
func TestDenseWeightsSpreadAsTree(t *testing.T) {
	v := view(t, shape(64, 4, 1, 0))
	var all []string
	for i := range 64 {
		all = append(all, fmt.Sprintf("m%02d", i))
	}
	for name, c := range map[string]struct {
		before   int // ranks
		node     func(i int) string
		most     int // parts that one rank sends
		hops     int
		far      int // parts that come from another node
		farBound bool
	}{
		"one holder, a node each":     {before: 1, node: func(i int) string { return fmt.Sprint("n", i) }, most: geometry.DenseParts, hops: 6},
		"one holder, nodes of eight":  {before: 1, node: func(i int) string { return fmt.Sprint("n", i/8) }, most: 2 * geometry.DenseParts, hops: 8, far: 7 * geometry.DenseParts, farBound: true},
		"as many holders as joiners":  {before: 32, node: func(i int) string { return fmt.Sprint("n", i) }, most: geometry.DenseParts, hops: 1},
		"nobody, a world begins anew": {before: 0, node: func(i int) string { return fmt.Sprint("n", i) }, most: geometry.DenseParts, hops: 6},
	} {
		t.Run(name, func(t *testing.T) {
			crew := &crew{v: v, node: map[string]string{}}
			for i, id := range all {
				crew.node[id] = c.node(i)
			}
			if c.before > 0 {
				crew.to(t, expertShape, all[:c.before]...)
			}
			flip := crew.to(t, expertShape, all...).Plan.Flips[0]
			sent := map[uint32]int{}
			far, hops := 0, 0
			for _, part := range flip.Parts {
				for i, source := range part.GetDense().GetSourceByPart() {
					if source == 0 {
						continue
					}
					sent[source-1]++
					if c.node(int(source-1)) != c.node(int(part.Rank)) {
						far++
					}
					way := 1
					for at := flip.Parts[source-1].GetDense(); at != nil && at.SourceByPart[i] != 0; way++ {
						at = flip.Parts[at.SourceByPart[i]-1].GetDense()
					}
					hops = max(hops, way)
				}
			}
			require.LessOrEqual(t, slices.Max(slices.Collect(maps.Values(sent))), c.most, "parts that one rank sends")
			require.LessOrEqual(t, hops, c.hops)
			if c.farBound {
				require.Equal(t, c.far, far, "each part comes to each node once")
			}
		})
	}
}

// A repair also fetches missing dense weights of survivors.
func TestRepairFetchesDenseWeights(t *testing.T) {
	b := at(t, view(t, shape(4, 4, 2, 0)), 3, expertShape, 2)
	first := b.now.Members[0].Id
	sound := b.now
	in := planner.RepairInput{World: "w", Revision: "r1", Geometry: b.v, Current: sound}
	for rank, m := range sound.Members[:2] {
		inv := layout.InventoryOf(sound, b.v, uint32(rank))
		inv.Dense = m.Id != first
		in.Survivors = append(in.Survivors, planner.Member{Member: m, Inventory: inv})
	}
	result, err := planner.Repair(in)
	require.NoError(t, err)
	require.Equal(t, b.v.Proto.DenseBytes, result.Plan.Cost.DenseBytes)
	for _, source := range result.Plan.Flips[0].Parts[0].Dense.SourceByPart {
		require.EqualValues(t, 2, source)
	}
}

// Members that own nothing leave by one flip, even if one is lost; missing pieces of the remaining ones are fetched
// before it.
func TestEmptyMembersLeaveInOneFlip(t *testing.T) {
	v := view(t, shape(8, 4, 2, 0))
	joined := func() *crew {
		c := &crew{v: v}
		c.to(t, expertShape, "a", "b")
		c.now = c.to(t, expertShape, "a", "b", "c").Layouts[0]
		return c
	}
	leave := []tangramv1.FlipKind{tangramv1.FlipKind_FLIP_KIND_LEAVE}
	result := joined().to(t, expertShape, "a", "b")
	require.Equal(t, leave, kinds(result.Plan))
	require.True(t, proto.Equal(&tangramv1.Cost{}, result.Plan.Cost))
	last := result.Plan.Flips[0].Parts[2]
	require.Zero(t, last.SteadyBytes)
	require.Equal(t, v.DensePages*v.Proto.PageBytes, last.PeakBytes)

	c := joined()
	c.damage("a", false, func(i int, _ *tangramv1.Inventory) bool { return i == 1 })
	result = c.to(t, expertShape, "a", "b")
	require.Equal(t, append([]tangramv1.FlipKind{tangramv1.FlipKind_FLIP_KIND_LAYOUT}, leave...), kinds(result.Plan))
	require.Equal(t, v.ExpertBytes, result.Plan.Flips[0].Cost.ExpertBytes)
	require.Equal(t, v.ExpertBytes, result.Plan.Flips[0].Cost.ExpertBoundBytes)
	require.NotNil(t, result.Plan.Flips[0].Parts[0].Dense)

	c = joined()
	c.lost = map[string]bool{"c": true}
	result = c.to(t, expertShape, "a", "b")
	require.Equal(t, leave, kinds(result.Plan))
	require.Len(t, result.Plan.Flips[0].Parts, 2)
}

// Missing pieces are fetched with the first flip, even if that is a join or changes other layers, and even with a lost
// member.
func TestFirstFlipFetchesMissingPieces(t *testing.T) {
	v := view(t, shape(8, 4, 4, 0)) // layers 1 to 3 have experts
	c := &crew{v: v}
	c.to(t, expertShape, "a", "b")
	c.damage("b", true, func(i int, _ *tangramv1.Inventory) bool { return i%3 == 0 })
	flips := c.to(t, expertShape, "a", "b", "c").Plan.Flips
	require.Equal(t, 4*v.ExpertBytes, flips[0].Cost.ExpertBytes, "with the join")
	require.Equal(t, 4*v.ExpertBytes, flips[0].Cost.CheckpointBytes)

	c = &crew{v: v}
	c.to(t, expertShape, "a", "b")
	c.damage("b", true, func(int, *tangramv1.Inventory) bool { return true })
	one := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{1: {ExpertGroup: 2}}}
	result := c.to(t, one, "a", "b")
	require.Len(t, result.Plan.Flips, 1)
	// In layer 1 it lacks half of all eight, and the other half of its four; in layers 2 and 3 its four.
	require.Equal(t, (4+2+8)*v.ExpertBytes, result.Plan.Cost.ExpertBytes)
	require.Equal(t, (2+2+8)*v.ExpertBytes, result.Plan.Cost.CheckpointBytes)

	// Once suffices: the second flip does not fetch again.
	c = &crew{v: v}
	c.to(t, expertShape, "a", "b")
	c.damage("b", true, func(i int, inv *tangramv1.Inventory) bool { return inv.Layer[i] == 1 })
	two := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{2: {ExpertGroup: 2}, 3: {ExpertGroup: 2}}}
	result = c.to(t, two, "a", "b")
	require.Len(t, result.Plan.Flips, 2)
	require.Equal(t, 4*v.ExpertBytes, result.Plan.Cost.CheckpointBytes)

	for _, s := range []layout.Shape{expertShape, tensorShape} {
		c = &crew{v: v}
		c.to(t, s, "a", "b", "c")
		c.lost = map[string]bool{"b": true}
		result := c.to(t, s, "a", "c", "d")
		require.Equal(t, tangramv1.FlipKind_FLIP_KIND_JOIN, result.Plan.Flips[0].Kind)
		require.Len(t, result.Plan.Flips[0].Parts, 3, "the lost one has no part")
		require.Equal(t, result.Plan.Cost.ExpertBoundBytes, result.Plan.Cost.ExpertBytes)
	}
}

// An extra piece of a leaver does not block a slot for others. An extra in another bank does not select that slot, and
// an extra in a hole may fill it.
func TestSlotsOfWholeExperts(t *testing.T) {
	v := view(t, shape(4, 4, 1, 0))
	start := func() *crew {
		c := &crew{v: v}
		c.to(t, placed([][]uint32{{0}, {1, 2, 3}}), "a", "b")
		return c
	}
	slots := func(c *crew, rank int) []uint32 { return c.now.Layers[0].Experts[rank].Slots }

	c := start()
	result := c.to(t, placed([][]uint32{{0, 1}, {2, 3}}), "a", "b")
	require.Equal(t, []uint32{0, 3, 4}, slots(c, 1), "what stays keeps its slot")
	require.Zero(t, result.Plan.Cost.LocalBytes)
	c.to(t, placed([][]uint32{{0, 1}, {0, 2, 3}}), "a", "b")
	require.Equal(t, []uint32{1, 3, 4}, slots(c, 1), "a hole is filled")

	c = start()
	c.to(t, placed([][]uint32{{0, 1}, {2, 3}}), "a", "b")
	c.to(t, expertShape, "a", "c")
	require.Equal(t, []uint32{3, 4}, slots(c, 1), "a new rank has its experts side by side")

	c = start()
	c.damage("b", true, nil)
	hold(c.held["b"], 0, 0, 7, 2, 0, 4)
	c.to(t, placed([][]uint32{{0, 1}, {2, 3}}), "a", "b")
	require.Equal(t, []uint32{0, 3, 4}, slots(c, 1), "the slot that the layout names, not that of a second copy")

	c = start()
	c.damage("a", true, nil)
	hold(c.held["a"], 0, 0, 5, 3, 0, 4)
	result = c.to(t, placed([][]uint32{{0, 3}, {1, 2}}), "a", "b")
	require.Equal(t, []uint32{1, 0, 0, 0, 0, 4}, slots(c, 0), "where it lies already")
	require.Zero(t, result.Plan.Cost.ExpertBytes+result.Plan.Cost.LocalBytes)

	c = start()
	c.damage("a", true, nil)
	hold(c.held["a"], 0, 1, 0, 3, 0, 4)
	result = c.to(t, placed([][]uint32{{3}, {0, 1, 2}}), "a", "b")
	require.Equal(t, []uint32{0, 4}, slots(c, 0), "slot 0 of another bank is none of this one")
	require.Equal(t, v.ExpertBytes, result.Plan.Cost.LocalBytes)
	require.Equal(t, v.ExpertBytes, result.Plan.Cost.ExpertBytes, "the other's")

	c = start()
	c.damage("a", true, nil)
	hold(c.held["a"], 0, 1, 1, 3, 0, 4)
	c.to(t, placed([][]uint32{{0, 1}, {2, 3}}), "a", "b")
	require.Equal(t, []uint32{1, 2}, slots(c, 0), "nor is it taken by what lies in slot 1 of another bank")

	c = start()
	named := layout.InventoryOf(c.now, v, 1)
	c.held = map[string]*tangramv1.Inventory{"b": {Revision: "r1", Dense: true}}
	hold(c.held["b"], 0, 0, 7, 2, 0, 4)
	for i := range named.Layer {
		hold(c.held["b"], 0, 0, named.Slot[i], named.Expert[i], 0, 4)
	}
	c.to(t, placed([][]uint32{{0, 1}, {2, 3}}), "a", "b")
	require.Equal(t, []uint32{0, 3, 4}, slots(c, 1), "the slot that the layout names, whichever is told first")

	c = start()
	c.damage("b", true, nil)
	for slot := uint32(3); slot < 36; slot++ {
		hold(c.held["b"], 0, 0, slot, 1, 0, 4)
	}
	_, err := c.plan(t, placed([][]uint32{{1}, {0, 2, 3}}), "a", "b")
	require.ErrorContains(t, err, "plan: layer 0: rank 1 has no free slot of 36 for expert 0")
	for what, slot := range map[string]uint32{"the first that there is not": 36, "far beyond": 1 << 30} {
		c.damage("b", true, nil)
		hold(c.held["b"], 0, 0, slot, 1, 0, 4)
		_, err = c.plan(t, placed([][]uint32{{1}, {0, 2, 3}}), "a", "b")
		require.ErrorContains(t, err, "retire before planning", what)
	}
	c.damage("b", true, nil)
	hold(c.held["b"], 0, 0, 35, 1, 0, 4)
	c.to(t, placed([][]uint32{{1}, {0, 2, 3}}), "a", "b")

	c = start() // two pieces in one slot: at most one of them is really stored
	c.damage("b", true, nil)
	hold(c.held["b"], 0, 0, 2, 0, 0, 4)
	result, _ = c.plan(t, placed([][]uint32{{1}, {0, 2, 3}}), "a", "b") // the checker cannot model such a memory
	require.NotNil(t, result)
	require.ElementsMatch(t, []uint32{0, 1, 3, 4}, result.Final.Layers[0].Experts[1].Slots)

	c = start()
	c.damage("b", true, nil)
	hold(c.held["b"], 0, 0, 4, 1, 1, 2)
	_, err = c.plan(t, expertShape, "b")
	require.ErrorContains(t, err, "retire before planning")
	_, err = c.plan(t, placed([][]uint32{{1}, {0, 2, 3}}), "a", "b")
	require.EqualError(t, err, "plan: rank 1 (b) still holds granules 1..3 in slot 4 of bank 0, which the layout of epoch 1 does not name: retire before planning")
}

// Placements with a rank that had no experts, and with the same number of other ranks.
func TestPlacement_WhenRanksHadNoExperts(t *testing.T) {
	c := &crew{v: view(t, shape(4, 4, 1, 0))}
	c.to(t, placed([][]uint32{{0, 1}, {2, 3}}), "a", "b")
	c.now = c.to(t, expertShape, "a", "b", "c").Layouts[0]
	result := c.to(t, placed([][]uint32{{0, 1}, {2}, {3}}), "a", "b", "c")
	require.Equal(t, c.v.ExpertBytes, result.Plan.Cost.ExpertBytes)
	result = c.to(t, placed([][]uint32{{0, 1, 2}, {3}}), "a", "c")
	require.Equal(t, c.v.ExpertBytes, result.Plan.Cost.ExpertBytes)
	c.now = c.to(t, expertShape, "a", "c", "d").Layouts[0]
	result = c.to(t, placed([][]uint32{{0, 1, 2}, {3}}), "a", "d")
	require.Equal(t, c.v.ExpertBytes, result.Plan.Cost.ExpertBytes, "d has none of it yet")
}

// Groups get the longer shares in turn, counting layers that stay in place.
func TestLongerSharesCountLayersInPlace(t *testing.T) {
	c := &crew{v: view(t, shape(5, 4, 2, 0))}
	s := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{0: {ExpertGroup: 2}}, Placement: [][][]uint32{nil, {{0}, {1}, {2}, {3, 4}}}}
	c.to(t, s, "a", "b", "c", "d")
	require.Len(t, c.now.Layers[0].Experts[0].Slots, 3)
	pairs := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{0: {ExpertGroup: 2}, 1: {ExpertGroup: 2}}}
	c.to(t, pairs, "a", "b", "c", "e") // Layer 1 has two experts on a and b, and one on c.
	require.Len(t, c.now.Layers[0].Experts[0].Slots, 3)
	require.Len(t, c.now.Layers[1].Experts[0].Slots, 2)
	require.Len(t, c.now.Layers[1].Experts[1].Slots, 3)
}

// A flip's peak counts pieces that no layout names with as many pages as they can touch.
func TestPlanPeakCountsExtraPieces(t *testing.T) {
	c := &crew{v: view(t, shape(4, 16, 2, 0))} // experts of three pages
	c.to(t, expertShape, "a", "b")
	before := c.now
	result := c.to(t, tensorShape, "a", "b")
	plain := []uint64{result.Plan.Flips[0].Parts[0].PeakBytes, result.Plan.Flips[1].Parts[0].PeakBytes}
	c.now = before
	c.damage("a", true, nil)
	hold(c.held["a"], 0, 0, 9, 3, 0, 16)
	result = c.to(t, tensorShape, "a", "b")
	require.EqualValues(t, 4*4096, result.Plan.Flips[0].Parts[0].PeakBytes-plain[0])
	require.Equal(t, plain[1], result.Plan.Flips[1].Parts[0].PeakBytes, "it is gone by then")
}

// Single pieces may be missing, in a layout with holes, or be in another bank.
func TestOnlyMissingPiecesAreFetched(t *testing.T) {
	v := view(t, shape(6, 4, 1, 0))
	c := &crew{v: v}
	c.to(t, placed([][]uint32{{0, 1, 2}, {3, 4, 5}}), "a", "b")
	c.to(t, placed([][]uint32{{0, 1, 2, 3}, {4, 5}}), "a", "b")
	require.Equal(t, []uint32{0, 5, 6}, c.now.Layers[0].Experts[1].Slots)
	c.damage("b", true, func(int, *tangramv1.Inventory) bool { return true })
	hold(c.held["b"], 0, 1, 1, 4, 0, 4) // in another bank, at the same slot
	result := c.to(t, placed([][]uint32{{0, 1, 2, 3}, {4, 5}}), "a", "b")
	require.Len(t, result.Plan.Flips, 1)
	require.True(t, proto.Equal(&tangramv1.Cost{LocalBytes: v.ExpertBytes, ExpertBytes: v.ExpertBytes, ExpertBoundBytes: v.ExpertBytes,
		CheckpointBytes: v.ExpertBytes}, result.Plan.Cost), "%v", result.Plan.Cost)
	c.damage("b", true, func(int, *tangramv1.Inventory) bool { return true })
	result = c.to(t, placed([][]uint32{{0, 1, 2, 3}, {4, 5}}), "a", "b")
	require.Equal(t, 2*v.ExpertBytes, result.Plan.Cost.ExpertBytes)
	require.Equal(t, 2*v.ExpertBytes, result.Plan.Cost.ExpertBoundBytes)

	// A placement on fewer ranks is not reached while another rank has a copy. Extra pieces of a leaver block nothing.
	c = &crew{v: v}
	c.to(t, placed([][]uint32{{0, 1}, {2, 3}, {4, 5}}), "a", "b", "c")
	c.to(t, placed([][]uint32{{0, 1, 4}, {2, 3, 5}, {0}}), "a", "b", "c")
	c.damage("c", true, nil)
	hold(c.held["c"], 0, 0, 9, 5, 0, 4)
	result = c.to(t, placed([][]uint32{{0, 1, 4}, {2, 3, 5}}), "a", "b")
	require.Len(t, result.Final.Members, 2)
	require.Zero(t, result.Plan.Cost.ExpertBytes)
	c = &crew{v: v}
	c.to(t, placed([][]uint32{{0, 1}, {2, 3}, {4, 5}}), "a", "b", "c")
	c.damage("c", true, nil)
	hold(c.held["c"], 0, 0, 9, 5, 0, 4)
	c.to(t, placed([][]uint32{{0, 1, 4}, {2, 3, 5}}), "a", "b")
}

// A group that stays in place keeps its bank, and each remaining rank its position, whatever it is. Unbalanced groups
// do not stay.
func TestRemainingRanksKeepGroupPosition(t *testing.T) {
	v := view(t, shape(6, 4, 1, 0))
	pairs := layout.Shape{Mode: layout.Expert, Layers: map[uint32]layout.LayerShape{0: {ExpertGroup: 2}}}
	start := func(groups ...*tangramv1.ExpertGroup) *crew {
		c := &crew{v: v}
		c.to(t, expertShape, "a", "b", "c", "d")
		c.to(t, pairs, "a", "b", "c", "d")
		require.NotZero(t, c.now.Layers[0].BankOffset)
		c.now = proto.CloneOf(c.now)
		c.now.Layers[0].Experts = groups
		return c
	}
	group := func(ranks, slots []uint32) *tangramv1.ExpertGroup {
		return &tangramv1.ExpertGroup{Ranks: ranks, Slots: slots}
	}
	c := start(group([]uint32{0, 1}, []uint32{1, 2, 0, 3}), group([]uint32{3, 2}, []uint32{0, 4, 5, 6}))
	before := c.now.Layers[0]
	result := c.to(t, pairs, "a", "b", "c", "e")
	require.Equal(t, 3*v.ExpertBytes/2, result.Plan.Cost.ExpertBytes, "one position of three experts")
	require.Equal(t, before.BankOffset, c.now.Layers[0].BankOffset)
	require.Equal(t, []uint32{3, 2}, c.now.Layers[0].Experts[1].Ranks, "e is rank 3 now, and c where it was")

	c = start(group([]uint32{0, 1}, []uint32{1, 2, 0, 3}), group([]uint32{3, 2}, []uint32{0, 4, 5, 6}))
	b := &broken{world: &world{v: v, now: c.now}, dead: map[string]bool{"b": true, "d": true}}
	require.Equal(t, 3*v.ExpertBytes, b.repaired(t).Plan.Cost.CheckpointBytes, "a position of each")

	c = start(group([]uint32{0, 1}, []uint32{1, 2, 3, 4}), group([]uint32{2, 3}, []uint32{5, 6}))
	before = c.now.Layers[0]
	c.to(t, pairs, "a", "b", "c", "d")
	require.NotEqual(t, before.BankOffset, c.now.Layers[0].BankOffset)
	require.Len(t, c.now.Layers[0].Experts[0].Slots, 3)
}
