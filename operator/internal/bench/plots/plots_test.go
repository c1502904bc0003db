package plots

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The plots in docs/placement match the bench output there.
func TestPlacementPlotsMatchBenchOutput(t *testing.T) {
	docs, made := "../../../../docs/placement", t.TempDir()
	eplb, err := os.Open(filepath.Join(docs, "eplb.jsonl"))
	require.NoError(t, err)
	defer eplb.Close() //nolint:errcheck // only read
	predict, err := os.Open(filepath.Join(docs, "predict.jsonl"))
	require.NoError(t, err)
	defer predict.Close() //nolint:errcheck // only read
	require.NoError(t, Draw(eplb, predict, made))
	for _, name := range []string{"moves.svg", "floor.svg", "forecast.svg"} {
		want, err := os.ReadFile(filepath.Join(docs, name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(made, name))
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "draw them anew: tangram-bench plots")
	}
}

// So does the plot in docs/transitions.
func TestGapsPlotMatchesBenchOutput(t *testing.T) {
	docs, made := "../../../../docs/transitions", t.TempDir()
	throughput, err := os.Open(filepath.Join(docs, "throughput-during.jsonl"))
	require.NoError(t, err)
	defer throughput.Close() //nolint:errcheck // only read
	require.NoError(t, Gaps(throughput, made))
	want, err := os.ReadFile(filepath.Join(docs, "gaps.svg"))
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(made, "gaps.svg"))
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "draw it anew: tangram-bench plots")
}

func TestGapsRejectsInvalidOutput(t *testing.T) {
	const (
		begin  = `{"bench":"throughput-during","plot":"gaps","steps":"paced",`
		fast   = begin + `"strategy":"fast","step_ms":50,"at":[1],"gap_ms":[2],"flips":[1]}` + "\n"
		smooth = fast + begin + `"strategy":"smooth",`
	)
	for want, in := range map[string]string{
		"it has no lines":                     "",
		"no gaps of strategy smooth":          fast,
		"strategy smooth: no list \"gap_ms\"": smooth + `"at":[1]}`,
		"2 times and 1 gaps":                  smooth + `"at":[1,2],"gap_ms":[2],"flips":[]}`,
		"entry 0 of \"at\" is no number":      smooth + `"at":["x"],"gap_ms":[2],"flips":[]}`,
		`has no number "step_ms"`:             smooth + `"at":[1],"gap_ms":[2],"flips":[1]}`,
	} {
		require.ErrorContains(t, Gaps(strings.NewReader(in), t.TempDir()), want)
	}
}

func TestDrawRejectsInvalidOutput(t *testing.T) {
	const eplb, predict = `{"bench":"eplb","workload":"A","policy":"full"}`, `{"bench":"predict","drift":"d"}`
	for want, in := range map[string][2]string{
		"eplb: it has no lines":          {"", predict},
		"line 1: it is of bench predict": {predict, predict},
		"line 2: unexpected end":         {eplb + "\n{", predict},
		`has no number "moved_share"`:    {eplb, predict},
		"bench predict: it has no lines": {eplb, `{"bench":"predict","metrics":{}}`},
	} {
		require.ErrorContains(t, Draw(strings.NewReader(in[0]), strings.NewReader(in[1]), t.TempDir()), want)
	}
}
