package rebalance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
	"tangram.dev/operator/pkg/planner"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

func view(t *testing.T, experts, layers uint32) *geometry.View {
	t.Helper()
	g := &tangramv1.Geometry{Model: "test", Layers: layers, Hidden: 16, MoeInner: 64, Experts: experts, TopK: 1,
		QueryHeads: 12, KvHeads: 4, HeadDim: 8, GranuleRows: 8, GranuleBytes: 768,
		Dtype: tangramv1.DType_DTYPE_BF16, SlabFormat: tangramv1.SlabFormat_SLAB_FORMAT_GRANULE_MAJOR, PageBytes: 4096,
		DenseBytes: 10000, KvHeadTokenBytes: 64}
	for l := range layers {
		g.MoeLayers = append(g.MoeLayers, l)
	}
	v, err := geometry.New(g)
	require.NoError(t, err)
	return v
}

// plan to a placement on n ranks, or the first layout.
func plan(t *testing.T, v *geometry.View, from *tangramv1.Layout, n int, s layout.Shape) *planner.Result {
	t.Helper()
	in := planner.Input{World: "w", Revision: "r", Geometry: v, Current: from, Shape: s}
	for r := range n {
		id := string(rune('a'+r)) + "/0/1"
		m := planner.Member{Member: &tangramv1.Member{Id: id, Pod: id[:1], Node: id[:1]}}
		if from != nil {
			m.Inventory = layout.InventoryOf(from, v, uint32(r))
		}
		in.Members, in.Target = append(in.Members, m), append(in.Target, id)
	}
	result, err := planner.Plan(in)
	require.NoError(t, err)
	return result
}

// balanceOf a layout, by package load's definition.
func balanceOf(t *testing.T, l *tangramv1.Layout, v *geometry.View, forecast [][]float64) float64 {
	t.Helper()
	p, err := FromLayout(l, v, 0)
	require.NoError(t, err)
	b, err := load.Balancedness(forecast, p.Lists())
	require.NoError(t, err)
	return b.Aggregate
}

// floorOf is the highest balancedness of any placement with this number of slots, by package placement's definition.
func floorOf(v *geometry.View, forecast [][]float64, n, redundant int) float64 {
	ranks, means, peaks := make([]placement.Rank, n), 0.0, 0.0
	for r := range ranks {
		ranks[r].Slots = (int(v.Proto.Experts) + redundant) / n
	}
	for _, loads := range forecast {
		for _, w := range loads {
			means += w / float64(n)
		}
		peaks += placement.EvenFloor(loads, ranks)
	}
	return means / peaks
}

// Decisions on random loads: the reported figures hold after the planner has carried them out, and the moves are the
// priced ones.
func TestDecisionFiguresHoldAfterPlanning(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 1))
	moved, worlds := 0, 60
	if testing.Short() {
		worlds = 6
	}
	for range worlds {
		v := view(t, uint32(4+dice.IntN(28)), uint32(1+dice.IntN(4)))
		n := 2 + dice.IntN(3)
		now := plan(t, v, nil, n, layout.Shape{Mode: layout.Expert}).Final
		settings := Settings{MaxMoves: dice.IntN(2) * (1 + dice.IntN(12)), MinGain: .01, Price: float64(dice.IntN(2)) * .001}
		for range 3 { // one cycle after another, sometimes with another number of redundant experts
			settings.Redundant, settings.Automatic = dice.IntN(8), dice.IntN(3) == 0
			forecast := make([][]float64, v.MoELayers())
			for o := range forecast {
				for range v.Proto.Experts {
					forecast[o] = append(forecast[o], float64(dice.IntN(10)*dice.IntN(100)))
				}
			}
			d, err := Decide(v, now, forecast, settings)
			require.NoError(t, err)
			require.InDelta(t, balanceOf(t, now, v, forecast), d.Before, 1e-9, d.Why)
			require.LessOrEqual(t, d.After, d.Floor+1e-9)
			require.InDelta(t, floorOf(v, forecast, n, d.Redundant), d.Floor, 1e-9)
			if !strings.Contains(d.Why, "replicas are removed") { // more slots were filled than the floor assumes
				require.LessOrEqual(t, d.Before, d.Floor+1e-9)
			}
			if d.Placement == nil {
				require.Contains(t, d.Why, "balancedness")
				continue
			}
			moved++
			most := (int(v.Proto.Experts) + settings.Redundant + n - 1) / n
			for o := range d.Placement {
				for r := range d.Placement[o] {
					require.LessOrEqual(t, len(d.Placement[o][r]), most)
				}
			}
			if settings.MaxMoves > 0 && !strings.Contains(d.Why, "replicas are removed") {
				require.LessOrEqual(t, d.Moves, settings.MaxMoves)
			}
			result := plan(t, v, now, n, layout.Shape{Mode: layout.Expert, Placement: d.Placement})
			require.Equal(t, d.Bytes, result.Plan.Cost.ExpertBytes)
			now = result.Final
			require.InDelta(t, balanceOf(t, now, v, forecast), d.After, 1e-9, d.Why)
		}
	}
	require.Greater(t, moved, worlds*5/6)
}

