package plancli

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// In any resize or switch, the bytes by rank, by transfer and of the plan agree, and so do the ranks' final pieces.
func TestPlanByteTotalsAgree(t *testing.T) {
	dice := rand.New(rand.NewPCG(6, 4))
	for _, model := range []string{"Mixtral-8x7B", "gpt-oss-20b"} { // gpt-oss: experts with a tail
		v, err := Geometry(model, 0, 0, 5<<20)
		require.NoError(t, err)
		for range 25 {
			world := func() World {
				return World{Ranks: 1 + dice.IntN(5), Mode: []string{"ExpertParallel", "TensorParallel"}[dice.IntN(2)]}
			}
			in := PlanInput{Geometry: v, From: world(), To: world(), RanksPerPod: 1 + dice.IntN(2), SpareBanks: 2}
			if in.To.Mode == "ExpertParallel" && dice.IntN(2) == 0 {
				in.Redundant = 5
				in.Loads = randomLoads(dice, v.MoELayers(), int(v.Proto.Experts))
			}
			r, err := Plan(in)
			require.NoError(t, err, "%+v", in)
			brings, dense, drops, transfers := uint64(0), uint64(0), uint64(0), uint64(0)
			for _, k := range r.Ranks {
				brings, dense, drops = brings+k.BringsBytes, dense+k.DenseBytes, drops+k.DropsBytes
				require.GreaterOrEqual(t, k.PeakBytes, k.SteadyBytes)
			}
			for _, tr := range r.Transfers {
				require.NotEqual(t, tr.From, tr.To)
				transfers += tr.Bytes
			}
			require.Equal(t, r.ExpertBytes, brings, "%+v -> %+v", in.From, in.To)
			require.Equal(t, r.ExpertBytes, transfers)
			require.Equal(t, r.DenseBytes, dense)
			if in.Loads == nil {
				require.Equal(t, r.BoundBytes, r.ExpertBytes)
			}
			// One copy of each expert before and after.
			if in.From.Mode == "ExpertParallel" && in.To.Mode == "ExpertParallel" && in.Loads == nil {
				require.Equal(t, brings, drops)
			}
			require.Equal(t, whole(in.From) && whole(in.To), r.Rounds != nil, "%+v", r.Flips)
		}
	}
}

// whole: no expert is sliced.
func whole(w World) bool { return w.Mode == "ExpertParallel" || w.Ranks == 1 }

// A layer without load gives joiners no work there, but each rank must have an expert.
func TestPlan_WhenLayerHasNoLoad(t *testing.T) {
	v, err := Geometry("Mixtral-8x7B", 128, 0, 0)
	require.NoError(t, err)
	in := PlanInput{Geometry: v, From: World{Ranks: 2, Mode: "ExpertParallel"}, To: World{Ranks: 4, Mode: "ExpertParallel"}, RanksPerPod: 1, SpareBanks: 2, Redundant: 8, Price: .5, Loads: make([][]float64, v.MoELayers())}
	for l := range in.Loads {
		in.Loads[l] = make([]float64, 8)
	}
	r, err := Plan(in)
	require.NoError(t, err)
	require.Equal(t, Full, r.Balance.Mode)
}
