package walk

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// alive is a world with a keeper and a load.
type alive struct {
	*harness.World
	keeper *harness.Keeper
	trace  *load.Trace
	halt   chan struct{}
	played chan []*load.Result
}

// startAlive starts a world in a shape and under load.
func startAlive(t *testing.T, pods []int, ranks int, mode string) *alive {
	t.Helper()
	return startAliveWith(t, harness.Options{Pods: pods}, ranks, mode)
}

func startAliveWith(t *testing.T, o harness.Options, ranks int, mode string) *alive {
	t.Helper()
	o.Restart, o.MaxTokens = true, max(o.MaxTokens, 512)
	return enliven(t, startTiny(t, o), ranks, mode)
}

// enliven starts a keeper, which brings the world to a shape, and a load.
func enliven(t *testing.T, w *harness.World, ranks int, mode string) *alive {
	t.Helper()
	a := &alive{World: w, trace: newTrace(t, 5, 30*time.Second), halt: make(chan struct{}), played: make(chan []*load.Result, 1)}
	a.keep(t, ranks, mode)
	t.Cleanup(func() { a.keeper.Kill() })
	a.await(t, "the first layout", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
	ctx, cancel := context.WithTimeout(t.Context(), 2*worlds.Hang)
	t.Cleanup(cancel)
	go func() { a.played <- client(w).Play(ctx, a.trace, 6, a.halt) }()
	time.Sleep(time.Second) // so that requests are in every phase
	return a
}

func (a *alive) keep(t *testing.T, ranks int, mode string) {
	t.Helper()
	keeper, err := a.Keep(ranks, mode, tell(t))
	require.NoError(t, err)
	a.keeper = keeper
}

func (a *alive) keepPlacement(t *testing.T, p placement) {
	t.Helper()
	keeper, err := a.KeepPlacement(len(p[0]), p, tell(t))
	require.NoError(t, err)
	a.keeper = keeper
}

func tell(t *testing.T) func(harness.Did) {
	return func(d harness.Did) {
		if d.Record != nil {
			t.Logf("keeper: %s lost=%v epoch=%d seconds=%.2f error=%q", d.Did, d.Record.Lost, d.Record.Epoch, d.Record.TotalSeconds, d.Error)
		}
	}
}

// await waits for an action of this keeper.
func (a *alive) await(t *testing.T, what string, is func(harness.Did) bool) harness.Did {
	t.Helper()
	var found harness.Did
	require.Eventually(t, func() bool {
		for _, d := range a.keeper.Did() {
			if d.Record != nil && is(d) {
				found = d
				return true
			}
		}
		return false
	}, worlds.Hang, 20*time.Millisecond, what)
	return found
}

func repaired(d harness.Did) bool { return d.Did == "repair" && d.Error == "" }

// end ends the load: nothing is lost, and all tokens equal those of a world without deaths.
func (a *alive) end(t *testing.T, ranks int) {
	t.Helper()
	time.Sleep(time.Second)
	close(a.halt)
	walked := <-a.played
	require.NotEmpty(t, walked)
	for _, r := range walked {
		require.NoError(t, r.Err)
	}
	audit(t, a.World, ranks)
	again := client(a.World).Repeat(t.Context(), a.trace, len(walked), 8)
	requireSame(t, walked, again)
	t.Logf("%d requests", len(walked))
}

func TestPodDies(t *testing.T) {
	for _, mode := range worlds.Cases(1, []string{"ExpertParallel", "TensorParallel"}) {
		t.Run(mode, func(t *testing.T) {
			a := startAlive(t, []int{1, 1, 1}, 3, mode)
			a.KillPod(1)
			d := a.await(t, "a repair", repaired)
			require.Len(t, d.Record.Lost, 1)
			_, err := a.AddPod(t.Context(), 1)
			require.NoError(t, err)
			a.await(t, "full width again", func(d harness.Did) bool { return d.Did == "apply" && d.Record.FromEpoch > 1 && d.Error == "" })
			a.end(t, 3)
		})
	}
}

func TestEngineDiesAlone(t *testing.T) {
	for _, mode := range worlds.Cases(1, []string{"TensorParallel", "ExpertParallel"}) {
		t.Run(mode, func(t *testing.T) {
			a := startAlive(t, []int{1, 2}, 3, mode)
			a.KillEngine(1, 1)
			d := a.await(t, "a repair", repaired)
			require.Empty(t, d.Record.Lost, "it came back")
			require.Zero(t, d.Record.Bytes.TCP+d.Record.Bytes.Checkpoint, "its weights stayed")
			a.end(t, 3)
		})
	}
}

// weightsOf counts the open descriptors of weights of each engine.
func (a *alive) weightsOf(t *testing.T, pods []int) []int {
	t.Helper()
	var out []int
	for pod, ranks := range pods {
		for device := range ranks {
			files, err := a.FilesOf(pod, device)
			require.NoError(t, err)
			n := 0
			for _, name := range files {
				if strings.Contains(name, "-weights") {
					n++
				}
			}
			out = append(out, n)
		}
	}
	return out
}

// As on devices with handles: engines receive many descriptors with their maps, and pass all of them to a new agent.
func TestAgentDiesAlone(t *testing.T) {
	pods := []int{1, 2}
	a := startAliveWith(t, harness.Options{Pods: pods, Memory: 16 << 20, KV: 8 << 20, DescriptorBytes: 64 << 10}, 3, "ExpertParallel")
	first := a.weightsOf(t, pods)
	for _, n := range first {
		require.Greater(t, n, 8, "descriptors of an engine's weights")
	}
	before := status(t, a.World)
	for range 2 { // the second one as soon as it has taken over
		a.KillAgent(1)
		require.Eventually(t, func() bool {
			all, err := a.Status(t.Context())
			return err == nil && all[1].Epoch == before[1].Epoch && all[1].Ranks[0].Engine.GetAttached() && all[1].Ranks[1].Engine.GetAttached()
		}, worlds.Hang, 50*time.Millisecond)
	}
	for i, r := range status(t, a.World)[1].Ranks {
		require.Equal(t, before[1].Ranks[i].Member.Id, r.Member.Id)
		require.Equal(t, before[1].Ranks[i].MemoryMapped, r.MemoryMapped)
	}
	require.Equal(t, first, a.weightsOf(t, pods), "what the engines have mapped stayed")
	for _, d := range a.keeper.Did() {
		require.NotEqual(t, "repair", d.Did, "the engines served on")
	}
	// The memory that it took over can be moved as before.
	a.keeper.Kill()
	a.keep(t, 3, "TensorParallel")
	a.await(t, "another mode", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" && d.Record.Bytes.Checkpoint == 0 })
	a.end(t, 3)
}
