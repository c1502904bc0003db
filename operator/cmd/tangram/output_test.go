package main

import (
	"encoding/json"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// JSON keys have one style in all commands.
func TestJSONKeysAreCamelCase(t *testing.T) {
	camel := regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)
	for _, c := range []struct{ in, args string }{
		{"", "plan --geometry Mixtral-8x7B --from-ranks 2 --ranks 3"},
		{small, "balance --load - --ranks 2 --redundant-experts 2"},
		{small, "balance --load - --ranks 2 --budget-curve 4 --expert-bytes 9 --block-bytes 3 --kv-blocks 40 --kv-demand 30 --loss-per-block 0.002 --moe-seconds 0.012 --other-seconds 0.008"},
		{"", "simulate --rates 5x5 --policy TensorParallel --samples"},
		{"", "simulate --rates 5x40,5x2 --answer 60 --model Qwen3-30B-A3B --truth trtllm --policy threshold,calibrated"},
		{"", "simulate recommend --rates 5x2 --model Qwen3-30B-A3B --ranks 2"},
		{"", "simulate crossover --model Qwen3-30B-A3B --truth vllm"},
	} {
		code, out, errs := call(c.in, append(strings.Fields(c.args), "-o", "json")...)
		require.Zero(t, code, errs)
		var all any
		require.NoError(t, json.Unmarshal([]byte(out), &all))
		var walk func(any)
		walk = func(v any) {
			switch v := v.(type) {
			case map[string]any:
				for key, value := range v {
					if key == "figures" { // a map from descriptions to numbers
						continue
					}
					require.Regexp(t, camel, key, c.args)
					walk(value)
				}
			case []any:
				for _, value := range v {
					walk(value)
				}
			}
		}
		walk(all)
		code, out, errs = call(c.in, append(strings.Fields(c.args), "-o", "yaml")...)
		require.Zero(t, code, errs)
		require.NotEmpty(t, out)
	}
}

func TestVersion(t *testing.T) {
	code, out, errs := call("", "--version")
	require.Zero(t, code, errs)
	require.Regexp(t, `^tangram \S.*\n$`, out)
	built := func(settings ...debug.BuildSetting) string { return versionOf(&debug.BuildInfo{Settings: settings}) }
	commit, at := debug.BuildSetting{Key: "vcs.revision", Value: "621eb9e0123456789"}, debug.BuildSetting{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}
	require.Equal(t, "621eb9e01234 of 2026-01-02T03:04:05Z", built(commit, at, debug.BuildSetting{Key: "vcs.modified", Value: "false"}))
	require.Equal(t, "621eb9e01234 of 2026-01-02T03:04:05Z, with changes", built(commit, at, debug.BuildSetting{Key: "vcs.modified", Value: "true"}))
	require.Equal(t, "(unknown commit: built without version control)", built())
}

// Columns of a table have different heads, and no cell has Go's brackets.
func TestTableHeadsAreUnique(t *testing.T) {
	for args, start := range map[string]string{
		"plan --geometry Mixtral-8x7B --from-ranks 2 --ranks 3":                               "rank ",
		"simulate --rates 5x5 --policy TensorParallel --ttft 1":                               "policy ",
		"simulate recommend --rates 5x2 --model Qwen3-30B-A3B --ranks 2 --ttft 5":             "mode ",
		"plan --geometry Mixtral-8x7B --from-ranks 4 --ranks 4 --mode TensorParallel":         "rank ",
		"plan --geometry Mixtral-8x7B --from-ranks 4 --ranks 6 --ranks-per-pod 2":             "rank ",
		"simulate --rates 5x5 --hybrids all/1 --policy g8,t1 --concurrency 3":                 "policy ",
		"simulate --rates 5x5 --hybrids all/1 --policy ExpertParallel,g8,t1 --concurrency 12": "policy ",
	} {
		code, out, errs := call("", strings.Fields(args)...)
		require.Zero(t, code, errs)
		require.NotContains(t, out, "[", args)
		found := false
		for line := range strings.SplitSeq(out, "\n") {
			if !strings.HasPrefix(strings.TrimSpace(line), start) {
				continue
			}
			found = true
			heads := regexp.MustCompile(` {2,}`).Split(strings.TrimSpace(line), -1)
			seen := map[string]bool{}
			for _, h := range heads {
				require.False(t, seen[h], "%s: two columns %q", args, h)
				seen[h] = true
			}
		}
		require.True(t, found, out)
	}
}

// Repeated flips are printed once, with their number.
func TestPlan_WhenFlipsRepeat(t *testing.T) {
	code, out, errs := call("", "plan", "--geometry", "Mixtral-8x7B", "--from-ranks", "4", "--ranks", "4", "--mode", "TensorParallel", "--spare-banks", "3")
	require.Zero(t, code, errs)
	require.Contains(t, out, "\n11 flips: 10 x LAYOUT (3 layers), LAYOUT (2 layers)\n")
	require.NotRegexp(t, `\d{5}`, out, "numbers have commas and units")
}

// A world that cannot serve the arrival rate is reported as overloaded; one that only finishes a long answer is not.
// Progress ends with the last arrival.
func TestSimulate_WhenOverloaded(t *testing.T) {
	code, out, errs := call("", "simulate", "--rates", "100x100", "--answer", "500", "--ranks", "4", "--model", "Qwen3-30B-A3B", "--policy", "TensorParallel")
	require.Zero(t, code, errs)
	require.Contains(t, out, "TensorParallel: overloaded: the last request completes ")
	require.NotContains(t, errs, " 0 requests to come")
	for _, more := range [][]string{{"--rates", "100x1"}, {"--rates", "100x100", "--concurrency", "20", "--answer", "20"}, {"--rollout", "200"}} {
		code, out, errs = call("", append([]string{"simulate", "--ranks", "4", "--model", "Qwen3-30B-A3B", "--policy", "TensorParallel"}, more...)...)
		require.Zero(t, code, errs)
		require.NotContains(t, out, "overloaded")
	}
}

// Command-line errors are reported before a trace is read.
func TestSimulateRejectsFlagsBeforeReadingTrace(t *testing.T) {
	for want, flags := range map[string]string{
		"--policy is \"expert\"": "--policy expert",
		"--ranks is 0":           "--ranks 0",
		"no measured kernels for --model \"DeepSeek-V3\"": "--model DeepSeek-V3",
		"--concurrency is -1":                             "--concurrency -1",
		"an SLO needs a TTFT":                             "--policy ExpertParallel,width",
		"between --min-ranks 3 and":                       "--policy width --ttft 1 --ranks 2 --min-ranks 3 --max-ranks 4",
		"--hybrids is \"2\"":                              "--hybrids 2",
		"found --samples with -o table":                   "--samples",
		"no measured kernels for --prior \"best\"":        "--prior best",
		"found --prompt without --rates":                  "--prompt 5",
		"found --standby without policy width":            "--standby 1 --policy TensorParallel",
	} {
		code, _, errs := call("", append([]string{"simulate", "--trace", "there-is-none.csv"}, strings.Fields(flags)...)...)
		require.Equal(t, 2, code)
		require.Contains(t, errs, want)
	}
}
