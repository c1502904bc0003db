package telemetry

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// Of two gateways: the longest gap of both, and the silence of the less silent one, except for a gateway without
// waiting clients.
func TestWaitsOfSeveralGateways(t *testing.T) {
	report := func(name string, gap, silence float64) Read {
		return Read{Gateway: name, Report: &tangramv1.TelemetryReport{World: "w", Gateway: name, At: 1, LongestGap: gap, Silence: silence}}
	}
	s, err := NewMerger("w").Take(1, []Read{report("a", .2, .1), report("b", .3, .05), report("c", 0, 0)})
	require.NoError(t, err)
	require.Equal(t, []float64{.3, .05}, []float64{s.LongestGap, s.Silence})
	for _, bad := range []Read{report("a", math.NaN(), 0), report("a", 1, -1), report("a", 0, math.Inf(1))} {
		_, err := NewMerger("w").Take(1, []Read{bad})
		require.ErrorContains(t, err, "invalid waiting times")
	}
}

// The readings after one time, up to the first at or after the other.
func TestBetween(t *testing.T) {
	h, err := NewHistory(100)
	require.NoError(t, err)
	_, err = h.Between(0, 1)
	require.ErrorContains(t, err, "no report was read at 1 or later")
	for at := 1.; at <= 10; at++ {
		s := &Sample{At: at, Seconds: 1, Grown: Counters{Written: 10}, LongestGap: at / 100, Silence: (11 - at) / 100}
		if at == 1 {
			s.Seconds = 0
		}
		require.NoError(t, h.Add(s))
	}
	w, err := h.Between(2.5, 5.5)
	require.NoError(t, err)
	require.Equal(t, 4, w.Readings, "at 3, 4, 5 and 6")
	require.InDelta(t, 10, w.TokensPerSecond(), 0)
	require.InDelta(t, .06, w.LongestGap, 0)
	require.InDelta(t, .08, w.Silence, 0)
	exact, err := h.Between(2, 5)
	require.NoError(t, err)
	require.Equal(t, 3, exact.Readings)
	_, err = h.Between(9, 11)
	require.ErrorContains(t, err, "at 11 or later")
	require.NotErrorIs(t, err, ErrNotKept)
	_, err = h.Between(.5, 5)
	require.ErrorIs(t, err, ErrNotKept)
	_, err = h.Between(5, 5)
	require.ErrorContains(t, err, "no reading lies between")
}
