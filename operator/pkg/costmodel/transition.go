package costmodel

import (
	"fmt"
	"math"
)

// Transition as planned: the bytes that the busiest rank receives, and the number of flips.
type Transition struct {
	BusiestBytes uint64  // of weights
	Flips        int     // flips that change a layout
	TokenBytes   float64 // of KV that the busiest rank receives per live token of the world
}

// Rates are measured rates.
type Rates struct {
	BytesPerSecond float64 // received by a rank
	FlipSeconds    float64 // for which one flip delays a step
	Hidden         float64 // share of the weights' time that staging hides behind steps: 0 none of it, 1 all of it
}

// Check that the rates are valid divisors.
func (r Rates) Check() error {
	if !(r.BytesPerSecond > 0) || !(r.FlipSeconds >= 0) || !(r.Hidden >= 0 && r.Hidden <= 1) || math.IsInf(r.BytesPerSecond+r.FlipSeconds, 0) {
		return fmt.Errorf("costmodel: rates %+v: bytes per second must be above 0, seconds of a flip at least 0, the hidden share 0..1", r)
	}
	return nil
}

// Stall returns the seconds without tokens, and the tokens lost in them, for a number of live tokens of context and a
// rate of tokens per second.
func (r Rates) Stall(t Transition, liveTokens int, tokensPerSecond float64) (stall, lost float64) {
	stall = float64(t.BusiestBytes)/r.BytesPerSecond*(1-r.Hidden) + float64(t.Flips)*r.FlipSeconds +
		float64(liveTokens)*t.TokenBytes/r.BytesPerSecond
	return stall, stall * tokensPerSecond
}
