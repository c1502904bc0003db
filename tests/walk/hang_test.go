package walk

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
)

// An engine is stopped for longer than its peers wait. It closes no connection and its agent says that it is at work; the others
// go on without it. When it wakes it has no part in anything, and joins again under another name.
func TestAnEngineHangs(t *testing.T) {
	for _, mode := range []string{"Expert", "Tensor"} {
		t.Run(mode, func(t *testing.T) {
			a := startAlive(t, []int{1, 2, 1}, 4, mode) // of the pod with two, one hangs
			a.HangEngine(1, 1, true)
			d := a.await(t, "a repair", repaired)
			require.Len(t, d.Record.Lost, 1)
			require.Contains(t, d.Record.Lost[0].Why, "hangs")
			a.HangEngine(1, 1, false)
			a.await(t, "full width again", func(d harness.Did) bool { return d.Did == "apply" && d.Record.FromEpoch > 1 && d.Error == "" })
			a.end(t, 4)
		})
	}
}

// Stopped for less than that it costs a pause: nobody is fenced, and all tokens are the same.
func TestAnEngineStopsForAMoment(t *testing.T) {
	a := startAlive(t, []int{1, 1, 1}, 3, "Expert")
	for range 3 {
		a.HangEngine(1, 0, true)
		time.Sleep(500 * time.Millisecond) // half of the least limit
		a.HangEngine(1, 0, false)
		time.Sleep(300 * time.Millisecond)
	}
	for _, d := range a.keeper.Did() {
		require.NotEqual(t, "repair", d.Did)
	}
	a.end(t, 3)
}

// An agent hangs: engines serve on. What is under way ends, and begins again when it is back.
func TestAnAgentHangs(t *testing.T) {
	a := startAlive(t, []int{1, 2}, 3, "Expert")
	a.HangAgent(1, true)
	a.keeper.Kill()
	a.keep(t, 3, "Tensor")
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

// An agent hangs in the middle of a transition: the attempt ends, the old layout serves on, and the agent takes part again
// when it is back.
func TestAnAgentHangsInATransition(t *testing.T) {
	w := startTiny(t, harness.Options{Pods: []int{1, 1}, Faults: map[int]string{1: "stage.before_fetch=delay:3000@2"}}) // the first layout is the first
	apply(t, w, 2, "Expert")
	hung := false
	began := time.Now()
	_, err := w.Apply(t.Context(), 2, "Tensor", nil, func(e harness.Event) {
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
	apply(t, w, 2, "Tensor")
	audit(t, w, 2)
}
