package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/internal/simcli"
	"tangram.dev/operator/pkg/simulator"
)

// The lower bound is below both modes alone, the threshold and the policy, with KV for all sequences and with little.
// It is close where one mode is always the better one.
func TestMakespanLowerBoundHoldsForAllPolicies(t *testing.T) {
	for _, gb := range []float64{90, 1000} {
		for seed := range uint64(3) {
			o := simcli.Defaults()
			o.Truth, o.RankGB, o.Noise = engines[seed], gb, 0
			w, err := simcli.Make(o, simulator.Rollout(300, simulator.LongTail{Median: 300, Sigma: 1.2, Most: 2000}, seed))
			require.NoError(t, err)
			bound := foreseenMakespan(w.Config, w.Requests)
			best := 0.0
			for _, name := range []string{"ExpertParallel", "TensorParallel", "rollout", "calibrated"} {
				r, err := w.Play(name, nil)
				require.NoError(t, err)
				require.Less(t, bound, r.Makespan, "%s on %s", name, o.Truth)
				if best == 0 || r.Makespan < best {
					best = r.Makespan
				}
			}
			require.Greater(t, bound, .6*best, "%s, %v GB", o.Truth, gb)
		}
	}
}
