package bench

import (
	"math"

	"tangram.dev/operator/pkg/simulator"
)

// hindsightSeconds is the interval for which a width is chosen.
const hindsightSeconds = 60

// hindsight returns the fewest rank-hours that keep `share` of the requests within the SLO, if the future is known and
// pods start immediately. For each minute it takes each static width's results for the requests that arrived in it. A
// price on rank-seconds selects the width of each minute (Everett 1963). A queue from a minute with fewer ranks is not
// carried over, so the result is rather too good. Within is the share reached.
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
	// A higher price means fewer ranks. Find the highest price that keeps the share.
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
