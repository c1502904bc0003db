package costmodel

import (
	"fmt"
	"math"
)

// Transition as planned: what the busiest rank receives, and in how many flips.
type Transition struct {
	BusiestBytes uint64  // of weights
	Flips        int     // steps that change a layout
	TokenBytes   float64 // of KV that the busiest rank receives per live token of the world
}

// Rates as measured.
type Rates struct {
	BytesPerSecond float64 // that a rank receives
	FlipSeconds    float64 // that one flip holds up a step
	Hidden         float64 // share of the weights' time that staging hides behind steps: 0 all stalls, 1 none does
}

// Check that the rates are numbers one can divide by.
func (r Rates) Check() error {
	if !(r.BytesPerSecond > 0) || !(r.FlipSeconds >= 0) || !(r.Hidden >= 0 && r.Hidden <= 1) || math.IsInf(r.BytesPerSecond+r.FlipSeconds, 0) {
		return fmt.Errorf("costmodel: rates %+v: bytes per second must be above 0, seconds of a flip at least 0, the hidden share 0..1", r)
	}
	return nil
}

// Stall is the seconds in which nobody gets a token, and Lost the tokens that were not made in them, at so many live
// tokens of context and tokens per second.
func (r Rates) Stall(t Transition, liveTokens int, tokensPerSecond float64) (stall, lost float64) {
	stall = float64(t.BusiestBytes)/r.BytesPerSecond*(1-r.Hidden) + float64(t.Flips)*r.FlipSeconds +
		float64(liveTokens)*t.TokenBytes/r.BytesPerSecond
	return stall, stall * tokensPerSecond
}
