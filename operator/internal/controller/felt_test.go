package controller

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/telemetry"
)

// Ten seconds before, the transition itself, and ten after. Without readings from before, that part is empty.
func TestClientImpactOfTransition(t *testing.T) {
	start := time.Now()
	end := start.Add(2 * time.Second)
	spans := map[[2]time.Time]*telemetry.Window{
		{start.Add(-10 * time.Second), start}: {Seconds: 10, Grown: telemetry.Counters{Written: 1004}, LongestGap: .05, Silence: .04},
		{start, end}:                          {Seconds: 2, Grown: telemetry.Counters{Written: 150}, LongestGap: .1234, Silence: .08},
		{end, end.Add(10 * time.Second)}:      {Seconds: 10, Grown: telemetry.Counters{Written: 1209}, LongestGap: .2, Silence: .2},
	}
	between := func(from, to time.Time) (*telemetry.Window, error) {
		if w := spans[[2]time.Time{from, to}]; w != nil {
			return w, nil
		}
		return nil, errors.New("not known")
	}
	felt, err := feltOf(between, start, end)
	require.NoError(t, err)
	require.Equal(t, []int64{100, 75, 121}, []int64{felt.TokensPerSecondBefore, felt.TokensPerSecondDuring, felt.TokensPerSecondAfter})
	require.Equal(t, []time.Duration{123 * time.Millisecond, 50 * time.Millisecond, 80 * time.Millisecond},
		[]time.Duration{felt.LongestGap.Duration, felt.LongestGapBefore.Duration, felt.Silence.Duration})
	for span, w := range spans {
		delete(spans, span)
		_, err := feltOf(between, start, end)
		require.ErrorContains(t, err, "not known", "%v", w)
		spans[span] = w
	}
	young := func(from, to time.Time) (*telemetry.Window, error) {
		if from.Before(start) {
			return nil, fmt.Errorf("%w: the readings begin at 3", telemetry.ErrNotKept)
		}
		return between(from, to)
	}
	felt, err = feltOf(young, start, end)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 75, 121}, []int64{felt.TokensPerSecondBefore, felt.TokensPerSecondDuring, felt.TokensPerSecondAfter})
}
