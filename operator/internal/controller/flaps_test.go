package controller

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/telemetry"

	api "tangram.dev/api/v1alpha2"
)

// A flapping session is one event, in however many readings it appears, and another event when it starts again.
func TestFlappingSessionIsOneEvent(t *testing.T) {
	one, two := telemetry.Session{Gateway: "g", Member: "a"}, telemetry.Session{Gateway: "g", Member: "b"}
	f := flaps{}
	took := func(s ...telemetry.Session) []telemetry.Session { return f.took(&telemetry.Sample{Flapping: s}) }
	require.Empty(t, took())
	require.Equal(t, []telemetry.Session{one}, took(one))
	require.Equal(t, []telemetry.Session{two}, took(one, two))
	require.Empty(t, took(one, two))
	require.Empty(t, took(two))
	require.Equal(t, []telemetry.Session{one}, took(one, two))

	b := newBed(t)
	d := b.serve("w", 1)
	b.r.flapping(d, flaps{}, &telemetry.Sample{Flapping: []telemetry.Session{one}})
	b.told(api.EventSessionFlaps, "The connection of gateway g to rank a broke three times within a minute.")
}
