package walk

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// A rank dies or hangs while rows are in transit to experts, or their sums back: it has sent to one of the others and
// not to the next. Their logs, their agents and the record of the repair agree on what they missed: cause, operation
// and layer.
func TestMissingRankIsReportedConsistently(t *testing.T) {
	for _, c := range worlds.Cases(1, []struct{ name, doing, cause string }{
		{"dies in dispatch", "dispatch", "gone"}, {"hangs in combine", "combine", "silent"},
		{"dies in combine", "combine", "gone"}, {"hangs in dispatch", "dispatch", "silent"},
	}) {
		t.Run(c.name, func(t *testing.T) {
			a := startAliveWith(t, harness.Options{Pods: []int{1, 1, 1}, FaultDirs: true, Hangs: c.cause == "silent"}, 3, "ExpertParallel")
			point := filepath.Join(a.FaultDir(1), "engine.in_"+c.doing)
			require.NoError(t, os.WriteFile(point+".armed", nil, 0o600))
			require.Eventually(t, func() bool {
				_, err := os.Stat(point + ".hit")
				return err == nil
			}, worlds.Hang, time.Millisecond)
			if c.cause == "gone" {
				a.KillPod(1)
			} else {
				a.HangEngine(1, 0, true)
			}
			d := a.await(t, "a repair without it", func(d harness.Did) bool { return repaired(d) && slices.ContainsFunc(d.Record.Lost, ofPod(1)) })
			t.Logf("missed: %+v", d.Record.Missed)
			require.NotEmpty(t, d.Record.Missed)
			require.Equal(t, d.Record.Lost[0].Member, d.Record.Missed[0].Member, "who is lost comes first")
			doings := []string{}
			for _, m := range d.Record.Missed {
				pod := strings.TrimPrefix(strings.Split(m.By, "/")[0], "uid-p")
				log, err := os.ReadFile(filepath.Join(a.Dir(), "engine-p"+pod+"-0.log"))
				require.NoError(t, err)
				require.Contains(t, string(log), "; "+m.Text(), "the engine's log")
				metrics := a.AgentMetricsURLs()[slices.Index(a.Living(), int(pod[0]-'0'))]
				for label, value := range map[string]string{"cause": m.Cause, "doing": m.Doing} {
					counted, err := worlds.CounterBy(t.Context(), metrics, "tangram_agent_unresponsive_ranks_total", label)
					require.NoError(t, err)
					require.Positive(t, counted[value], "%s %s, its agent counted %v", label, value, counted)
				}
				if m.Member == d.Record.Lost[0].Member {
					require.Equal(t, c.cause, m.Cause)
					doings = append(doings, m.Doing)
				}
			}
			// The rank that received its rows continues and misses it in the next operation. If the other rank
			// disconnects first, it receives only that.
			require.Subset(t, []string{"dispatch", "combine", "words"}, doings)
			if c.cause == "gone" {
				require.Contains(t, doings, c.doing)
				_, err := a.AddPod(t.Context(), 1)
				require.NoError(t, err)
			} else {
				require.NoError(t, os.Remove(point+".armed"))
				a.HangEngine(1, 0, false)
			}
			a.await(t, "full width again", func(d harness.Did) bool { return d.Did == "apply" && d.Record.FromEpoch > 1 && d.Error == "" })
			a.end(t, 3)
		})
	}
}
