// Package walk takes worlds of real processes through layouts.
package walk

import "tangram.dev/tests/internal/worlds"

// Helpers of all walks.
var (
	start          = worlds.Start
	startTiny      = worlds.StartTiny
	apply          = worlds.Apply
	client         = worlds.Client
	newTrace       = worlds.NewTrace
	answers        = worlds.Answers
	requireSame    = worlds.RequireSame
	status         = worlds.Status
	requireUnmoved = worlds.RequireUnmoved
	audit          = worlds.Audit
)
