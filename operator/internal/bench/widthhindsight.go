package bench

import (
	"math"

	"tangram.dev/operator/pkg/simulator"
)

// hindsightSeconds for which a width is chosen.
const hindsightSeconds = 60

// hindsight is the fewest rank-hours at which somebody would have had so many of the requests within the SLO who knows the future, changes the width once a minute and has
// pods at once: of each minute what each width did with the requests that came in it while it served all the time, and the best choice of one width for each by a price
// on rank-seconds (Everett 1963). A queue of a minute before, on fewer ranks, is not carried along, so that it is rather too good. The share that it has is given, too.
func hindsight(widths []int, answers [][]simulator.Answer, share float64) widthFigures {
	last := 0.0
	for _, a := range answers[0] {
		last = max(last, a.Arrival)
	}
	minutes := int(last/hindsightSeconds) + 1
	within := make([][]float64, len(widths))
	for i := range widths {
		within[i] = make([]float64, minutes)
		for _, a := range answers[i] {
			if a.Within {
				within[i][int(a.Arrival/hindsightSeconds)]++
			}
		}
	}
	total := float64(len(answers[0]))
	at := func(price float64) (out widthFigures) {
		for m := range minutes {
			best, most := 0, math.Inf(-1)
			for i, n := range widths {
				if worth := within[i][m] - price*float64(n); worth > most {
					best, most = i, worth
				}
			}
			out.Within += within[best][m] / total
			out.RankHours += float64(widths[best]) * hindsightSeconds / 3600
		}
		return out
	}
	// The higher the price, the fewer ranks; the highest that has the share.
	low, high := 0.0, total
	for range 60 {
		if mid := (low + high) / 2; at(mid).Within >= share {
			low = mid
		} else {
			high = mid
		}
	}
	out := at(low)
	out.What = "known ahead, pods at once"
	return out
}
