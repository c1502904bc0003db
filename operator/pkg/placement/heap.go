package placement

import (
	"math"
	"math/bits"
)

// Heaps of this package hold numbers that carry an index in their low bits, least first: a load's bits order like the
// load does, and one comparison of whole numbers is all that a step costs. What the index takes from the load is a
// relative 1e-13 with 256 experts.

const sign = 1 << 63 // a load may be -0

// lowBits is the mask for an index below n.
func lowBits(n int) uint64 { return uint64(1)<<bits.Len(uint(n)) - 1 }

// leastFirst and mostFirst are the keys of a load that is not negative.
func leastFirst(load float64, index int32, low uint64) uint64 {
	return math.Float64bits(load)&^(sign|low) | uint64(index)
}

func mostFirst(load float64, index int32, low uint64) uint64 {
	return ^(math.Float64bits(load)&^sign)&^low | uint64(index)
}

// sink puts x in the place of h[i] or below. It goes down to a leaf without looking at x, and back: what is put in is
// most often among the last.
func sink(h []uint64, i int, x uint64) {
	top := i
	for {
		k := 2*i + 1
		if k+1 >= len(h) {
			if k < len(h) {
				h[i], i = h[k], k
			}
			break
		}
		if h[k+1] < h[k] {
			k++
		}
		h[i], i = h[k], k
	}
	for i > top {
		k := (i - 1) / 2
		if h[k] <= x {
			break
		}
		h[i], i = h[k], k
	}
	h[i] = x
}

// rise adds x.
func rise(h []uint64, x uint64) []uint64 {
	h = append(h, x)
	i := len(h) - 1
	for i > 0 && x < h[(i-1)/2] {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = x
	return h
}
