package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The recommended offer keeps the SLO, and no cheaper one does. Here more ranks are better: the load needs them.
func TestRecommend(t *testing.T) {
	flags := []string{"simulate", "recommend", "--rates", "60x30", "--prompt", "1000", "--answer", "100", "--model", "Qwen3-30B-A3B", "--ttft", "0.3", "--tpot", "0.02", "--ranks", "6"}
	code, out, errs := call("", flags...)
	require.Zero(t, code, errs)
	require.Contains(t, out, "<- recommended")
	require.Contains(t, errs, "TensorParallel on 6 ranks")
	code, out, errs = call("", append(flags, "-o", "json")...)
	require.Zero(t, code, errs)
	var got struct {
		Offers []struct {
			Mode                string
			Ranks               int
			Refused             string
			Attained, RankHours float64
		}
		Best int
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got.Offers, 11)
	best := got.Offers[got.Best]
	require.GreaterOrEqual(t, best.Attained, .95)
	require.Greater(t, best.Ranks, 1, "one rank is too slow")
	for _, o := range got.Offers {
		require.Empty(t, o.Refused)
		if o.Attained >= .95 {
			require.GreaterOrEqual(t, o.RankHours, .99*best.RankHours, "%s on %d", o.Mode, o.Ranks)
			require.True(t, o.RankHours > 1.01*best.RankHours || o.Attained <= best.Attained)
		}
	}
	require.Less(t, got.Offers[0].Attained, .95)
}

func TestRecommendExplainsFailures(t *testing.T) {
	for want, flags := range map[string][]string{
		"no configuration with up to 2 ranks keeps TTFT 0.001 s": {"--rates", "5x5", "--ttft", "0.001", "--ranks", "2"},
		"an SLO needs a TTFT or a TPOT":                          {"--rates", "5x5", "--ttft", "0", "--tpot", "0"},
		"--ranks is 9; want 1 to 8":                              {"--rates", "5x5", "--ranks", "9"},
		"--ranks is 0; want 1 to 8":                              {"--rates", "5x5", "--ranks", "0"},
		"no measured kernels for --truth":                        {"--rates", "5x5", "--truth", "llama.cpp"},
		"found 0 of --trace, --rates":                            {},
		"invalid share of answers 2":                             {"--rates", "5x5", "--attainment", "2"},
	} {
		code, _, errs := call("", append([]string{"simulate", "recommend", "--model", "Qwen3-30B-A3B"}, flags...)...)
		require.NotZero(t, code, want)
		require.Contains(t, errs, want)
	}
	// A model that does not fit is reported for each width, and the search continues.
	code, out, errs := call("", "simulate", "recommend", "--rates", "20x1", "--ranks", "4", "--rank-gb", "80")
	require.NotZero(t, code)
	require.Contains(t, errs, "no configuration with up to 4 ranks")
	require.Contains(t, out, "leaves no memory for the KV cache on a rank of 80.00 GB: use more ranks or more memory per rank (experts")
}

// Replicas of hot experts reduce the busiest rank's share and shorten its steps, until they take KV that requests need.
// A drawn skew and the same skew from a file give the same result. Without a skew, no replicas are searched.
func TestRecommendRedundantExperts(t *testing.T) {
	type offer struct {
		Mode             string
		Ranks, Redundant int
		Imbalance        float64
		Refused          string
		Attained         float64
		PerToken         struct{ P50 float64 }
	}
	played := func(flags ...string) (offers []offer, best int) {
		code, out, errs := call("", append([]string{"simulate", "recommend", "--rates", "40x100", "--prompt", "1000", "--answer", "100", "--model", "Qwen3-30B-A3B", "--ranks", "4", "--ttft", "0.4", "--tpot", "0.06",
			"-o", "json"}, flags...)...)
		require.Contains(t, []int{0, 2}, code, errs)
		var got struct {
			Offers []offer
			Best   int
		}
		require.NoError(t, json.Unmarshal([]byte(out), &got))
		return got.Offers, got.Best
	}
	offers, best := played("--expert-skew", "2", "--redundant-experts", "40")
	require.GreaterOrEqual(t, best, 0)
	require.Zero(t, offers[best].Redundant, "none are needed")
	on4 := map[int]offer{}
	for _, o := range offers {
		if o.Mode == "TensorParallel" || o.Ranks == 1 {
			require.Zero(t, o.Redundant)
		}
		if o.Mode == "ExpertParallel" && o.Ranks == 4 {
			on4[o.Redundant] = o
		}
	}
	require.Len(t, on4, 5, "none; 1, 2, 4 and 8 on each rank")
	require.Greater(t, on4[0].Imbalance, 1.1)
	require.Less(t, on4[32].Imbalance, 1.05)
	require.Less(t, on4[32].PerToken.P50, on4[0].PerToken.P50)
	short, _ := played("--expert-skew", "2", "--redundant-experts", "200", "--rank-gb", "42")
	last := short[len(short)-2] // before mode TensorParallel of 4 ranks
	require.Equal(t, "ExpertParallel", last.Mode)
	require.Contains(t, last.Refused, "redundant experts")

	windows := make([]string, 2)
	for w := range windows {
		row := make([]string, 128)
		for e := range row {
			row[e] = "10"
		}
		row[7] = "1000" // more than a rank's even share
		windows[w] = "[[" + strings.Join(row, ",") + "]]"
	}
	path := filepath.Join(t.TempDir(), "load.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"tangram_load":1,"windows":[`+strings.Join(windows, ",")+`]}`), 0o600))
	offers, _ = played("--expert-load", path, "--redundant-experts", "4")
	for _, o := range offers {
		if o.Mode == "ExpertParallel" && o.Ranks == 4 {
			want := 1310 / (2270.0 / 4) // the hot expert and 31 others
			if o.Redundant == 4 {       // it is on all ranks
				want = 1
			}
			require.InDelta(t, want, o.Imbalance, .05, "%d redundant", o.Redundant)
		}
	}
	for want, flags := range map[string][]string{
		"without an expert load":                     {"--redundant-experts", "8"},
		"found both --expert-load and --expert-skew": {"--expert-skew", "1", "--expert-load", path},
		"the skew would count twice":                 {"--expert-skew", "1", "--routing", "power_law_1.2"},
		"--expert-skew: ":                            {"--expert-skew", "-1"},
		"--redundant-experts is -1":                  {"--expert-skew", "1", "--redundant-experts", "-1"},
		"has 16 experts per layer; want":             {"--expert-load", filepath.Join(docs, "placement", "loads.json")},
		"no such file":                               {"--expert-load", "none.json"},
		"only one flag can read standard input":      {"--rates", "", "--trace", "-", "--expert-load", "-"},
	} {
		code, _, errs := call("", append([]string{"simulate", "recommend", "--rates", "5x5", "--model", "Qwen3-30B-A3B", "--ranks", "2"}, flags...)...)
		require.Equal(t, 2, code, want)
		require.Contains(t, errs, want)
	}
}
