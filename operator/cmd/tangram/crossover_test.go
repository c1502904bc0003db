package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The description of a crossing agrees with its points. The picture has a line per crossover and the published
// thresholds.
func TestCrossover(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.svg")
	code, out, errs := call("", "simulate", "crossover", "--model", "Qwen3-30B-A3B", "--context", "512,8192", "-o", "json", "--svg", path)
	require.Zero(t, code, errs)
	var report struct {
		Crossovers []struct {
			Engine                string
			Context, Below, Above int
			Points                []struct {
				Requests       int
				Expert, Tensor struct{ Dense, Attention, Experts, Around float64 }
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	got := report.Crossovers
	require.Len(t, got, 6)
	for _, c := range got {
		require.Len(t, c.Points, 10)
		for _, at := range c.Points {
			e, x := at.Expert.Dense+at.Expert.Attention+at.Expert.Experts+at.Expert.Around, at.Tensor.Dense+at.Tensor.Attention+at.Tensor.Experts+at.Tensor.Around
			if at.Requests <= c.Below {
				require.LessOrEqual(t, x, e, "%s %d", c.Engine, at.Requests)
			}
			if c.Above > 0 && at.Requests >= c.Above {
				require.Less(t, e, x, "%s %d", c.Engine, at.Requests)
			}
		}
	}
	for i := range 3 {
		require.Greater(t, got[i].Below, got[i+3].Below, "%s: longer contexts want mode ExpertParallel sooner", got[i].Engine)
	}
	picture, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, words := range []string{"<svg", "sglang, power_law_1.2, 8192 tokens", "published thresholds: 205 and 256"} {
		require.Contains(t, string(picture), words)
	}
	for want, flags := range map[string][]string{
		"both modes are the same on one rank":       {"--ranks", "1"},
		"no measured kernels for --model":           {"--model", "gpt-2"},
		"no measured kernels for --truth":           {"--truth", "llama.cpp"},
		"--context is 0; want 1 to":                 {"--context", "0"},
		"--svg: open none/a.svg":                    {"--svg", "none/a.svg"},
		"found 18 crossovers to plot; want 1 to 12": {"--routing", "balanced,power_law_1.01,power_law_1.2", "--context", "1,2", "--svg", path},
		"--ranks is 9; want 1 to 8":                 {"--ranks", "9"},
	} {
		code, _, errs := call("", append([]string{"simulate", "crossover"}, flags...)...)
		require.Equal(t, 2, code, want)
		require.Contains(t, errs, want)
	}
}
