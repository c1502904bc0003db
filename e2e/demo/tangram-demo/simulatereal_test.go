package main

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

func TestRunFigures(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	result := func(sent int, tokens ...int) *load.Result {
		r := &load.Result{Sent: at(sent)}
		for _, ms := range tokens {
			r.Tokens = append(r.Tokens, load.Token{At: at(ms)})
		}
		return r
	}
	f, err := figuresOf([]*load.Result{result(1000, 1100, 1200, 1300), result(2000, 2300), result(1500, 1700, 2000)})
	require.NoError(t, err)
	require.InDelta(t, .2, f.TTFT, 1e-9, "of 100, 300 and 200 ms")
	require.InDelta(t, .2, f.TPOT, 1e-9, "of 100 and 300 ms; one token has no time between")
	require.InDelta(t, 6/1.3, f.TokensPerSecond, 1e-9)
	_, err = figuresOf([]*load.Result{{Err: errors.New("lost")}})
	require.ErrorContains(t, err, "request 0: lost")
	require.True(t, math.IsNaN(medianOf(nil)))
}

// A calibration reproduces its own load, and uses nothing else.
func TestCalibrationReproducesOwnLoad(t *testing.T) {
	said := foretold{realFigures{TTFT: .1, TPOT: .05, TokensPerSecond: 40}, 1e6, 2}
	runs := [2]realFigures{{TTFT: .2, TPOT: .06}, {TTFT: .22, TPOT: .06}}
	record := &harness.Record{Seconds: harness.Seconds{Stage: .5, Flip: .1}}
	c := calibrate(runs, said, [2]*harness.Record{record, record})
	got := c.correct(said)
	require.InDelta(t, .21, got.TTFT, 1e-9)
	require.InDelta(t, .06, got.TPOT, 1e-9)
	require.InDelta(t, 40, got.TokensPerSecond, 0)
	require.InDelta(t, .6, got.Transition, 1e-9)
	other := c.correct(foretold{realFigures{TTFT: .3, TPOT: .1}, 2e6, 4})
	require.InDelta(t, .3*1.2+.09, other.TTFT, 1e-9)
	require.InDelta(t, 1.2, other.Transition, 1e-9)
}
