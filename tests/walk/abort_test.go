package walk

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// One agent fails once in each phase. Before the permit: the driver reports the reason, all ranks keep serving in the
// old layout, nothing moved. After the permit, the driver continues: the same apply succeeds.
func TestAgentFailsInPhase(t *testing.T) {
	for _, c := range worlds.Cases(5, []struct {
		fault  string // at the second pass, because the first one is the first layout
		cause  string // "": the transition succeeds
		settle bool   // the abort failed, too: only the next apply brings the world to rest
		said   string // by the agent, if the driver has no error
	}{
		{"prepare.after_memory=error@2", "fault point prepare.after_memory", false, ""},
		{"stage.before=error@2,abort.before=error", "fault point stage.before", true, ""},
		{"permit.after_arm=error@2", "", false, "fault point permit.after_arm"},
		{"retire.before=error@2", "", false, "fault point retire.before"},
		{"stage.after_fetch=corrupt@2", "", false, "differs from its hash"},
		// `make test` runs only the cases above.
		{"prepare.before=error@2", "fault point prepare.before", false, ""},
		{"prepare.after=error@2", "fault point prepare.after", false, ""},
		{"stage.before=error@2", "fault point stage.before", false, ""},
		{"stage.before_verify=error@2", "fault point stage.before_verify", false, ""},
		{"stage.before_engine_map=error@2", "fault point stage.before_engine_map", false, ""},
		{"stage.after=error@2", "fault point stage.after", false, ""},
		{"permit.before_arm=error@2", "", false, "fault point permit.before_arm"},
		{"retire.after=error@2", "", false, "fault point retire.after"},
		{"stage.before_fetch=error@2", "", false, "fault point stage.before_fetch"}, // the source is queried again
	}) {
		t.Run(c.fault, func(t *testing.T) {
			w := startTiny(t, harness.Options{Pods: []int{1, 1}, Faults: map[int]string{1: c.fault}})
			apply(t, w, 2, "ExpertParallel")
			before, tokens := status(t, w), answers(t, w)
			trace := newTrace(t, 5, 10*time.Second)
			halt, played := make(chan struct{}), make(chan []*load.Result, 1)
			go func() { played <- client(w).Play(t.Context(), trace, 2, halt) }()
			record, err := w.Apply(t.Context(), 2, "TensorParallel", nil, nil)
			if c.cause != "" {
				require.ErrorContains(t, err, c.cause)
				require.NotNil(t, record)
				require.Contains(t, record.Error, c.cause)
				if !c.settle {
					require.ErrorContains(t, err, "the old layout stays active")
					requireUnmoved(t, status(t, w), before)
				}
				requireSame(t, answers(t, w), tokens)
				record, err = w.Apply(t.Context(), 2, "TensorParallel", nil, nil)
			}
			require.NoError(t, err, w.Died())
			require.Positive(t, record.PlannedFlips)
			close(halt)
			for _, r := range <-played {
				require.NoError(t, r.Err)
			}
			audit(t, w, 2)
			require.Greater(t, status(t, w)[0].Epoch, before[0].Epoch)
			requireSame(t, answers(t, w), tokens)
			log, err := os.ReadFile(filepath.Join(w.Dir(), "agent-p1.log"))
			require.NoError(t, err)
			require.Contains(t, string(log), c.said)
		})
	}
}
