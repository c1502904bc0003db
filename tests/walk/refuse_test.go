package walk

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
)

// An impossible shape is rejected with the numbers and a possible one; nothing moves, and the old layout keeps serving,
// bit for bit.
func TestInvalidShapesAreRejected(t *testing.T) {
	w := startTiny(t, harness.Options{Pods: []int{3, 3, 3, 2}})
	apply(t, w, 2, "ExpertParallel")
	before, tokens := status(t, w), answers(t, w)
	for _, c := range []struct {
		name   string
		ranks  int
		mode   string
		shapes []string
		want   []string
	}{
		{"more ranks than granules", 7, "TensorParallel", nil, []string{"7 ranks share an expert of 6 granules", "at most 6"}},
		{"more ranks than query heads", 7, "ExpertParallel", []string{"0-2=1/7"}, []string{"layer 0", "7 ranks share 6 query heads", "at most 6"}},
		{"more ranks than experts", 11, "ExpertParallel", nil, []string{"11 expert groups of 1 ranks for 10 experts", "at most 10"}},
		{"width 0", 0, "ExpertParallel", nil, []string{"--ranks 0", "at least 1"}},
		{"negative width", -1, "ExpertParallel", nil, []string{"--ranks -1", "at least 1"}},
		{"more ranks than there are", 12, "ExpertParallel", nil, []string{"12 ranks are desired, but the agents have 11", "start more pods"}},
		{"group of 0", 2, "ExpertParallel", []string{"0=0/1"}, []string{"0=0/1", "at least 1"}},
		{"expert groups that do not divide", 2, "ExpertParallel", []string{"0=3/1"}, []string{"expert groups of 3 do not divide 2 ranks"}},
		{"attention groups that do not divide", 3, "ExpertParallel", []string{"1=1/2"}, []string{"layer 1", "attention groups of 2 do not divide 3 ranks"}},
		{"a layer that is not", 2, "ExpertParallel", []string{"3=1/1"}, []string{"layer 3 of 3"}},
		{"a mode that is not", 2, "Diagonal", nil, []string{`unknown mode "Diagonal"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.Apply(t.Context(), c.ranks, c.mode, c.shapes, nil)
			for _, text := range c.want {
				require.ErrorContains(t, err, text)
			}
			requireUnmoved(t, status(t, w), before)
			requireSame(t, answers(t, w), tokens)
		})
	}
	apply(t, w, 10, "ExpertParallel") // the number of experts
	audit(t, w, 10)
	apply(t, w, 6, "TensorParallel") // the number of granules and heads
	audit(t, w, 6)
	requireSame(t, answers(t, w), tokens)
}

// One rank cannot hold the demo model in 64 MiB: rejected with the numbers.
func TestTooLittleMemory(t *testing.T) {
	w := start(t, harness.Options{Pods: []int{1}, Memory: 64 << 20})
	_, err := w.Apply(t.Context(), 1, "ExpertParallel", nil, nil)
	require.ErrorContains(t, err, fmt.Sprintf("its pool has %d", 64<<20))
	all := status(t, w)
	require.Zero(t, all[0].Epoch)
	require.Zero(t, all[0].Ranks[0].MemoryMapped)
}

// Both layouts fit, but not the transition: the old bank and the new one exist at the same time.
func TestTooLittleMemoryForPeak(t *testing.T) {
	roomy := start(t, harness.Options{Pods: []int{2}})
	apply(t, roomy, 2, "ExpertParallel")
	need := uint64(0)
	for _, r := range status(t, roomy)[0].Ranks {
		need = max(need, r.MemoryMapped)
	}
	apply(t, roomy, 2, "TensorParallel")
	for _, r := range status(t, roomy)[0].Ranks {
		need = max(need, r.MemoryMapped)
	}
	roomy.Stop()

	pool := need + 1<<20
	w := start(t, harness.Options{Pods: []int{2}, Memory: pool})
	apply(t, w, 2, "ExpertParallel")
	before, tokens := status(t, w), answers(t, w)
	_, err := w.Apply(t.Context(), 2, "TensorParallel", nil, nil)
	require.ErrorContains(t, err, "at its peak")
	require.ErrorContains(t, err, fmt.Sprintf("its pool has %d", before[0].Ranks[0].MemoryBytes))
	requireUnmoved(t, status(t, w), before)
	requireSame(t, answers(t, w), tokens)
}