// Fewer slots than the active layout fills: copies are removed, though nothing improves.
func TestFewerRedundantExperts(t *testing.T) {
	v := view(t, 8, 2)
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	loads := [][]float64{{9, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 9}}
	d, err := Decide(v, now, loads, Settings{Redundant: 4})
	require.NoError(t, err)
	now = plan(t, v, now, 2, layout.Shape{Mode: layout.Expert, Placement: d.Placement}).Final
	before := balanceOf(t, now, v, loads)
	d, err = Decide(v, now, loads, Settings{MinGain: .1})
	require.NoError(t, err)
	require.NotNil(t, d.Placement)
	require.Contains(t, d.Why, "replicas are removed")
	require.InDelta(t, before, d.Before, 1e-9)
	for o := range d.Placement {
		require.Equal(t, 8, len(d.Placement[o][0])+len(d.Placement[o][1]))
	}
}

func TestDecideKeepsPlacement_WhenGainIsTooSmall(t *testing.T) {
	v := view(t, 8, 2)
	even := [][]float64{{1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}}
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	d, err := Decide(v, now, even, Settings{MinGain: .01})
	require.NoError(t, err)
	require.Nil(t, d.Placement)
	require.Contains(t, d.Why, "No move pays off: balancedness 1.000 now")

	skewed := [][]float64{even[0], {4, 1, 1, 1, 1, 1, 1, 1}}
	d, err = Decide(v, now, skewed, Settings{Redundant: 2, MinGain: .5})
	require.NoError(t, err)
	require.Nil(t, d.Placement)
	require.Contains(t, d.Why, "The gain is too small")

	_, err = Decide(v, now, even[:1], Settings{})
	require.ErrorContains(t, err, "2 layers of 8 experts")
	_, err = Decide(v, now, [][]float64{even[0], {-1, 1, 1, 1, 1, 1, 1, 1}}, Settings{})
	require.ErrorContains(t, err, "layer 1, expert 0: load -1")
	_, err = Decide(v, nil, even, Settings{})
	require.ErrorContains(t, err, "no layout is active")
	tensor := plan(t, v, nil, 2, layout.Shape{Mode: layout.Tensor}).Final
	_, err = Decide(v, tensor, even, Settings{})
	require.ErrorContains(t, err, "only whole experts are placed")
}

