package walk

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// randomStop has a number of ranks with divisors; every layer of the tiny model gets different groups.
func randomStop(random *rand.Rand) stop {
	s := stop{ranks: []int{2, 3, 4, 5, 6, 8}[random.IntN(6)], mode: "ExpertParallel"}
	var sizes []int // both of experts (6 granules) and of attention (6 query heads)
	for n := 1; n <= min(s.ranks, 6); n++ {
		if s.ranks%n == 0 {
			sizes = append(sizes, n)
		}
	}
	for layer := range 3 {
		s.shapes = append(s.shapes, fmt.Sprintf("%d=%d/%d", layer, sizes[random.IntN(len(sizes))], sizes[random.IntN(len(sizes))]))
	}
	return s
}

// From random layouts to others, under load, a third of the transitions with paused steps: after each step the pools
// match the layout and the answers are unchanged.
func TestRandomLayouts(t *testing.T) {
	for _, seed := range worlds.Cases(1, []uint64{11, 12}) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { walkAtRandom(t, seed) })
	}
}

func walkAtRandom(t *testing.T, seed uint64) {
	const stops = 13
	random := rand.New(rand.NewPCG(seed, 0))
	w := startTiny(t, harness.Options{Pods: []int{3, 2, 1, 2}})
	apply(t, w, 1, "ExpertParallel")
	tokens := answers(t, w)
	trace := newTrace(t, seed, 10*time.Second)
	halt, played := make(chan struct{}), make(chan []*load.Result, 1)
	go func() { played <- client(w).Play(t.Context(), trace, 4, halt) }()
	for i := range stops {
		s := randomStop(random)
		t.Logf("stop %d: %d ranks, %v", i, s.ranks, s.shapes)
		if random.IntN(3) == 0 {
			_, err := w.ApplyFast(t.Context(), s.ranks, s.mode, s.shapes)
			require.NoError(t, err, w.Died())
		} else {
			apply(t, w, s.ranks, s.mode, s.shapes...)
		}
		audit(t, w, s.ranks)
		requireSame(t, answers(t, w), tokens)
	}
	close(halt)
	walked := <-played
	apply(t, w, 1, "ExpertParallel")
	requireSame(t, walked, client(w).Repeat(t.Context(), trace, len(walked), 8))
}
