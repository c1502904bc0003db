package rebalance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/layout"
	"tangram.dev/operator/pkg/placement"
)

// The number of redundant experts is the smallest that gains as much as more would, and that fits.
func TestAutomatic(t *testing.T) {
	v := view(t, 8, 1)
	now := plan(t, v, nil, 4, layout.Shape{Mode: layout.Expert}).Final
	hot := [][]float64{{16, 16, 0, 0, 0, 0, 0, 0}} // two copies of each make it even
	settings := Settings{Redundant: 16, Automatic: true, MinGain: .01}
	d, err := Decide(v, now, hot, settings)
	require.NoError(t, err)
	require.Equal(t, 4, d.Redundant)
	require.InDelta(t, 1, d.After, 1e-9)
	require.Contains(t, d.Why, "With 4 redundant experts per layer (limit 16, rounded up to whole slots per rank), balancedness 1.000 is reachable, 0.500 without")

	settings.Fits = func(placement [][][]uint32) error {
		if len(placement[0][0])+len(placement[0][1])+len(placement[0][2])+len(placement[0][3]) > 8 {
			return errors.New("no memory")
		}
		return nil
	}
	d, err = Decide(v, now, [][]float64{{16, 16, 1, 0, 0, 0, 0, 0}}, settings)
	require.NoError(t, err)
	require.Zero(t, d.Redundant)
	require.Contains(t, d.Why, "More redundant experts do not fit in memory.")
	settings.Automatic = false
	_, err = Decide(v, now, hot, settings)
	require.ErrorIs(t, err, ErrTooBig)
	require.ErrorContains(t, err, "16 redundant experts per layer: no memory")
}

// From none to the most in equal steps of whole ranks, with the last one possibly shorter, as fine as the number of
// candidates allows.
func TestTriedCandidates(t *testing.T) {
	for ranks := 1; ranks <= 9; ranks++ {
		for most := range 300 {
			got := tried(most, ranks)
			require.Zero(t, got[0])
			require.Equal(t, most, got[len(got)-1], "%d ranks", ranks)
			require.LessOrEqual(t, len(got), choices)
			if most == 0 {
				require.Len(t, got, 1)
				continue
			}
			if step := got[1]; len(got) > 2 {
				require.Zero(t, step%ranks)
				for i := 1; i < len(got)-1; i++ {
					require.Equal(t, i*step, got[i])
				}
				require.LessOrEqual(t, most-got[len(got)-2], step)
				finer := step - ranks
				require.True(t, finer == 0 || finer*(choices-1) < most, "%d ranks, %d at most: steps of %d would do", ranks, most, finer)
			} else {
				require.LessOrEqual(t, most, ranks)
			}
		}
	}
}

// By definition: the first of the candidates that reaches the best one within MinGain.
func TestAutomaticChoosesFewestSufficient(t *testing.T) {
	const seed = 2
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	chosen := map[int]bool{}
	for range 40 {
		n := 2 + dice.IntN(3)
		v := view(t, uint32(n+dice.IntN(8)), uint32(1+dice.IntN(2)))
		now := plan(t, v, nil, n, layout.Shape{Mode: layout.Expert}).Final
		forecast := make([][]float64, v.MoELayers())
		for o := range forecast {
			for range v.Proto.Experts {
				forecast[o] = append(forecast[o], float64(dice.IntN(10)*dice.IntN(100)))
			}
		}
		s := Settings{Redundant: dice.IntN(3 * n), Automatic: true, MinGain: float64(dice.IntN(3)) * .04}
		numbers, reach := tried(s.Redundant, n), []float64{}
		for _, redundant := range numbers {
			w := within{v, now, Whole(now), forecast}
			problem, err := w.problem(redundant)
			require.NoError(t, err)
			var planner placement.Planner
			full, err := planner.Full(problem, placement.Options{})
			require.NoError(t, err)
			balance, _ := full.Balance()
			reach = append(reach, balance)
		}
		best := slices.Max(reach)
		at := slices.IndexFunc(reach, func(b float64) bool { return b >= best-s.MinGain })
		chosen[at] = true
		got, err := Decide(v, now, forecast, s)
		require.NoError(t, err)
		fixed := s
		fixed.Automatic, fixed.Redundant = false, numbers[at]
		want, err := Decide(v, now, forecast, fixed)
		require.NoError(t, err)
		want.Why += fmt.Sprintf(" With %d redundant experts per layer (limit %d, rounded up to whole slots per rank), balancedness %.3f is reachable, %.3f without, %.3f at best.",
			want.Redundant, s.Redundant, reach[at], reach[0], best)
		require.Equal(t, want, got)
	}
	require.GreaterOrEqual(t, len(chosen), 3)
}

// If no candidate fits, fewer and fewer are tried, down to none, and the error is that of the last.
func TestAutomaticTriesFewerUntilOneFits(t *testing.T) {
	v := view(t, 8, 1)
	now := plan(t, v, nil, 4, layout.Shape{Mode: layout.Expert}).Final
	hot := [][]float64{{16, 16, 16, 0, 0, 0, 0, 0}} // even with five copies, better with four than with none
	fits, asked := 4, 0                             // fits: the number of the first check that succeeds
	s := Settings{Redundant: 6, Automatic: true, Fits: func([][][]uint32) error {
		if asked++; asked < fits {
			return errors.New("no memory")
		}
		return nil
	}}
	_, err := Decide(v, now, hot, s)
	require.ErrorIs(t, err, ErrTooBig)
	require.ErrorContains(t, err, ": 0 redundant experts per layer: no memory")
	require.Equal(t, 3, asked)
	for i, redundant := range []int{8, 4, 0} { // 6, rounded up to whole slots of ranks, is 8
		fits, asked = i+1, 0
		d, err := Decide(v, now, hot, s)
		require.NoError(t, err)
		require.Equal(t, redundant, d.Redundant)
		require.Equal(t, redundant < 8, strings.HasSuffix(d.Why, " More redundant experts do not fit in memory."), d.Why)
	}
}

// Invalid layouts and forecasts are rejected before any choice.
func TestAutomaticRejectsInvalidInput(t *testing.T) {
	v := view(t, 8, 1)
	even := []float64{1, 1, 1, 1, 1, 1, 1, 1}
	tensor := plan(t, v, nil, 2, layout.Shape{Mode: layout.Tensor}).Final
	_, err := Decide(v, tensor, [][]float64{even}, Settings{Automatic: true})
	require.ErrorContains(t, err, "only whole experts are placed")
	now := plan(t, v, nil, 2, layout.Shape{Mode: layout.Expert}).Final
	_, err = Decide(v, now, [][]float64{append([]float64{-1}, even[1:]...)}, Settings{Automatic: true})
	require.ErrorContains(t, err, "rebalance: placement: bad input: layer 0, expert 0: load -1")
}
