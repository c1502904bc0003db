package load

import (
	"fmt"
	"math"
)

// Check validates loads by [layer][expert]: every layer has the same number of experts, at least 1, and each load is
// finite and not negative. The error names layer, expert and figure.
func Check(loads [][]float64) error {
	if len(loads) == 0 {
		return fmt.Errorf("load: no layers; want loads by [layer][expert]")
	}
	for l, row := range loads {
		if len(row) == 0 {
			return fmt.Errorf("load: layer %d has no experts", l)
		}
		if len(row) != len(loads[0]) {
			return fmt.Errorf("load: layer %d has loads of %d experts, layer 0 of %d; every layer must have the same", l, len(row), len(loads[0]))
		}
		sum := 0.0
		for e, w := range row {
			if err := checkLoad(w); err != nil {
				return fmt.Errorf("load: layer %d, expert %d: %w", l, e, err)
			}
			sum += w
		}
		if math.IsInf(sum, 1) {
			return fmt.Errorf("load: layer %d: its loads add up to more than a float64 holds", l)
		}
	}
	return nil
}

// most tokens of one (layer, expert) in one window: a float64 counts exactly up to here.
const most = 1 << 53

func checkLoad(w float64) error {
	switch {
	case math.IsNaN(w) || math.IsInf(w, 0):
		return fmt.Errorf("load is %v; want a finite number of tokens", w)
	case w < 0:
		return fmt.Errorf("load is %v; want 0 tokens or more", w)
	case w > most:
		return fmt.Errorf("load is %v; more than 2^53 tokens cannot be counted exactly", w)
	}
	return nil
}