// Layers of whole experts in a hybrid are placed as they would be alone, and the others stay.
func TestDecidePlacesWholeExpertLayersOfHybrid(t *testing.T) {
	v, alone := view(t, 8, 4), view(t, 8, 2)
	even, skewed := []float64{1, 1, 1, 1, 1, 1, 1, 1}, []float64{9, 5, 1, 1, 1, 1, 1, 1}
	hybrid := layout.Ranges{{First: 0, Last: 0, ExpertGroup: 2, AttentionGroup: 1}, {First: 2, Last: 2, ExpertGroup: layout.AllRanks, AttentionGroup: layout.AllRanks}}
	shape, err := hybrid.On(v, 4)
	require.NoError(t, err)
	now := plan(t, v, nil, 4, shape).Final
	require.Equal(t, []int{1, 3}, Whole(now))
	for _, automatic := range []bool{false, true} {
		s := Settings{Redundant: 4, Automatic: automatic, MinGain: .01}
		d, err := Decide(v, now, [][]float64{skewed, skewed, skewed, even}, s)
		require.NoError(t, err)
		same, err := Decide(alone, plan(t, alone, nil, 4, layout.Shape{Mode: layout.Expert}).Final, [][]float64{skewed, even}, s)
		require.NoError(t, err)
		require.Equal(t, [][][]uint32{nil, same.Placement[0], nil, same.Placement[1]}, d.Placement)
		require.Equal(t, same.After, d.After)
		placed := shape
		placed.Placement = d.Placement
		next := plan(t, v, now, 4, placed)
		require.Equal(t, d.Bytes, next.Plan.Cost.ExpertBytes)
		require.True(t, layout.Follows(next.Final, shape), "it is the hybrid that was wanted, with copies")
		require.Equal(t, hybrid.String(), "0=2/1 2=all/all")
		require.Equal(t, layout.RangesOf(now), layout.RangesOf(next.Final))
		for _, l := range []int{0, 2} {
			require.Equal(t, now.Layers[l].Experts[0].Slots, next.Final.Layers[l].Experts[0].Slots)
		}
	}
}

func TestDecideRejectsInvalidSettings(t *testing.T) {
	v := view(t, 8, 1)
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	for says, s := range map[string]Settings{
		"-1 redundant experts": {Redundant: -1},
		"at most -1 moves":     {MaxMoves: -1},
		"a gain of at least -": {MinGain: -.1},
		"at least NaN":         {MinGain: math.NaN()},
		"slot is -1":           {Price: -1},
	} {
		for _, s.Automatic = range []bool{false, true} {
			_, err := Decide(v, now, [][]float64{{4, 1, 1, 1, 1, 1, 1, 1}}, s)
			require.ErrorContains(t, err, says)
		}
	}
}

// Slots are added on all ranks at a time: redundant experts are rounded up.
func TestRedundantExpertsAreRoundedUp(t *testing.T) {
	v := view(t, 8, 1)
	now := plan(t, v, nil, 3, layout.Shape{Mode: layout.Expert}).Final
	for asked, got := range []int{1, 1, 4, 4, 4, 7} { // of 9, 12 and 15 slots
		d, err := Decide(v, now, [][]float64{{9, 1, 1, 1, 1, 1, 1, 1}}, Settings{Redundant: asked})
		require.NoError(t, err)
		require.Equal(t, got, d.Redundant, "%d asked for", asked)
	}
}

// Ranks that are too full remove copies and nothing else: other gains, and the cap, wait for the next window.
func TestOnlyExcessReplicasAreRemoved(t *testing.T) {
	v := view(t, 8, 1)
	full := [][][]uint32{{{0, 1, 2, 3, 4, 5}, {0, 1, 4, 5, 6, 7}}}
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	now = plan(t, v, now, 2, layout.Shape{Mode: layout.Expert, Placement: full}).Final
	d, err := Decide(v, now, [][]float64{{1, 1, 9, 9, 1, 1, 1, 1}}, Settings{MaxMoves: 1})
	require.NoError(t, err)
	require.Contains(t, d.Why, "A rank has up to 6 experts, more than 0 redundant experts per layer allow, so replicas are removed. 0 experts move (0 bytes, 0 rounds)")
	require.Zero(t, d.Moves, "to part the hot experts 2 and 3 would pay")
	require.Subset(t, full[0][0], d.Placement[0][0])
	require.Subset(t, full[0][1], d.Placement[0][1])
}

