package walk

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// An engine is stopped for longer than its peers' timeout. It closes no connection, and its agent reports it as
// working; the others continue without it. When it wakes it takes part in nothing, and joins again under another name.
func TestEngineIsUnresponsive(t *testing.T) {
	for _, mode := range worlds.Cases(1, []string{"ExpertParallel", "TensorParallel"}) {
		t.Run(mode, func(t *testing.T) {
			a := startAliveWith(t, harness.Options{Pods: []int{1, 2, 1}, Hangs: true}, 4, mode) // one of p1's two hangs
			a.HangEngine(1, 1, true)
			d := a.await(t, "a repair", repaired)
			require.Len(t, d.Record.Lost, 1)
			require.Contains(t, d.Record.Lost[0].Why, "its engine is unresponsive")
			a.HangEngine(1, 1, false)
			a.await(t, "full width again", func(d harness.Did) bool { return d.Did == "apply" && d.Record.FromEpoch > 1 && d.Error == "" })
			a.end(t, 4)
		})
	}
}

// A rank dies, and while the others are stopped for the repair another one's engine hangs. It has stopped like all
// others, its agent replies, and no step runs in which it could be missed. The others report that they receive nothing
// from it, and the repair starts again without it, before any timeout for a reply ends.
func TestEngineIsUnresponsiveInRepair(t *testing.T) {
	for _, point := range worlds.Cases(1, []string{"prepare.before", "stage.before_engine_map", "engine.repair_enter"}) {
		t.Run(point, func(t *testing.T) {
			a := startAliveWith(t, harness.Options{Pods: []int{1, 1, 1, 1, 1}, FaultDirs: true, Hangs: true}, 5, "ExpertParallel")
			d := a.hangsAt(t, 2, point, func() { a.KillPod(1) })
			log, err := os.ReadFile(filepath.Join(a.Dir(), "keep.log"))
			require.NoError(t, err)
			require.NotContains(t, string(log), "no connection in time", "an engine waited for it until its limit")
			require.NotContains(t, string(log), "did not reply within", "its agent did")
			if point != "engine.repair_enter" { // otherwise it is available, and missed in a step
				require.Contains(t, string(log), "during the repair")
				require.Len(t, d.Record.Lost, 2)
			}
			a.HangEngine(2, 0, false)
			_, err = a.AddPod(t.Context(), 1)
			require.NoError(t, err)
			a.await(t, "full width again", func(d harness.Did) bool { return d.Did == "apply" && d.Record.FromEpoch > 1 && d.Error == "" })
			a.end(t, 5)
		})
	}
}

// In a flip, and in the first step after it, all wait for an operation unlike a step: longer than for a step, but no
// longer than the steps here justify.
func TestEngineIsUnresponsiveInFlip(t *testing.T) {
	for _, point := range worlds.Cases(1, []string{"engine.flip_manifest", "engine.flip_enter"}) {
		t.Run(point, func(t *testing.T) {
			a := startAliveWith(t, harness.Options{Pods: []int{1, 1, 1, 1}, FaultDirs: true, Hangs: true}, 4, "ExpertParallel")
			a.hangsAt(t, 2, point, func() {
				a.keeper.Kill()
				a.keep(t, 4, "TensorParallel")
			})
			silences := 0
			for _, pod := range []int{0, 1, 3} {
				log, err := os.ReadFile(filepath.Join(a.Dir(), fmt.Sprintf("engine-p%d-0.log", pod)))
				require.NoError(t, err)
				for _, found := range silence.FindAllStringSubmatch(string(log), -1) {
					silences++
					ms, err := strconv.Atoi(found[1])
					require.NoError(t, err)
					require.Less(t, ms, 10_000, "the most")
				}
			}
			require.Positive(t, silences)
			a.HangEngine(2, 0, false)
			a.await(t, "the switch", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
			a.end(t, 4)
		})
	}
}

var silence = regexp.MustCompile(`no message from .* within (\d+) ms`)

// hangsAt stops a pod's engine when an operation has reached a point there, and awaits a repair without it.
func (a *alive) hangsAt(t *testing.T, pod int, point string, begin func()) harness.Did {
	t.Helper()
	armed := filepath.Join(a.FaultDir(pod), point+".armed")
	require.NoError(t, os.WriteFile(armed, nil, 0o600))
	begin()
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(a.FaultDir(pod), point+".hit"))
		return err == nil
	}, worlds.Hang, time.Millisecond, point)
	a.HangEngine(pod, 0, true)
	require.NoError(t, os.Remove(armed))
	return a.await(t, "a repair without it", func(d harness.Did) bool {
		return repaired(d) && slices.ContainsFunc(d.Record.Lost, ofPod(pod))
	})
}

func ofPod(pod int) func(harness.Lost) bool {
	return func(l harness.Lost) bool { return strings.HasPrefix(l.Member, fmt.Sprintf("uid-p%d/", pod)) }
}

// A stop shorter than the timeout costs a pause: no rank is fenced, and all tokens are the same.
func TestEngineStopsBriefly(t *testing.T) {
	a := startAliveWith(t, harness.Options{Pods: []int{1, 1, 1}, Hangs: true}, 3, "ExpertParallel")
	for range 3 {
		a.HangEngine(1, 0, true)
		time.Sleep(500 * time.Millisecond) // half of the minimum timeout
		a.HangEngine(1, 0, false)
		time.Sleep(300 * time.Millisecond)
	}
	for _, d := range a.keeper.Did() {
		require.NotEqual(t, "repair", d.Did)
	}
	a.end(t, 3)
}

// An agent hangs: engines keep serving. The operation in progress ends, and starts again after the agent is back.
func TestAgentIsUnresponsive(t *testing.T) {
	a := startAliveWith(t, harness.Options{Pods: []int{1, 2}, Hangs: true}, 3, "ExpertParallel")
	a.HangAgent(1, true)
	a.keeper.Kill()
	a.keep(t, 3, "TensorParallel")
	for _, r := range client(a.World).Repeat(t.Context(), a.trace, 4, 2) {
		require.NoError(t, r.Err, "the engines serve on")
	}
	a.HangAgent(1, false)
	a.await(t, "the switch", func(d harness.Did) bool { return d.Did == "apply" && d.Error == "" })
	for _, d := range a.keeper.Did() {
		require.NotEqual(t, "repair", d.Did, "nobody was lost")
	}
	a.end(t, 3)
}

// An agent hangs in the middle of a transition: the attempt ends, the old layout keeps serving, and the agent takes
// part again when it is back. The first layout is the first pass of the fault point, hence @2.
func TestAgentIsUnresponsiveInTransition(t *testing.T) {
	w := startTiny(t, harness.Options{Pods: []int{1, 1}, Faults: map[int]string{1: "stage.before_fetch=delay:3000@2"}})
	apply(t, w, 2, "ExpertParallel")
	hung := false
	began := time.Now()
	_, err := w.Apply(t.Context(), 2, "TensorParallel", nil, func(e harness.Event) {
		if e.Phase == "stage" && !hung {
			hung = true
			w.HangAgent(1, true)
		}
	})
	require.Error(t, err)
	require.True(t, hung)
	t.Logf("given up after %.1f s: %v", time.Since(began).Seconds(), err)
	for _, r := range client(w).Repeat(t.Context(), newTrace(t, 5, time.Second), 4, 2) {
		require.NoError(t, r.Err, "the old layout serves on")
	}
	w.HangAgent(1, false)
	apply(t, w, 2, "TensorParallel")
	audit(t, w, 2)
}
