package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The width policy keeps an SLO that the initial ranks cannot keep, shrinks after the load, and gives a reason for each
// change. Ranks cost from their request on, and standby ranks always. Widths that do not fit into memory are reported
// and skipped.
func TestSimulateWidth(t *testing.T) {
	flags := []string{"simulate", "--rates", "240x10,600x45,600x10", "--prompt", "1500", "--answer", "150", "--model", "Qwen3-30B-A3B", "--rank-gb", "48", "--truth", "trtllm", "--ranks", "3", "--policy",
		"ExpertParallel,width", "--min-ranks", "2", "--max-ranks", "8", "--ttft", "2", "--tpot", "0.05", "--attainment", "0.9"}
	path := filepath.Join(t.TempDir(), "a.svg")
	code, out, errs := call("", append(flags, "--svg", path)...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "attained  rank-hours")
	require.Contains(t, errs, "width: not possible: ExpertParallel/2: memory")
	require.FileExists(t, path)
	picture, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(picture), "number of ranks")
	rows := map[string]struct {
		Policy           string
		Requests, Within int
		RankSeconds      float64
		Makespan         float64
		Switches         []struct {
			From, To, Why string
		}
	}{}
	for name, more := range map[string][]string{"alone": nil, "and one": {"--standby", "1"}} {
		code, out, errs = call("", append(append(flags, "-o", "json"), more...)...)
		require.Zero(t, code, errs)
		var got struct{ Policies []json.RawMessage }
		require.NoError(t, json.Unmarshal([]byte(out), &got))
		for _, raw := range got.Policies {
			r := rows["none"]
			require.NoError(t, json.Unmarshal(raw, &r))
			rows[r.Policy+" "+name] = r
		}
	}
	static, width, with := rows["ExpertParallel alone"], rows["width alone"], rows["width and one"]
	require.Less(t, float64(static.Within), .8*float64(static.Requests), "three ranks do not hold it")
	require.Greater(t, float64(width.Within), .85*float64(width.Requests))
	require.Greater(t, with.Within, width.Within, "nobody waits for a pod")
	require.NotEmpty(t, width.Switches)
	require.Less(t, width.RankSeconds, 6*width.Makespan)
	require.Equal(t, "ExpertParallel/3", width.Switches[0].From)
	require.Contains(t, width.Switches[0].Why, "More ranks are needed. ")
	require.Contains(t, width.Switches[len(width.Switches)-1].Why, "Fewer ranks suffice. ")
}

func TestBadWidths(t *testing.T) {
	for want, flags := range map[string][]string{
		"an SLO needs a TTFT or a TPOT":                           {},
		"from 5 to 4 ranks":                                       {"--ttft", "1", "--min-ranks", "5", "--max-ranks", "4"},
		"--ranks is 2; want a number between --min-ranks 3":       {"--ttft", "1", "--ranks", "2", "--min-ranks", "3", "--max-ranks", "8"},
		"--mode is \"Both\"; want ExpertParallel, TensorParallel": {"--ttft", "1", "--mode", "Both"},
		"--hybrids is \"2\"; want EXPERT_GROUP":                   {"--ttft", "1", "--hybrids", "2"},
		"invalid share of answers 90":                             {"--ttft", "1", "--attainment", "90"},
		"--pod-seconds is -1":                                     {"--ttft", "1", "--pod-seconds", "-1"},
		"--standby at most --max-ranks":                           {"--ttft", "1", "--standby", "9"},
		"--max-ranks is 9; want 1 to 8":                           {"--ttft", "1", "--max-ranks", "9"},
		"the world cannot start with --ranks 1":                   {"--ttft", "1", "--ranks", "1", "--rank-gb", "48", "--max-ranks", "4"},
	} {
		code, _, errs := call("", append([]string{"simulate", "--rates", "5x5", "--model", "Qwen3-30B-A3B", "--policy", "width"}, flags...)...)
		require.Equal(t, 2, code, "%s: %s", want, errs)
		require.Contains(t, errs, want)
	}
}

// After a burst that no width could serve in time, the width shrinks once. With few requests it was once retried
// repeatedly (10 and 9 changes): the burst was replayed with the context of the requests that happened to decode.
func TestWidthDoesNotOscillateAfterLostBurst(t *testing.T) {
	for _, c := range []struct{ truth, burst string }{{"sglang", "40x60"}, {"trtllm", "40x90"}} {
		code, out, errs := call("", "simulate", "--model", "Qwen3-30B-A3B", "--ranks", "4", "--rank-gb", "48", "--truth", c.truth, "--policy", "width", "--min-ranks", "3", "--max-ranks", "8",
			"--ttft", "2", "--tpot", "0.1", "--pod-seconds", "60", "--rates", "300x8,"+c.burst+",3300x8", "--prompt", "1536", "--answer", "192")
		require.Zero(t, code, errs)
		wider := strings.Count(out, ": More ranks are needed. ") + strings.Count(out, "comes closest")
		changes := strings.Count(out, "\nwidth at ")
		require.GreaterOrEqual(t, wider, 1, out)
		require.LessOrEqual(t, wider, 2, out)
		require.LessOrEqual(t, changes, 6, out)
	}
}

// With mode Auto, mode and width are decided together. The result is at least as fast as ExpertParallel at about as
// many rank-hours, and needs fewer than TensorParallel.
func TestSimulateModeAndWidth(t *testing.T) {
	type figures struct {
		Requests, Within        int
		RankSeconds, LatencySum float64
		Switches                []struct{ From, To string }
	}
	played := map[string]figures{}
	for _, mode := range []string{"ExpertParallel", "TensorParallel", "Auto"} {
		code, out, errs := call("", "simulate", "--rates", "240x10,600x45,600x10", "--prompt", "1500", "--answer", "150", "--model", "Qwen3-30B-A3B", "--rank-gb", "48", "--truth", "trtllm", "--ranks", "3",
			"--policy", "width", "--min-ranks", "3", "--max-ranks", "8", "--ttft", "2", "--tpot", "0.05", "--mode", mode, "-o", "json")
		require.Zero(t, code, errs)
		var got struct{ Policies []figures }
		require.NoError(t, json.Unmarshal([]byte(out), &got))
		played[mode] = got.Policies[0]
	}
	auto := played["Auto"]
	t.Logf("%+v", played)
	require.Less(t, auto.LatencySum, played["ExpertParallel"].LatencySum)
	require.Less(t, auto.LatencySum, played["TensorParallel"].LatencySum)
	require.Less(t, auto.RankSeconds, 1.05*played["ExpertParallel"].RankSeconds)
	require.Less(t, auto.RankSeconds, .9*played["TensorParallel"].RankSeconds)
	require.Greater(t, auto.Within, played["TensorParallel"].Within)
	modes := map[string]bool{}
	for _, s := range auto.Switches {
		mode, _, _ := strings.Cut(s.To, "/")
		modes[mode] = true
	}
	require.Len(t, modes, 2)
}
