package simulator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/policy"
)

// Requests that cannot end by the horizon are rejected before the first step.
func TestRequestsBeyondHorizonAreRejected(t *testing.T) {
	played := func(float64, int) { t.Fatal("it is played") }
	c := config(t)
	_, err := Run(c, []Request{{Prompt: 1, Output: 1}, {At: 31 * 86400, Prompt: 1, Output: 1}}, policy.Static{}, played)
	require.ErrorContains(t, err, "the last request arrives after 31.0 days; want at most 30.0 days")
	c.Horizon = 100
	long := make([]Request, 10000)
	for i := range long {
		long[i] = Request{Prompt: 100, Output: 10000}
	}
	_, err = Run(c, long, policy.Static{}, played)
	require.ErrorContains(t, err, "10000 requests take ")
	require.ErrorContains(t, err, "; want at most 1m40s, the maximum duration of a simulation: use fewer or shorter requests, or more ranks")
	_, err = Hindsight(c, long, Beam{}, played)
	require.ErrorContains(t, err, "at least")
	_, err = RunReplicas(Config{Modes: c.Modes[:1], Switches: c.Switches[:1], Rates: c.Rates, Horizon: 100}, long, 1, 1, nil)
	require.ErrorContains(t, err, "at least")
	c.Concurrency = 1 // ignores arrival times
	_, err = Run(c, []Request{{Prompt: 1, Output: 1}, {At: 101, Prompt: 1, Output: 1}}, policy.Static{}, nil)
	require.NoError(t, err)
}

// The bound is below the time that requests take, in every mode.
func TestLeastSecondsIsLowerBound(t *testing.T) {
	c := config(t).filled()
	requests := Generate([]Rate{{10, 50}}, 500, 300, 1)
	least := c.leastSeconds(requests)
	require.Positive(t, least)
	for c.Start = range c.Modes {
		r, err := Run(c, requests, policy.Static{}, nil)
		require.NoError(t, err)
		require.Less(t, least, r.Makespan)
		require.Empty(t, r.Samples, "nobody asked for them")
	}
}
