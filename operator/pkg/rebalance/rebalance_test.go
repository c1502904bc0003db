package rebalance

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/geometry"
	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/load"
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

// balanceOf a layout, by the other package's definition.
func balanceOf(t *testing.T, l *tangramv1.Layout, v *geometry.View, forecast [][]float64) float64 {
	t.Helper()
	p, err := FromLayout(l, v, 0)
	require.NoError(t, err)
	b, err := load.Balancedness(forecast, p.Lists())
	require.NoError(t, err)
	return b.Aggregate
}

// Decisions on random loads: what is told is so once the planner has done it, and what moves is what was priced.
func TestDecisionsComeTrue(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 1))
	moved := 0
	for range 60 {
		v := view(t, uint32(4+dice.IntN(28)), uint32(1+dice.IntN(4)))
		n := 2 + dice.IntN(3)
		now := plan(t, v, nil, n, layout.Shape{Mode: layout.Expert}).Final
		settings := Settings{MaxMoves: dice.IntN(2) * (1 + dice.IntN(12)), MinGain: .01, Price: float64(dice.IntN(2)) * .001}
		for range 3 { // one cycle after another, at times with another number of redundant experts
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
			if !strings.Contains(d.Why, "copies go") { // more slots were filled than the floor is of
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
			if settings.MaxMoves > 0 && !strings.Contains(d.Why, "copies go") {
				require.LessOrEqual(t, d.Moves, settings.MaxMoves)
			}
			result := plan(t, v, now, n, layout.Shape{Mode: layout.Expert, Placement: d.Placement})
			require.Equal(t, d.Bytes, result.Plan.Cost.ExpertBytes)
			now = result.Final
			require.InDelta(t, balanceOf(t, now, v, forecast), d.After, 1e-9, d.Why)
		}
	}
	require.Greater(t, moved, 50)
}

// The number of redundant experts is the fewest that gains what more of them would, and that fits.
func TestAutomatic(t *testing.T) {
	v := view(t, 8, 1)
	now := plan(t, v, nil, 4, layout.Shape{Mode: layout.Expert}).Final
	hot := [][]float64{{16, 16, 0, 0, 0, 0, 0, 0}} // two copies of each make it even
	settings := Settings{Redundant: 16, Automatic: true, MinGain: .01}
	d, err := Decide(v, now, hot, settings)
	require.NoError(t, err)
	require.Equal(t, 4, d.Redundant)
	require.InDelta(t, 1, d.After, 1e-9)
	require.Contains(t, d.Why, "4 redundant experts per layer of 16 allowed: 1.000 reachable with them, 0.500 with none")

	settings.Fits = func(placement [][][]uint32) error {
		if len(placement[0][0])+len(placement[0][1])+len(placement[0][2])+len(placement[0][3]) > 8 {
			return errors.New("no memory")
		}
		return nil
	}
	d, err = Decide(v, now, [][]float64{{16, 16, 1, 0, 0, 0, 0, 0}}, settings)
	require.NoError(t, err)
	require.Zero(t, d.Redundant)
	require.Contains(t, d.Why, "more do not fit")
	settings.Automatic = false
	_, err = Decide(v, now, hot, settings)
	require.ErrorIs(t, err, ErrTooBig)
	require.ErrorContains(t, err, "16 redundant experts per layer: no memory")
}

// Fewer slots than the layout in force fills: copies go, though nothing gets better by it.
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
	require.Contains(t, d.Why, "copies go")
	require.InDelta(t, before, d.Before, 1e-9)
	for o := range d.Placement {
		require.Equal(t, 8, len(d.Placement[o][0])+len(d.Placement[o][1]))
	}
}

func TestWhatIsNotDecided(t *testing.T) {
	v := view(t, 8, 2)
	even := [][]float64{{1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}}
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	d, err := Decide(v, now, even, Settings{MinGain: .01})
	require.NoError(t, err)
	require.Nil(t, d.Placement)
	require.Contains(t, d.Why, "no move pays for itself: balancedness 1.000 now")

	skewed := [][]float64{even[0], {4, 1, 1, 1, 1, 1, 1, 1}}
	d, err = Decide(v, now, skewed, Settings{Redundant: 2, MinGain: .5})
	require.NoError(t, err)
	require.Nil(t, d.Placement)
	require.Contains(t, d.Why, "not worth it")

	_, err = Decide(v, now, even[:1], Settings{})
	require.ErrorContains(t, err, "2 layers of 8 experts")
	_, err = Decide(v, now, [][]float64{even[0], {-1, 1, 1, 1, 1, 1, 1, 1}}, Settings{})
	require.ErrorContains(t, err, "layer 1, expert 0: load -1")
	_, err = Decide(v, nil, even, Settings{})
	require.ErrorContains(t, err, "no layout is in force")
	_, err = Decide(v, now, even, Settings{Redundant: -1})
	require.ErrorContains(t, err, "-1 redundant experts")
	tensor := plan(t, v, nil, 2, layout.Shape{Mode: layout.Tensor}).Final
	_, err = Decide(v, tensor, even, Settings{})
	require.ErrorContains(t, err, "only whole experts are placed")
}
