package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/load"
)

// A transition from second 10 to 12, with its window before from 8 on and its tail to 13.
func seconds(t *testing.T) (at func(string) time.Time, p *pair) {
	t.Helper()
	at = func(second string) time.Time {
		v, err := time.ParseInLocation(time.DateTime, "2026-11-29 12:00:"+second, time.Local)
		require.NoError(t, err)
		return v
	}
	return at, &pair{name: "a switch", without: window{begin: at("08"), end: at("10")}, during: window{begin: at("10"), end: at("12")}, with: window{begin: at("10"), end: at("13")}}
}

func TestFlipsAreReadFromEngineLog(t *testing.T) {
	at, p := seconds(t)
	log := filepath.Join(t.TempDir(), "engine.log")
	require.NoError(t, os.WriteFile(log, []byte(`[2026-11-29 12:00:09.000] [engine] [info] flip committed epoch=2
[2026-11-29 12:00:10.500] [engine] [info] flip committed epoch=3
[2026-11-29 12:00:10.600] [engine] [info] step was late
[2026-11-29 12:00:11.250] [engine] [info] flip committed epoch=4
[2026-11-29 12:00:14.000] [engine] [info] flip committed epoch=5
`), 0o600))
	flips, err := flipsOf(log, p)
	require.NoError(t, err)
	require.Equal(t, []time.Time{at("10.500"), at("11.250")}, flips)

	_, err = flipsOf(filepath.Join(t.TempDir(), "no.log"), p)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(log, []byte("[yesterday] [engine] [info] flip committed epoch=2\n"), 0o600))
	_, err = flipsOf(log, p)
	require.ErrorContains(t, err, log)
}

func TestGapsCountFromTransitionCommand(t *testing.T) {
	at, p := seconds(t)
	stream := &load.Result{}
	for _, second := range []string{"07", "09", "10.1", "11.1", "14"} {
		stream.Tokens = append(stream.Tokens, load.Token{At: at(second)})
	}
	line := gapsOf(p, []*load.Result{stream}, []time.Time{at("10.5")}, 100*time.Millisecond, "smooth")
	require.Equal(t, []float64{-1, 0.1, 1.1}, line["at"], "seconds; the token at 7 is before the quiet window, that at 14 after the tail")
	require.Equal(t, []float64{2000, 1100, 1000}, line["gap_ms"])
	require.Equal(t, []float64{0.5}, line["flips"])
	require.InDelta(t, 2, line["seconds"], 0)
	require.Equal(t, "paced", line["steps"])
}
