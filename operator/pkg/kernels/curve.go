package kernels

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

type point struct{ x, us float64 }

// curve of measured points, ascending in x.
type curve []point

// ready sorts the points and rejects duplicate sizes.
func (c curve) ready() error {
	slices.SortFunc(c, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	for i := range c {
		if c[i].x <= 0 || i > 0 && c[i].x == c[i-1].x {
			return fmt.Errorf("size %v is zero or there twice", c[i].x)
		}
	}
	return nil
}

// at interpolates linearly in the logarithms of both axes, because times follow powers of sizes. Below the first point
// it is the first time (a launch has a minimum); above the last, proportional (the last sizes are bound by bandwidth or
// FLOPs).
func (c curve) at(x float64) float64 {
	last := c[len(c)-1]
	switch {
	case x <= c[0].x:
		return c[0].us
	case x >= last.x:
		return last.us * x / last.x
	}
	i, _ := slices.BinarySearchFunc(c, x, func(p point, x float64) int { return cmp.Compare(p.x, x) })
	a, b := c[i-1], c[i]
	return math.Exp(math.Log(a.us) + math.Log(b.us/a.us)*math.Log(x/a.x)/math.Log(b.x/a.x))
}

// The grid of a compiled step: perOctave points in each power of two, evenly spaced in it, so that shifts find an
// index.
const (
	octaveBits = 3
	perOctave  = 1 << octaveBits
	octaves    = 24 // to 2^24 tokens
	gridSize   = octaves*perOctave + 1
)

// grid of seconds over a whole number of tokens or requests.
type grid []float64

func gridOf(of func(x float64) float64) grid {
	g := make(grid, gridSize)
	for i := range g {
		g[i] = of(sizeAt(i))
	}
	return g
}

// sizeAt is the size at a point of the grid.
func sizeAt(i int) float64 {
	return math.Ldexp(1+float64(i%perOctave)/perOctave, i/perOctave)
}

// at returns the seconds at n; 0 if there is no work.
func (g grid) at(n int) float64 {
	if n <= 0 {
		return 0
	}
	i, rest := place(n)
	return g[i] + (g[i+1]-g[i])*rest
}

// place of n on the grid: the point at or below, and the fraction of the distance to the next. Beyond the grid: its
// last place.
func place(n int) (int, float64) {
	octave := bits.Len(uint(n)) - 1
	if octave >= octaves {
		return gridSize - 2, 1
	}
	scaled := uint64(n) << (32 - octave) // 1.0 is 1<<32
	within := scaled & (1<<32 - 1)
	i := octave*perOctave + int(within>>(32-octaveBits))
	return i, float64(within&(1<<(32-octaveBits)-1)) / (1 << (32 - octaveBits))
}
