package placement

import (
	"fmt"
	"math"
)

// EvenFloor is a lower bound on the peak of any placement with even split between replicas: the mean, or r*, the
// minimum over all placements of the largest load of a replica, on the fastest rank. It shares no code with the search:
// it finds r* by bisection on the load, while the search adds replica by replica. Ranks without slots do not count.
func EvenFloor(load []float64, ranks []Rank) float64 {
	total, speeds, fastest, slots := 0.0, 0.0, 0.0, 0
	for _, r := range ranks {
		if r.Slots > 0 {
			slots += min(r.Slots, len(load))
			speed := r.speed()
			speeds += speed
			fastest = max(fastest, speed)
		}
	}
	largest := 0.0
	for _, w := range load {
		total += w
		largest = max(largest, w)
	}
	if speeds == 0 || total == 0 {
		return 0
	}
	// needed counts the replicas so that none has more load than t.
	needed := func(t float64) (n int) {
		for _, w := range load {
			n += max(1, int(math.Ceil(min(w/t, math.MaxInt32))))
		}
		return n
	}
	low, high := total/float64(slots)*(1-1e-9), largest // at low at least one slot is missing, or low is r* itself
	for range 64 {
		if middle := (low + high) / 2; needed(middle) <= slots {
			high = middle
		} else {
			low = middle
		}
	}
	star := 0.0 // high is above r* by rounding only; with its counts the largest replica is r*
	for _, w := range load {
		star = max(star, w/max(1, math.Ceil(w/high)))
	}
	return max(total/speeds, star/fastest)
}

func (r Rank) speed() float64 {
	if r.Speed == 0 {
		return 1
	}
	return r.Speed
}

// WeightedFloor returns the minimum peak of a given layer if an expert's load may be split between its replicas in any
// way (the LP of LPLB), and such a split: weight[slot] is the part of its expert's load that a slot serves; parts of an
// expert sum to 1.
//
// It is a transportation problem: expert e supplies its load, rank g takes t * speed. For a given t, a maximum flow
// solves it. If the flow falls short, the experts on the source's side of a minimum cut can only use ranks that are
// full, so t is at least their load over the speed of those ranks. That is the next t (Newton's method on the cuts). It
// is exact after at most as many rounds as there are nested cuts.
func WeightedFloor(load []float64, p *Placement, l int, ranks []Rank) (peak float64, weight []float64, err error) {
	slots := p.Layer(l)
	if p.Experts != len(load) || p.Ranks() != len(ranks) {
		return 0, nil, fmt.Errorf("%w: a placement of %d experts on %d ranks with loads of %d and %d ranks", ErrInput, p.Experts, p.Ranks(), len(load), len(ranks))
	}
	hosts := make([]int, len(load))
	rankOf := make([]int, len(slots))
	for g := range ranks {
		for j := p.Start[g]; j < p.Start[g+1]; j++ {
			if rankOf[j] = g; slots[j] != Empty {
				hosts[slots[j]]++
			}
		}
	}
	total := 0.0
	for e, w := range load {
		if !sound(w) {
			return 0, nil, fmt.Errorf("%w: layer %d, expert %d: load %v", ErrInput, l, e, w)
		}
		if w > 0 && hosts[e] == 0 {
			return 0, nil, fmt.Errorf("%w: layer %d, expert %d has load %v and no replica", ErrInput, l, e, w)
		}
		total += w
	}
	weight = make([]float64, len(slots))
	for j, e := range slots {
		if e != Empty {
			weight[j] = 1 / float64(hosts[e])
		}
	}
	net := newNetwork(load, slots, rankOf, len(ranks))
	t := 0.0
	for range len(ranks) + 1 { // each round saturates a larger set of ranks
		next := net.bound(ranks, t)
		if next <= t*(1+1e-12) {
			break
		}
		t = next
		net.flow(ranks, t, total)
	}
	net.weights(slots, weight)
	return t, weight, nil
}
