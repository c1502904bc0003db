package peers

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/placement"
)

func TestExact(t *testing.T) {
	require.InDelta(t, 3.5, Exact([]float64{3, 2, 1}, 2, 2), 1e-12) // 3 | 2 1 has an empty slot; filled with 1 it is 3.5
	require.InDelta(t, 2, Exact([]float64{2, 2}, 2, 1), 1e-12)
	require.InDelta(t, 2, Exact([]float64{2, 2}, 2, 2), 1e-12) // each expert on both
	require.InDelta(t, 590.0/3, Exact(Showcase(), 8, 2), 1e-9) // the reference: 196.67
	require.InDelta(t, 1.5, Exact([]float64{3, 0, 0, 0}, 2, 3), 1e-12)
}

// The planner against the optimum, on seeds of its own (the bench uses others).
func TestPlannerNearExact(t *testing.T) {
	var p placement.Planner
	cases, hits := 300, 0
	for seed := range uint64(cases) {
		c := NewSmall(rand.New(rand.NewPCG(seed, 77)))
		r, err := p.Full(&placement.Problem{Layers: []placement.Layer{{Load: c.Load}}, Ranks: c.Ranks()}, placement.Options{})
		require.NoError(t, err)
		best, got := Exact(c.Load, c.NumRanks, c.Slots), r.Layers[0].Peak
		require.GreaterOrEqual(t, got, best*(1-1e-9), "seed %d", seed)
		require.GreaterOrEqual(t, best/got, 0.99, "seed %d: %+v", seed, c)
		if got <= best*(1+1e-9) {
			hits++
		}
	}
	t.Logf("%d of %d exact", hits, cases)
	require.Greater(t, float64(hits), 0.95*float64(cases))
}
