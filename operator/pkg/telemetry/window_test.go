package telemetry

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWindows(t *testing.T) {
	h, err := NewHistory(10)
	require.NoError(t, err)
	for _, keep := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		_, err := NewHistory(keep)
		require.Error(t, err)
	}
	_, err = h.Window(1, 10, 5)
	require.ErrorContains(t, err, "no report was read yet")
	p := newPlay(5)
	m := NewMerger("w")
	type moment struct {
		at, seconds float64
		c           Counters
		answers     Latencies
		steps       map[StepKey]Steps
	}
	var all []moment
	for i := range 40 {
		p.work(.5)
		s, err := m.Take(p.now, p.reads())
		require.NoError(t, err)
		require.NoError(t, h.Add(s))
		require.ErrorContains(t, h.Add(s), "after a sample at")
		all = append(all, moment{s.At, s.Seconds, s.Grown, s.Answers, s.Steps})
		w, err := h.Window(p.now, 4, 5)
		if i == 0 {
			require.ErrorContains(t, err, "no earlier reading to compare with")
			continue
		}
		require.NoError(t, err)
		var want Counters
		seconds, answers := 0., Latencies{}
		sums := map[StepKey][6]float64{}
		for _, one := range all[1:] {
			if one.at > p.now-4 {
				want = want.plus(one.c)
				seconds += one.seconds
				answers.Merge(one.answers)
				for k, n := range one.steps {
					was := sums[k]
					for i, v := range []float64{float64(n.Steps), n.Seconds, float64(n.Decode), float64(n.Context), float64(n.PromptTokens), float64(n.Before)} {
						was[i] += v
					}
					sums[k] = was
				}
			}
		}
		require.InDelta(t, seconds, w.Seconds, 1e-9)
		require.Equal(t, want, w.Grown)
		require.Equal(t, answers, w.Answers)
		require.Len(t, w.Steps, len(sums))
		for k, n := range w.Steps {
			require.Equal(t, sums[k], [6]float64{float64(n.Steps), n.Seconds, float64(n.Decode), float64(n.Context), float64(n.PromptTokens), float64(n.Before)})
		}
		require.InDelta(t, float64(want.Written)/seconds, w.TokensPerSecond(), 1e-9)
		slo := SLO{TTFT: Bound(-8), TPOT: Bound(-24)}
		good, tokens := w.Goodput(slo)
		require.InDelta(t, float64(answers.Attainment(slo).Within)/seconds, good, 1e-9)
		require.InDelta(t, 7*good, tokens, 1e-9)
	}
	require.Len(t, h.samples, 20, "what is older is forgotten")
	_, err = h.Window(p.now+6, 4, 5)
	require.ErrorContains(t, err, "no report was read for 6.0 s")
	_, err = h.Window(p.now-1, 4, 5)
	require.ErrorContains(t, err, "the clock went")
}

func TestMeanSteps(t *testing.T) {
	seconds, decode, context, prefill, before := Steps{Steps: 4, Seconds: 2, Decode: 10, Context: 1000, PromptTokens: 20, Before: 100}.Mean()
	require.InDelta(t, .5, seconds, 0)
	require.Equal(t, []int{3, 100, 5, 5}, []int{decode, context, prefill, before})
	seconds, decode, _, _, _ = Steps{}.Mean()
	require.Zero(t, seconds)
	require.Zero(t, decode)
}