// A gain of exactly the minimum is taken, a slightly smaller one is not.
func TestMinGain(t *testing.T) {
	v := view(t, 8, 1)
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	loads := [][]float64{{9, 9, 9, 9, 2, 1, 1, 1}}
	free, err := Decide(v, now, loads, Settings{})
	require.NoError(t, err)
	gain := free.After - free.Before
	require.Positive(t, gain)
	d, err := Decide(v, now, loads, Settings{MinGain: gain})
	require.NoError(t, err)
	require.Equal(t, free.Placement, d.Placement)
	d, err = Decide(v, now, loads, Settings{MinGain: math.Nextafter(gain, 1)})
	require.NoError(t, err)
	require.Nil(t, d.Placement)
	require.Contains(t, d.Why, fmt.Sprintf("The gain is too small: %d moves (%d bytes) would gain %.3f", d.Moves, d.Bytes, gain))
}

// With a cap, some of the moves are made, and the reason says so; a cap at the number of moves changes nothing.
func TestMaxMoves(t *testing.T) {
	v := view(t, 8, 3)
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	skewed := []float64{9, 9, 9, 9, 1, 1, 1, 1}
	loads := [][]float64{skewed, skewed, skewed}
	free, err := Decide(v, now, loads, Settings{})
	require.NoError(t, err)
	require.Equal(t, free.Moves, free.Wanted)
	require.Greater(t, free.Moves, 2)
	for limit := 2; limit <= free.Moves+1; limit++ {
		d, err := Decide(v, now, loads, Settings{MaxMoves: limit})
		require.NoError(t, err)
		require.LessOrEqual(t, d.Moves, limit)
		require.Equal(t, free.Wanted, d.Wanted)
		if limit < free.Moves {
			require.Contains(t, d.Why, fmt.Sprintf("(%d bytes, %d rounds), the best of %d within the cap of %d: ", d.Bytes, d.Rounds, free.Moves, limit))
			continue
		}
		require.NotContains(t, d.Why, "within the cap")
		require.Equal(t, free.Placement, d.Placement)
	}
}

// An expert hotter than the mean of all ranks sets the floor, while its copies are on few of them.
func TestFloor(t *testing.T) {
	v := view(t, 8, 2)
	now := plan(t, v, nil, 4, layout.Shape{Mode: layout.Expert}).Final
	loads := [][]float64{{93, 1, 1, 1, 1, 1, 1, 1}, {10, 20, 10, 20, 10, 20, 10, 20}}
	d, err := Decide(v, now, loads, Settings{})
	require.NoError(t, err)
	require.InDelta(t, (25.+30)/(93+30), d.Floor, 1e-9)
	d, err = Decide(v, now, loads, Settings{Redundant: 4})
	require.NoError(t, err)
	require.InDelta(t, floorOf(v, loads, 4, 4), d.Floor, 1e-9)
	require.Greater(t, d.Floor, (25.+30)/(93+30))
}

func TestLayerWithoutLoadIsBalanced(t *testing.T) {
	v := view(t, 8, 1)
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	d, err := Decide(v, now, [][]float64{make([]float64, 8)}, Settings{})
	require.NoError(t, err)
	require.Nil(t, d.Placement)
	require.Equal(t, []float64{1, 1, 1, 1}, []float64{d.Before, d.After, d.Reachable, d.Floor})
}

// Fits is called for a placement that would move experts, with that placement.
func TestFitsIsCalledOnlyForMoves(t *testing.T) {
	v := view(t, 8, 1)
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	var asked [][][][]uint32
	s := Settings{Fits: func(p [][][]uint32) error { asked = append(asked, p); return nil }}
	d, err := Decide(v, now, [][]float64{{1, 1, 1, 1, 1, 1, 1, 1}}, s)
	require.NoError(t, err)
	require.Nil(t, d.Placement)
	require.Empty(t, asked)
	d, err = Decide(v, now, [][]float64{{9, 9, 9, 9, 1, 1, 1, 1}}, s)
	require.NoError(t, err)
	require.Equal(t, [][][][]uint32{d.Placement}, asked)
}

func TestFromLayout_WhenNoLayoutIsActive(t *testing.T) {
	_, err := FromLayout(nil, view(t, 8, 1), 0)
	require.ErrorContains(t, err, "no layout is active")
}
