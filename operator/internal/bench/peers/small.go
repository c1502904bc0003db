package peers

import (
	"math"
	"math/rand/v2"

	"tangram.dev/operator/pkg/placement"
)

// Showcase is FlashLB's own example: 8 experts on 8 ranks of 2 slots. Reference: section 2.
func Showcase() []float64 { return []float64{600, 560, 120, 120, 20, 10, 10, 10} }

// Small is a case that brute force can solve.
type Small struct {
	Load            []float64
	NumRanks, Slots int
}

// NewSmall draws 2 to 4 ranks of 2 to 4 slots, at most 12 in all, and 2 or more experts that fit with none to all slots
// redundant. Loads are of one of three kinds: log-normal, whole numbers up to 20, or Zipf.
func NewSmall(r *rand.Rand) Small {
	var c Small
	for c.NumRanks, c.Slots = 2+r.IntN(3), 2+r.IntN(3); c.NumRanks*c.Slots > 12; {
		c.NumRanks, c.Slots = 2+r.IntN(3), 2+r.IntN(3)
	}
	// no more slots on a rank than experts
	c.Load = make([]float64, c.Slots+r.IntN(c.NumRanks*c.Slots-c.Slots+1))
	kind := r.IntN(3)
	for e := range c.Load {
		switch kind {
		case 0:
			c.Load[e] = math.Exp(r.NormFloat64())
		case 1:
			c.Load[e] = float64(r.IntN(21))
		default:
			c.Load[e] = 1000 / float64(e+1)
		}
	}
	return c
}

// Ranks returns the equal ranks of the case.
func (c Small) Ranks() []placement.Rank {
	out := make([]placement.Rank, c.NumRanks)
	for g := range out {
		out[g].Slots = c.Slots
	}
	return out
}
