package load

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBalancedness(t *testing.T) {
	loads := [][]float64{{6, 2, 4}, {0, 0, 0}, {1, 1, 2}}
	p := Placement{
		{{0, 1}, {0, 2}, {}},          // 6/2 + 2 = 5, 6/2 + 4 = 7; the rank without slots does not count
		{{0, 1}, {2, Empty}, {}},      // idle
		{{2, 2}, {0, 1}, {Empty, -1}}, // 2, 2, and an empty rank that could help: 4/3 over 2
	}
	b, err := Balancedness(loads, p)
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{6. / 7, 1, 2. / 3}, b.Layers, 1e-12)
	require.Equal(t, 2, b.WorstLayer)
	require.InDelta(t, 2./3, b.Worst, 1e-12)
	require.InDelta(t, (6+4./3)/(7+2), b.Aggregate, 1e-12)

	// Plan on i, score on i+1.
	next, err := Next([][][]float64{loads, {{6, 6, 0}, {1, 1, 2}, {1, 1, 2}}}, []Placement{p})
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{6. / 9, 1, 2. / 3}, next.Layers, 1e-12)
	require.InDelta(t, (6+2+4./3)/(9+2+2), next.Aggregate, 1e-12)
}

func TestBalancednessRejectsInvalidInput(t *testing.T) {
	good := Placement{{{0}, {1}}}
	for want, c := range map[string]struct {
		loads [][]float64
		p     Placement
	}{
		"layer 0, expert 1: load is NaN":           {[][]float64{{1, math.NaN()}}, good},
		"layer 0, expert 0: load is -2":            {[][]float64{{-2, 1}}, good},
		"load is +Inf":                             {[][]float64{{math.Inf(1), 1}}, good},
		"loads of 2 layers, a placement of 1":      {[][]float64{{1, 1}, {1, 1}}, good},
		"expert 2 has a load of 1 and no slot":     {[][]float64{{1, 1, 1}}, good},
		"rank 1, slot 0 holds expert 1; the layer": {[][]float64{{1}}, good},
		"layer 0 has no slot on any of 2 ranks":    {[][]float64{{0}}, Placement{{{}, {}}}},
		"loads of 0 layers":                        {nil, nil},
		"layer 0 has no experts":                   {[][]float64{{}}, good},
	} {
		_, err := Balancedness(c.loads, c.p)
		require.ErrorContains(t, err, want)
	}
	_, err := Next([][][]float64{{{1, 1}}}, []Placement{good})
	require.ErrorContains(t, err, "want 2 windows or more")
}
