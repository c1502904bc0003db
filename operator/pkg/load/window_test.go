package load

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Random additions against a plain list of all additions.
func TestWindowsMatchReferenceList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		x := Extent{Layers: 1 + random.IntN(3), Experts: 1 + random.IntN(5), Sources: 1 + random.IntN(3), Keep: 1 + random.IntN(5)}
		x.KeepBySource = random.IntN(x.Keep + 1)
		w, err := NewWindows(x)
		require.NoError(t, err)
		type entry struct {
			window        uint64
			source, layer int
			tokens        []float64
		}
		var all []entry
		newest := uint64(random.IntN(10))
		require.ErrorIs(t, w.Add(0, 0, 0, make([]float64, x.Experts)), ErrFuture)
		require.NoError(t, w.Advance(newest))
		for range 80 {
			if random.IntN(4) == 0 {
				newest += uint64(random.IntN(3))
				if random.IntN(20) == 0 {
					newest += 1000
				}
				require.NoError(t, w.Advance(newest))
			}
			e := entry{source: random.IntN(x.Sources), layer: random.IntN(x.Layers), tokens: make([]float64, x.Experts)}
			e.window = newest - min(newest, uint64(random.IntN(x.Keep+1)))
			for i := range e.tokens {
				e.tokens[i] = float64(random.IntN(100))
			}
			if newest-e.window >= uint64(x.Keep) {
				require.ErrorIs(t, w.Add(e.window, e.source, e.layer, e.tokens), ErrLate)
				continue
			}
			require.NoError(t, w.Add(e.window, e.source, e.layer, e.tokens))
			if newest-e.window >= uint64(x.KeepBySource) {
				e.source = -1 // counted, but too old to be kept by source
			}
			all = append(all, e)
			sum := func(from uint64, to uint64, keep bool, source int) [][]float64 {
				out := make([][]float64, x.Layers)
				for l := range out {
					out[l] = make([]float64, x.Experts)
				}
				for _, e := range all {
					if e.window >= from && e.window <= to && (!keep || e.source == source) {
						for i, v := range e.tokens {
							out[e.layer][i] += v
						}
					}
				}
				return out
			}
			n := 1 + random.IntN(7)
			first := func(kept int) uint64 { return newest + 1 - min(newest+1, uint64(min(n, kept))) }
			require.Equal(t, sum(first(x.Keep), newest, false, 0), w.Sum(n))
			for s, got := range w.BySource(n) {
				require.Equal(t, sum(first(x.KeepBySource), newest, true, s), got)
			}
			got, ok := w.At(newest)
			require.True(t, ok)
			require.Equal(t, sum(newest, newest, false, 0), got)
		}
		_, ok := w.At(newest + 1)
		require.False(t, ok)
		require.Equal(t, x.KeepBySource == 0, w.BySource(1) == nil)
	}
}

func TestWindowsRejectInvalidInput(t *testing.T) {
	for _, x := range []Extent{{}, {Layers: 1, Experts: 1, Sources: 1}, {Layers: 1, Experts: 1, Sources: 1, Keep: 1, KeepBySource: 2}, {Layers: 1, Experts: 1, Keep: 1}} {
		_, err := NewWindows(x)
		require.Error(t, err, "%+v", x)
	}
	w, err := NewWindows(Extent{Layers: 2, Experts: 2, Sources: 2, Keep: 2, KeepBySource: 1})
	require.NoError(t, err)
	require.NoError(t, w.Advance(5))
	require.ErrorContains(t, w.Advance(4), "window 5 is open already")
	require.NoError(t, w.Add(5, 1, 1, []float64{1, 2}))
	for want, err := range map[string]error{
		"source rank 2; there are ranks 0..1":            w.Add(5, 2, 0, []float64{1, 1}),
		"layer 2; there are MoE layers 0..1":             w.Add(5, 0, 2, []float64{1, 1}),
		"tokens of 3 experts; the model has 2":           w.Add(5, 0, 0, []float64{1, 1, 1}),
		"layer 0, expert 1: load is -1":                  w.Add(5, 0, 0, []float64{1, -1}),
		"layer 1, expert 0: load is NaN":                 w.Add(5, 0, 1, []float64{math.NaN(), 1}),
		"expert 1, with what the window holds: load is ": w.Add(5, 0, 1, []float64{1, most}),
	} {
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, [][]float64{{0, 0}, {1, 2}}, w.Sum(9), "a refused Add adds nothing")
	require.Equal(t, [][]float64{{0, 0}, {1, 2}}, w.BySource(1)[1])
}

func TestPopularity(t *testing.T) {
	got, err := Popularity([][]float64{{3, 1}, {0, 0}})
	require.NoError(t, err)
	require.Equal(t, [][]float64{{.75, .25}, {.5, .5}}, got)
	_, err = Popularity([][]float64{{1, 2}, {1}})
	require.ErrorContains(t, err, "layer 1 has loads of 1 experts, layer 0 of 2")
}

func TestRequests(t *testing.T) {
	q, err := NewRequests(2, 2, 2)
	require.NoError(t, err)
	prior := [][]float64{{.5, .5}, {.9, .1}}
	require.NoError(t, q.Add("a", 0, 1, 6))
	got, err := q.Popularity("a", prior, 2)
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{1. / 8, 7. / 8}, got[0], 1e-12)
	require.InDeltaSlice(t, prior[1], got[1], 1e-12)

	require.NoError(t, q.Add("b", 0, 0, 1))
	require.NoError(t, q.Add("a", 1, 1, 1)) // a is used again: b is the least recently used
	require.NoError(t, q.Add("c", 0, 0, 1)) // so c replaces it
	got, err = q.Popularity("b", prior, 2)
	require.NoError(t, err)
	require.InDeltaSlice(t, prior[0], got[0], 1e-12, "forgotten: the prior")
	got, err = q.Popularity("a", prior, 2)
	require.NoError(t, err)
	require.InDelta(t, 7./8, got[0][1], 1e-12, "kept")
	q.Forget("a")
	q.Forget("unknown")
	require.Len(t, q.of, 1)
	require.NoError(t, q.Add("d", 0, 0, 1))
	require.NoError(t, q.Add("e", 0, 0, 1))
	require.Len(t, q.of, 2)

	require.ErrorContains(t, q.Add("x", 2, 0, 1), "layer 2, expert 0")
	require.ErrorContains(t, q.Add("x", 0, 0, math.NaN()), "NaN")
	require.Len(t, q.of, 2, "a refused request is not remembered")
	_, err = q.Popularity("e", [][]float64{{1}}, 1)
	require.ErrorContains(t, err, "has 1 layers of 1 experts")
	_, err = q.Popularity("e", prior, 0)
	require.ErrorContains(t, err, "above 0")
	_, err = NewRequests(1, 1, 0)
	require.Error(t, err)
}
