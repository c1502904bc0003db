package load

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func generators(t *testing.T, s Shape) map[string]Generator {
	t.Helper()
	out := map[string]Generator{}
	add := func(name string, g Generator, err error) {
		require.NoError(t, err, name)
		out[name] = g
	}
	g, err := NewLogNormal(s, 1, .9)
	add("log-normal", g, err)
	g, err = NewZipf(s, 1, .05)
	add("zipf", g, err)
	g, err = NewHot(s, min(4, s.Experts), .9, .1)
	add("hot", g, err)
	g, err = NewTaskMix(s, Tasks{Count: 3, Sigma: 1, Spread: .5, Rho: .9})
	add("task mix", g, err)
	return out
}

// The same seed gives the same windows, another seed other ones; each window is complete.
func TestGeneratorsAreDeterministicAndComplete(t *testing.T) {
	s := Shape{Layers: 3, Experts: 40, Assignments: 5000, Seed: 7}
	first, again := generators(t, s), generators(t, s)
	s.Seed = 8
	other := generators(t, s)
	for name := range first {
		for range 5 {
			w := first[name].Next()
			require.NoError(t, Check(w), name)
			require.Equal(t, w, again[name].Next(), name)
			require.NotEqual(t, w, other[name].Next(), name)
			require.Len(t, w, 3)
			for _, row := range w {
				require.Len(t, row, 40)
				require.InDelta(t, 5000, total1(row), 0)
			}
			w[0][0] = -1 // the caller owns the rows: the change must not come back
		}
		require.NoError(t, Check(first[name].Next()), name)
	}
}

func total1(row []float64) float64 {
	sum := 0.0
	for _, v := range row {
		sum += v
	}
	return sum
}

// Sampling follows the popularity: chi square over the expected counts stays near its
// degrees of freedom (mean 199, deviation 20; 300 is 5 deviations away).
func TestMultinomialFollowsPopularity(t *testing.T) {
	s := Shape{Layers: 1, Experts: 200, Assignments: 1 << 20, Seed: 3}
	sampled, err := NewLogNormal(s, 1, 1)
	require.NoError(t, err)
	s.Assignments = 0
	exact, err := NewLogNormal(s, 1, 1)
	require.NoError(t, err)
	p, n := exact.Next()[0], sampled.Next()[0]
	chi := 0.0
	for e := range p {
		want := p[e] * (1 << 20)
		chi += (n[e] - want) * (n[e] - want) / want
	}
	require.InDelta(t, 199, chi, 100)
}

// The drift is as configured: standard deviation sigma in every window, correlation rho of the log-popularity between
// windows (of shares: up to a constant per window).
func TestLogNormalDrift(t *testing.T) {
	g, err := NewLogNormal(Shape{Layers: 20, Experts: 500, Seed: 5}, .8, .7)
	require.NoError(t, err)
	var before [][]float64
	for window := range 12 {
		now := g.Next()
		deviation, correlation := 0.0, 0.0
		for l, row := range now {
			for e, v := range row {
				row[e] = math.Log(v)
			}
			mean := total1(row) / float64(len(row))
			for e := range row {
				row[e] -= mean
				deviation += row[e] * row[e]
				if before != nil {
					correlation += row[e] * before[l][e]
				}
			}
		}
		deviation = math.Sqrt(deviation / 10000)
		require.InDelta(t, .8, deviation, .03, "window %d", window)
		if before != nil {
			require.InDelta(t, .7, correlation/10000/.64, .05, "window %d", window)
		}
		before = now
	}
}

// Zipf and hot only permute popularities, at the configured rate.
func TestChurn(t *testing.T) {
	g, err := NewZipf(Shape{Layers: 4, Experts: 100, Seed: 1}, 1, .05)
	require.NoError(t, err)
	before := g.Next()
	for range 10 {
		now := g.Next()
		for l := range now {
			changed := 0
			for e := range now[l] {
				if math.Abs(now[l][e]-before[l][e]) > 1e-9 { // more than the rounding of the sum
					changed++
				}
			}
			require.Equal(t, 5, changed)
			require.InDeltaSlice(t, slices.Sorted(slices.Values(before[l])), slices.Sorted(slices.Values(now[l])), 1e-12)
		}
		before = now
	}
	hot, err := NewHot(Shape{Layers: 1, Experts: 256, Seed: 1}, 32, .9, 0)
	require.NoError(t, err)
	row := slices.Sorted(slices.Values(hot.Next()[0]))
	require.InDelta(t, .9, total1(row[224:]), 1e-9)
	few, err := NewZipf(Shape{Layers: 1, Experts: 8, Seed: 1}, 1, .25)
	require.NoError(t, err)
	first, moved := few.Next()[0], false
	for range 3 {
		moved = moved || !slices.Equal(first, few.Next()[0])
	}
	require.True(t, moved, "a churn of 2 of 8 experts changes something")
}

func TestGeneratorsRejectInvalidParameters(t *testing.T) {
	good := Shape{Layers: 1, Experts: 8}
	for name, make := range map[string]func() (Generator, error){
		"no layers":      func() (Generator, error) { return NewLogNormal(Shape{Experts: 8}, 1, 1) },
		"no experts":     func() (Generator, error) { return NewZipf(Shape{Layers: 8}, 1, 0) },
		"assignments":    func() (Generator, error) { return NewZipf(Shape{Layers: 1, Experts: 1, Assignments: -1}, 1, 0) },
		"sigma NaN":      func() (Generator, error) { return NewLogNormal(good, math.NaN(), 1) },
		"sigma infinite": func() (Generator, error) { return NewLogNormal(good, math.Inf(1), 1) },
		"rho":            func() (Generator, error) { return NewLogNormal(good, 1, 1.1) },
		"exponent":       func() (Generator, error) { return NewZipf(good, -1, 0) },
		"churn":          func() (Generator, error) { return NewZipf(good, 1, 2) },
		"hot":            func() (Generator, error) { return NewHot(good, 9, .5, 0) },
		"share":          func() (Generator, error) { return NewHot(good, 2, 1.5, 0) },
		"no tasks":       func() (Generator, error) { return NewTaskMix(good, Tasks{}) },
		"spread":         func() (Generator, error) { return NewTaskMix(good, Tasks{Count: 1, Spread: math.NaN()}) },
	} {
		g, err := make()
		require.Error(t, err, name)
		require.Nil(t, g, name)
	}
}
