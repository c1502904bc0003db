package load

import "math/rand/v2"

// normalised scales to a sum of 1; even shares if the sum is 0.
func normalised(w []float64) []float64 {
	sum := 0.0
	for _, v := range w {
		sum += v
	}
	out := make([]float64, len(w))
	for i, v := range w {
		if sum > 0 {
			out[i] = v / sum
		} else {
			out[i] = 1 / float64(len(w))
		}
	}
	return out
}

// multinomial draws n times by popularity p (any scale) and counts: one alias table (Walker 1977, in Vose's form: O(E)
// to build), then O(1) per draw.
func multinomial(random *rand.Rand, p []float64, n int) []float64 {
	scaled := normalised(p)
	alias := make([]int32, len(p))
	var small, large []int32
	for i := range scaled {
		scaled[i] *= float64(len(p))
		alias[i] = int32(i)
		if scaled[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		alias[s] = l
		if scaled[l] -= 1 - scaled[s]; scaled[l] < 1 {
			large, small = large[:len(large)-1], append(small, l)
		}
	}
	// The remaining entries are 1 up to rounding, and need no correction: an expert of popularity 0 is never among
	// them, and one of 1 - 1e-16 has itself as alias, so both are exact.
	out := make([]float64, len(p))
	for range n {
		i := random.IntN(len(p))
		if random.Float64() >= scaled[i] {
			i = int(alias[i])
		}
		out[i]++
	}
	return out
}
