package driver

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// pauses double from first to longest. They are not drawn at random: one driver talks to few agents, whose delays part it from
// another, and a simulated schedule replays.
func pauses(first, longest time.Duration) *backoff.ExponentialBackOff {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval, p.Multiplier, p.RandomizationFactor = first, longest, 2, 0
	p.Reset()
	return p
}
