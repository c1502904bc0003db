package walk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// startDeep starts a world of a model with 94 tiny layers, the depth of Qwen3-235B, the model of Moebius (arXiv
// 2606.26607), whose switches took 215 to 434 ms on eight H200; in CI with 24 layers. With two spare banks a mode
// switch has half as many flips.
func startDeep(t *testing.T, pods []int) (w *harness.World, layers int) {
	t.Helper()
	if worlds.IsCI() {
		return worlds.StartDeep(t, harness.Options{Pods: pods, Restart: true}), 24
	}
	checkpoint, err := harness.Checkpoint(t.Context(), worlds.Root, "deep94")
	require.NoError(t, err)
	return start(t, harness.Options{Checkpoint: checkpoint, Pods: pods, Granule: 8, Memory: 64 << 20, KV: 128 << 20, Restart: true}), 94
}

// A mode switch at the depth of a real model, under load, without a fault, and with a kill -9 in the middle of its
// chain of flips.
func TestDeepSwitch(t *testing.T) {
	const ranks = 3
	for _, struck := range worlds.Cases(1, []string{"nothing", "engine", "agent", "pod", "driver"}) {
		t.Run(struck, func(t *testing.T) {
			w, layers := startDeep(t, []int{1, 1, 1})
			a := enliven(t, w, ranks, "ExpertParallel")
			var switches []harness.Record
			for i, mode := range []string{"TensorParallel", "ExpertParallel"} {
				before := status(t, a.World)[0].Epoch
				a.keeper.Kill()
				a.keep(t, ranks, mode)
				if i == 0 && struck != "nothing" {
					a.reach(t, before+10)
					a.strike(t, struck, mode)
				}
				width := map[string]int{"TensorParallel": ranks, "ExpertParallel": 1}[mode]
				var d harness.Did
				require.Eventually(t, func() bool {
					d = a.await(t, mode, func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
					return a.shardedBy(t, ranks, width)
				}, worlds.Hang, 100*time.Millisecond)
				switches = append(switches, d.Record.Record)
			}
			close(a.halt)
			walked := <-a.played
			require.NotEmpty(t, walked)
			audit(t, a.World, ranks)
			requireSame(t, walked, client(a.World).Repeat(t.Context(), a.trace, len(walked), 8))
			for _, s := range switches {
				t.Logf("%d flips by %d permits in %.2f s; longest gap of a stream %d ms; published for a switch at once: 215 to 434 ms", s.PlannedFlips, s.Permits, s.TotalSeconds,
					longestGap(walked, s.Started, s.Ended).Milliseconds())
			}
			if struck == "nothing" {
				require.Equal(t, layers/2, switches[0].PlannedFlips)
				require.Equal(t, 1+layers/2/32, switches[0].Permits, "a permit is for 32 flips at most")
			}
		})
	}
}

// reach waits for an epoch, while the chain continues.
func (a *alive) reach(t *testing.T, epoch uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, err := a.Status(t.Context())
		return err == nil && all[0].Epoch >= epoch
	}, worlds.Hang, 5*time.Millisecond)
}

// strike kills a process with -9; a killed pod or driver is replaced.
func (a *alive) strike(t *testing.T, what, mode string) {
	t.Helper()
	switch what {
	case "engine":
		a.KillEngine(1, 0)
	case "agent":
		a.KillAgent(1)
	case "driver":
		a.keeper.Kill()
		a.keep(t, 3, mode)
	case "pod":
		a.KillPod(1)
		a.await(t, "a repair", repaired)
		_, err := a.AddPod(t.Context(), 1)
		require.NoError(t, err)
	}
}

// shardedBy reports whether all ranks are in a layout in which `width` of them share each expert of every layer.
func (a *alive) shardedBy(t *testing.T, ranks, width int) bool {
	t.Helper()
	all, err := a.Status(t.Context())
	if err != nil {
		return false
	}
	here := 0
	for _, s := range all {
		for _, r := range s.Ranks {
			if !r.InWorld {
				continue
			}
			here++
			for _, l := range s.Layout.GetLayers() {
				if int(l.ExpertGroupSize) != width {
					return false
				}
			}
		}
	}
	return here == ranks
}

// longestGap is the longest time between two tokens of a stream whose second token came in the span or was the first
// one after it.
func longestGap(results []*load.Result, from, to time.Time) (longest time.Duration) {
	for _, r := range results {
		for i := 1; i < len(r.Tokens); i++ {
			if r.Tokens[i].At.After(from) && !r.Tokens[i-1].At.After(to) {
				longest = max(longest, r.Tokens[i].At.Sub(r.Tokens[i-1].At))
			}
		}
	}
	return longest
}
