package simplot

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/simulator"
)

// played is made by hand: 100 s, two requests at 10 s and one at 90 s, a switch at 50 s and a wider world at 75 s.
func played() Played {
	return Played{Policy: "by hand", Result: simulator.Result{Makespan: 100,
		Samples: []simulator.Sample{{At: 0, Mode: "TensorParallel/4", Running: 1, Waiting: 2}, {At: 50, Mode: "ExpertParallel/4", Running: 7}, {At: 75, Mode: "ExpertParallel/8"}, {At: 99, Mode: "ExpertParallel/8"}},
		Answers: []simulator.Answer{{Arrival: 10, First: 2, Rest: 9, Output: 10}, {Arrival: 10, First: 1, Output: 1}, {Arrival: 90, First: .5, Rest: 1, Output: 11}}}}
}

func TestCurves(t *testing.T) {
	p, over := played(), axis{100}
	at := func(values []float64, seconds float64) float64 { return values[over.bin(seconds)] }
	require.InDelta(t, 3, at(arrivals(p, over), 10)*100/bins+at(arrivals(p, over), 90)*100/bins, 1e-9)
	require.InDelta(t, 2, at(arrivals(p, over), 10)*100/bins, 1e-9)
	for seconds, want := range map[float64]float64{0: 3, 49: 3, 51: 7, 80: 0} {
		require.InDelta(t, want, at(inside(p, over), seconds), 0, seconds)
	}
	require.InDelta(t, 2, at(firstToken(p, over), 10), 0)
	require.InDelta(t, 1000, at(perToken(p, over), 10), 1e-9, "of those with more than one token")
	require.InDelta(t, 100, at(perToken(p, over), 90), 1e-9)
	require.True(t, math.IsNaN(at(firstToken(p, over), 50)), "nobody came")
	for seconds, want := range map[float64][2]float64{0: {0, 4}, 49: {0, 4}, 51: {1, 4}, 76: {1, 8}, 99: {1, 8}} {
		require.InDelta(t, want[0], at(mode(p, over), seconds), 0, seconds)
		require.InDelta(t, want[1], at(ranks(p, over), seconds), 0, seconds)
	}
	longer := axis{200}
	for _, of := range []curve{inside, mode, ranks} {
		require.True(t, math.IsNaN(of(p, longer)[longer.bin(150)]), "it was done before")
	}
}

func TestDrawIsDeterministic(t *testing.T) {
	var one, two bytes.Buffer
	require.NoError(t, Draw(&one, []Played{played(), played()}))
	require.NoError(t, Draw(&two, []Played{played(), played()}))
	require.Equal(t, one.String(), two.String())
	for _, words := range []string{"<svg", "by hand", "time to first token", "TensorParallel", "number of ranks"} {
		require.Contains(t, one.String(), words)
	}
	require.Less(t, one.Len(), 100_000)
	require.ErrorContains(t, Draw(&one, nil), "0 policies")
	require.ErrorContains(t, Draw(&one, []Played{{}}), "the simulation took no time")
	require.ErrorContains(t, Draw(&one, make([]Played, 7)), "found 7 policies to plot; want 1 to 6")
	require.NotContains(t, strings.ToLower(one.String()), "nan")
}
