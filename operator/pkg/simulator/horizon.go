package simulator

import (
	"fmt"
	"math"
	"time"

	"tangram.dev/operator/pkg/kernels"
)

// ends rejects requests that cannot end by the horizon: the last one arrives later, or the world has too few steps
// until then.
func (c *Config) ends(requests []Request) error {
	if len(requests) == 0 {
		return nil
	}
	if last := requests[len(requests)-1].At; c.Concurrency == 0 && last > c.Horizon {
		return fmt.Errorf("simulator: the last request arrives after %s; want at most %s, the maximum duration of a simulation: shorten the trace", days(last), days(c.Horizon))
	}
	if least := c.leastSeconds(requests); least > c.Horizon {
		return fmt.Errorf("simulator: %d requests take at least %s; want at most %s, the maximum duration of a simulation: use fewer or shorter requests, or more ranks", len(requests), days(least), days(c.Horizon))
	}
	return nil
}

// leastSeconds is a lower bound on the seconds that the requests take in the best mode, with steps of minimal length. A
// response holds its KV for one step per token after the first, in a world of limited KV capacity.
func (c *Config) leastSeconds(requests []Request) float64 {
	held := 0.0 // tokens of KV times steps
	for _, q := range requests {
		held += float64(q.Prompt+q.Output) * float64(q.Output-1)
	}
	least := math.Inf(1)
	for i := range c.Modes {
		m := &c.Modes[i]
		s := m.Truth.Shape()
		loads := make([]kernels.Load, s.Groups())
		loads[0].Decode = 1
		least = min(least, m.seconds(loads)*max(1-3.5*c.Noise, .1)*held/(float64(m.GroupTokens)*float64(s.Groups())))
	}
	return least
}

func days(seconds float64) string {
	if seconds < 2*86400 {
		return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
	}
	return fmt.Sprintf("%.1f days", seconds/86400)
}
