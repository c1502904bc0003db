package kernels

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Accuracy of the extrapolation where it can be checked: eight ranks extrapolated from two and four, against eight as
// measured. The root mean square of the log ratio is below the deviation that the cost model adds per doubling
// (costmodel.Options.BeyondTables), which must also cover collectives between nodes.
func TestExtrapolationMatchesMeasuredWidths(t *testing.T) {
	for _, model := range Models() {
		table, err := Open(model)
		require.NoError(t, err)
		for _, of := range []Kind{Expert(2).Kind(), Tensor(2).Kind()} {
			square, n, worst := 0.0, 0.0, 0.0
			for _, engine := range table.Engines() {
				at := func(ranks int) *Step { return step(t, model, engine, "power_law_1.2", of.On(ranks)) }
				guessed, truth := between(at(2), at(4), of.On(8)), at(8)
				for tokens := 1; tokens <= 512; tokens *= 2 {
					seconds := func(s *Step) float64 {
						each := (tokens + s.Shape().Groups() - 1) / s.Shape().Groups()
						return s.Even(Load{Decode: each, Context: each * 2048}, tokens)
					}
					off := math.Log(seconds(guessed) / seconds(truth))
					square, n, worst = square+off*off, n+1, max(worst, math.Abs(off))
				}
			}
			t.Logf("%s %v: %.3f, worst %.3f", model, of.On(8), math.Sqrt(square/n), worst)
			require.Less(t, math.Sqrt(square/n), .35, "%s %v", model, of.On(8))
		}
	}
}

func TestGuess(t *testing.T) {
	const model = "Qwen3-235B-A22B"
	table, err := Open(model)
	require.NoError(t, err)
	guess := func(s Shape) *Step {
		t.Helper()
		out, err := Guess(table, view(t, model), "trtllm", "balanced", s)
		require.NoError(t, err)
		require.Equal(t, s, out.Shape())
		return out
	}
	within, err := At(table, view(t, model), "trtllm", "balanced", Expert(6))
	require.NoError(t, err)
	require.Equal(t, within, guess(Expert(6)))
	require.Zero(t, guess(Expert(8)).Beyond())
	require.InDelta(t, 1, guess(Tensor(16)).Beyond(), 1e-12)
	require.InDelta(t, math.Log2(12./8), guess(Expert(12)).Beyond(), 1e-12)
	for _, of := range []Kind{Expert(2).Kind(), Tensor(2).Kind(), {AllRanks, 1}, {2, 1}} {
		four, eight, sixteen := guess(of.On(4)), guess(of.On(8)), guess(of.On(16))
		for _, tokens := range []int{1, 64, 1024} {
			require.InEpsilon(t, eight.moe.at(tokens)/four.moe.at(tokens), sixteen.moe.at(tokens)/eight.moe.at(tokens), .05, "%v", of)
		}
	}
	for want, s := range map[string]Shape{"nothing is guessed": Expert(65), "divide": {12, 5, 1}} {
		_, err := Guess(table, view(t, model), "trtllm", "balanced", s)
		require.ErrorContains(t, err, want)
	}
	_, err = Guess(table, view(t, model), "vllm", "balanced", Shape{16, 2, 1})
	require.ErrorContains(t, err, "was not measured")
}
