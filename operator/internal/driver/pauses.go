package driver

import (
	"time"

	"github.com/cenkalti/backoff/v5"
)

// pauses returns a back-off that doubles from first to longest. It is not random: one driver calls few agents, whose
// delays already separate it from another driver, and a simulated schedule must replay.
func pauses(first, longest time.Duration) *backoff.ExponentialBackOff {
	p := backoff.NewExponentialBackOff()
	p.InitialInterval, p.MaxInterval, p.Multiplier, p.RandomizationFactor = first, longest, 2, 0
	p.Reset()
	return p
}
