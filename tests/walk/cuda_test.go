package walk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	tangramv1 "tangram.dev/proto/tangram/v1"
	"tangram.dev/tests/internal/worlds"
)

// onGpus returns options of a world with weights and KV in GPU memory, simulated by the recording driver. Its handles
// are as small for the tiny model as 2 MiB are for a large one.
func onGpus(t *testing.T, o harness.Options) harness.Options {
	t.Helper()
	driver, err := harness.RecordingDriver(worlds.Root)
	require.NoError(t, err)
	require.FileExists(t, driver, "ninja -C build/cxx fakecuda")
	o.CudaDriver, o.PageBytes, o.Memory = driver, 16<<10, 6<<20
	return o
}

// requireSound: the driver rejected no call of any process, and each process with an orderly end had freed everything.
func requireSound(t *testing.T, w *harness.World, pods int, killed ...int) {
	t.Helper()
	reports, err := w.CudaReports()
	require.NoError(t, err)
	for pod := range pods {
		if !slices.Contains(killed, pod) {
			require.NotEmpty(t, reports[fmt.Sprintf("agent-p%d", pod)], "pod %d", pod)
			require.NotEmpty(t, reports[fmt.Sprintf("engine-p%d-0", pod)], "pod %d", pod)
		}
	}
	for name, lines := range reports {
		for _, line := range lines {
			require.Equal(t, "ended", line, "of %s", name)
		}
	}
}

// moving is a world that is taken from shape to shape, with requests in flight at each change.
type moving struct {
	*alive
	others *load.Trace
	flown  []*load.Result
}

// during runs an action with three requests in flight, which have tokens before it and get more after it.
func (m *moving) during(t *testing.T, does func()) {
	t.Helper()
	flying := fly(t, m.World, m.others, len(m.flown), 3)
	for _, f := range flying {
		f.await(t, 20) // more than one block of KV
	}
	does()
	for _, f := range flying {
		m.flown = append(m.flown, f.land(t))
	}
}

// to changes the shape.
func (m *moving) to(t *testing.T, ranks int, mode string) (record *harness.Record) {
	t.Helper()
	m.during(t, func() {
		m.keeper.Kill()
		m.keep(t, ranks, mode)
		record = m.applied(t, fmt.Sprint(ranks, mode))
	})
	return record
}

