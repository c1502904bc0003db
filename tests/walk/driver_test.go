package walk

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// A driver that is killed in the middle leaves a world that serves. The next driver completes or aborts the open
// attempt, and reaches the first one's target.
func TestDriverIsKilled(t *testing.T) {
	for _, phase := range worlds.Cases(2, []string{"stage", "flip", "prepare", "retire"}) {
		t.Run(phase, func(t *testing.T) {
			w := startTiny(t, harness.Options{Pods: []int{2, 2}})
			apply(t, w, 2, "ExpertParallel")
			tokens := answers(t, w)
			trace := newTrace(t, 6, 10*time.Second)
			halt, played := make(chan struct{}), make(chan []*load.Result, 1)
			go func() { played <- client(w).Play(t.Context(), trace, 2, halt) }()

			killed := 0
			for flip := 1; flip <= 3; flip++ { // JOIN, and the two flips of the layout change
				ctx, kill := context.WithCancel(t.Context()) // the end of the context kills the driver with SIGKILL
				_, err := w.Apply(ctx, 4, "TensorParallel", nil, func(e harness.Event) {
					if e.Flip == min(flip, e.Flips) && e.Phase == phase {
						kill()
					}
				})
				kill()
				if err != nil {
					require.ErrorContains(t, err, "killed")
					killed++
				}
				requireSame(t, answers(t, w), tokens)
			}
			require.Positive(t, killed)
			t.Logf("killed %d drivers", killed)
			apply(t, w, 4, "TensorParallel")
			audit(t, w, 4)
			close(halt)
			for _, r := range <-played {
				require.NoError(t, r.Err)
			}
			requireSame(t, answers(t, w), tokens)
		})
	}
}