func (a *alive) applied(t *testing.T, what string) *harness.Record {
	t.Helper()
	d := a.await(t, what, func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" && d.Record.PlannedFlips > 0 })
	require.Zero(t, d.Record.Bytes.Checkpoint, "%s: all of it came from ranks", what)
	t.Logf("%s: %+v in %.2f s", what, d.Record.Bytes, d.Record.TotalSeconds)
	return &d.Record.Record
}

// podOf returns the pod of a rank of the layout.
func podOf(t *testing.T, w *harness.World, rank uint32) int {
	t.Helper()
	at := slices.IndexFunc(status(t, w), func(s *tangramv1.StatusResponse) bool {
		return slices.ContainsFunc(s.Ranks, func(r *tangramv1.RankStatus) bool { return r.InWorld && r.Rank == rank })
	})
	require.GreaterOrEqual(t, at, 0, "no pod has rank %d", rank)
	return at
}

// A world of agents and engines with `device: cuda` makes all kinds of changes under load; engines read weights and KV
// by device copies. Clients get the tokens of one rank in plain memory.
func TestWorldOnGPUs(t *testing.T) {
	type which struct {
		format  string
		oneNode bool // agents read each other's memory
	}
	for _, w := range worlds.Cases(1, []which{{"granule-major", false}, {"granule-major", true}, {"row-major", true}, {"row-major", false}}) {
		name := w.format
		if w.oneNode {
			name += " on one node"
		}
		t.Run(name, func(t *testing.T) { walkOnGpus(t, w.format, w.oneNode) })
	}
}

func walkOnGpus(t *testing.T, format string, oneNode bool) {
	const seed = 9
	pods := []int{2, 1, 1}
	a := startAliveWith(t, onGpus(t, harness.Options{Pods: pods, SlabFormat: format, OneNode: oneNode, MaxTokens: flightTokens, LeastStep: 5 * time.Millisecond}), 2, "ExpertParallel")
	m := &moving{alive: a, others: newTrace(t, seed, time.Second)}
	for _, s := range status(t, a.World) {
		require.Equal(t, "cuda", s.MemoryInfo.GetPlatform())
	}
	m.to(t, 3, "ExpertParallel")
	require.Positive(t, m.to(t, 3, "TensorParallel").Bytes.KV, "requests that ran kept their KV")
	require.Positive(t, m.to(t, 3, "ExpertParallel").Bytes.KV)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2 { // experts move, some twice
		p := randomPlacement(random, 3)
		m.during(t, func() {
			a.keeper.Kill()
			a.keepPlacement(t, p)
			a.applied(t, "a placement")
		})
		requirePlaced(t, a.World, p)
		require.Positive(t, m.to(t, 2, "TensorParallel").Bytes.KV)
		require.Positive(t, m.to(t, 3, "ExpertParallel").Bytes.KV)
	}

	// An engine dies alone: its agent keeps its weights.
	m.during(t, func() {
		a.KillEngine(0, 1)
		d := a.await(t, "a repair", repaired)
		require.Empty(t, d.Record.Lost, "it came back")
		require.Zero(t, d.Record.Bytes.TCP+d.Record.Bytes.Checkpoint, "its weights stayed")
	})

	// An agent dies alone: its engines hold all its memory, and pass it to the next agent.
	before := status(t, a.World)
	m.during(t, func() {
		a.KillAgent(0)
		require.Eventually(t, func() bool {
			all, err := a.Status(t.Context())
			return err == nil && all[0].Epoch == before[0].Epoch && all[0].Ranks[0].Engine.GetAttached() && all[0].Ranks[1].Engine.GetAttached()
		}, worlds.Hang, 50*time.Millisecond)
	})
	for i, r := range status(t, a.World)[0].Ranks {
		require.Equal(t, before[0].Ranks[i].MemoryMapped, r.MemoryMapped)
	}
	m.to(t, 3, "TensorParallel")

	// An agent loses its GPU in the middle of a transition: the agent exits, and the next one continues with its
	// engines' memory.
	const ecc = 214 // CUDA_ERROR_ECC_UNCORRECTABLE, after which a driver rejects all calls of the process
	require.NoError(t, a.FailCuda("agent-p0", "cuMemcpyAsync", ecc, 2, 1))
	m.to(t, 3, "ExpertParallel")
	said, err := os.ReadFile(filepath.Join(a.Dir(), "agent-p0.log"))
	require.NoError(t, err)
	require.Regexp(t, `exiting for another agent to take over error=\\"this process has lost the GPU: cuda: .*uncorrectable ECC error encountered .*\\"`, string(said))

	// An engine loses its GPU: the same, but its step is also lost.
	m.during(t, func() {
		require.NoError(t, a.FailCuda("engine-p0-1", "cuMemcpyAsync", ecc, 0, 1))
		d := a.await(t, "a repair", repaired)
		require.Empty(t, d.Record.Lost, "it came back")
		require.Zero(t, d.Record.Bytes.TCP+d.Record.Bytes.Checkpoint, "its weights stayed")
	})
	m.to(t, 3, "TensorParallel")

	// A whole pod dies: the others load its pieces again, and the next pod fetches them from them.
	dies := podOf(t, a.World, 2)
	m.during(t, func() {
		a.KillPod(dies)
		d := a.await(t, "a repair", repaired)
		require.Len(t, d.Record.Lost, 1)
		_, err = a.AddPod(t.Context(), 1)
		require.NoError(t, err)
		a.await(t, "full width again", func(d harness.Did) bool { return d.Did == "apply" && d.Record.FromEpoch > 1 && d.Error == "" })
	})
	m.to(t, 2, "ExpertParallel")

	received, err := worlds.CounterBy(t.Context(), a.AgentMetricsURLs()[0], "tangram_agent_received_bytes_total", "transport")
	require.NoError(t, err)
	require.Positive(t, received["process"], "between the ranks of its pod")
	if oneNode {
		require.Positive(t, received["node"])
		require.Zero(t, received["tcp"])
	} else {
		require.Positive(t, received["tcp"])
	}

	close(a.halt)
	walked := <-a.played
	require.NotEmpty(t, walked)
	audit(t, a.World, 2)
	a.keeper.Kill()
	a.Stop()
	requireSound(t, a.World, len(pods)+1, dies)
	one := startTiny(t, harness.Options{Pods: []int{1}, Dir: "one", MaxTokens: flightTokens})
	apply(t, one, 1, "ExpertParallel")
	requireSame(t, walked, client(one).Repeat(t.Context(), a.trace, len(walked), 8))
	requireSame(t, m.flown, client(one).Again(t.Context(), m.flown, 8))
	t.Logf("%d requests, %d in flight at a change", len(walked), len(m.flown))
}

// An agent whose options need more memory than the GPU has reports the numbers, and exits.
func TestGPUHasTooLittleMemory(t *testing.T) {
	t.Setenv("FAKE_CUDA_MIB", "30")
	tiny, err := harness.Checkpoint(t.Context(), worlds.Root, "tiny")
	require.NoError(t, err)
	o := onGpus(t, harness.Options{Pods: []int{1}, Root: worlds.Root, Dir: filepath.Join(worlds.Root, "build/walk", t.Name()), Checkpoint: tiny, Granule: 8, KV: 8 << 20})
	o.Memory = 40 << 20
	_, err = harness.Start(t.Context(), o)
	require.ErrorContains(t, err, "agent-p0 ended before it was ready")
	require.ErrorContains(t, err, fmt.Sprintf("memory of %d bytes, of which %d are made: ", o.Memory, 30<<20))
	require.ErrorContains(t, err, fmt.Sprintf("0 of %d bytes of NVIDIA H200 (recorded) are free", 30<<20))
}

// A driver that fails in the middle of a transition, in an agent or in an engine: the world's driver reports the
// reason, all keep serving in the old layout, and once the GPU works the same transition succeeds.
func TestGPUFailsInTransition(t *testing.T) {
	const outOfMemory, notSupported, always = 2, 801, 1 << 30
	w := startTiny(t, onGpus(t, harness.Options{Pods: []int{1, 1}}))
	apply(t, w, 2, "ExpertParallel")
	tokens := answers(t, w)
	modes := []string{"TensorParallel", "ExpertParallel"}
	for i, c := range []struct {
		process, call string
		result, skip  int
		cause         string
	}{
		{"agent-p1", "cuMemMap", outOfMemory, 2, "out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)"},
		{"agent-p0", "cuMemSetAccess", notSupported, 0, "operation not supported (CUDA_ERROR_NOT_SUPPORTED, 801)"},
		{"agent-p1", "cuMemcpyAsync", notSupported, 5, "operation not supported"},
		{"agent-p0", "cuEventRecord", notSupported, 3, "operation not supported"},
		{"engine-p1-0", "cuMemMap", outOfMemory, 1, "out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)"},
		{"engine-p0-0", "cuMemImportFromShareableHandle", notSupported, 0, "operation not supported"},
	} {
		t.Run(c.process+" "+c.call, func(t *testing.T) {
			before := status(t, w)
			require.NoError(t, w.FailCuda(c.process, c.call, c.result, c.skip, always))
			_, err := w.Apply(t.Context(), 2, modes[i%2], nil, nil)
			require.ErrorContains(t, err, c.cause)
			require.ErrorContains(t, err, "the old layout stays active")
			require.NoError(t, w.FailCuda(c.process, c.call, 0, 0, 0))
			requireSame(t, answers(t, w), tokens)
			requireUnmoved(t, status(t, w), before)
			apply(t, w, 2, modes[i%2])
			requireSame(t, answers(t, w), tokens)
			audit(t, w, 2)
		})
	}
	w.Stop()
	requireSound(t, w, 2)
}
