package load

import "fmt"

// Empty marks a slot without an expert.
const Empty = -1

// Placement names the expert of each slot of each rank: [layer][rank][slot], a logical expert or Empty. Ranks may have
// different numbers of slots, also none (a dead rank).
type Placement [][][]int32

// Balance is the evenness of a load under a placement. Balancedness is the mean over the maximum load of the ranks that
// have a slot: 1 is even, 1/ranks is all load on one. vLLM logs the same.
type Balance struct {
	Layers     []float64 // balancedness by layer; 1 for a layer without load
	Worst      float64   // minimum of Layers
	WorstLayer int
	// Aggregate is sum(mean) over sum(max): the loss of the world, because ranks wait for each other in every layer. A
	// busy layer counts more than an idle one.
	Aggregate float64
}

// RankLoads adds up the load of a layer's ranks if the replicas of an expert share its load evenly: sum over the slots
// of load/replicas. It rejects an expert with load but without a slot, and a slot with an expert that the layer lacks.
func RankLoads(loads []float64, ranks [][]int32) ([]float64, error) {
	replicas := make([]int, len(loads))
	for r, slots := range ranks {
		for s, e := range slots {
			if e == Empty {
				continue
			}
			if e < 0 || int(e) >= len(loads) {
				return nil, fmt.Errorf("load: rank %d, slot %d holds expert %d; the layer has experts 0..%d", r, s, e, len(loads)-1)
			}
			replicas[e]++
		}
	}
	for e, w := range loads {
		if w > 0 && replicas[e] == 0 {
			return nil, fmt.Errorf("load: expert %d has a load of %v and no slot on any of %d ranks", e, w, len(ranks))
		}
	}
	out := make([]float64, len(ranks))
	for r, slots := range ranks {
		for _, e := range slots {
			if e != Empty {
				out[r] += loads[e] / float64(replicas[e])
			}
		}
	}
	return out, nil
}

// Balancedness of a placement under loads by [layer][expert], with load split evenly over replicas. To evaluate a plan,
// pass the window after the one that it was made from: the planned window overstates it.
func Balancedness(loads [][]float64, p Placement) (Balance, error) {
	if len(loads) != len(p) || len(loads) == 0 {
		return Balance{}, fmt.Errorf("load: loads of %d layers, a placement of %d; want the same number, at least 1", len(loads), len(p))
	}
	if err := Check(loads); err != nil {
		return Balance{}, err
	}
	ranks := make([][]float64, len(loads))
	for l := range loads {
		var err error
		if ranks[l], err = RankLoads(loads[l], p[l]); err != nil {
			return Balance{}, fmt.Errorf("layer %d: %w", l, err)
		}
	}
	return OfRanks(ranks, p)
}

// OfRanks returns the balance of loads by [layer][rank]. The mean is over the ranks that have slots in p.
func OfRanks(loads [][]float64, p Placement) (Balance, error) {
	if len(loads) != len(p) || len(loads) == 0 {
		return Balance{}, fmt.Errorf("load: loads of ranks in %d layers, a placement of %d; want the same number, at least 1", len(loads), len(p))
	}
	out := Balance{Layers: make([]float64, len(loads)), Worst: 1}
	means, peaks := 0.0, 0.0
	for l, ranks := range loads {
		if len(ranks) != len(p[l]) {
			return Balance{}, fmt.Errorf("load: layer %d: loads of %d ranks, slots of %d", l, len(ranks), len(p[l]))
		}
		sum, peak, live := 0.0, 0.0, 0
		for r, v := range ranks {
			sum, peak = sum+v, max(peak, v)
			if len(p[l][r]) > 0 {
				live++
			}
		}
		if live == 0 {
			return Balance{}, fmt.Errorf("load: layer %d has no slot on any of %d ranks", l, len(ranks))
		}
		out.Layers[l] = 1
		if peak > 0 {
			// min: rounding may put the mean of equal loads above them.
			out.Layers[l] = min(1, sum/float64(live)/peak)
		}
		means, peaks = means+sum/float64(live), peaks+peak
		if out.Layers[l] < out.Worst {
			out.Worst, out.WorstLayer = out.Layers[l], l
		}
	}
	out.Aggregate = 1
	if peaks > 0 {
		out.Aggregate = min(1, means/peaks)
	}
	return out, nil
}

// Next scores plans on the window after the one that they were made from: plans[i] was made from windows[i] (or from
// data known by then) and is scored on windows[i+1]. The last plan has no window for a score. The result is the mean of
// each figure over the windows, and the worst layer of all.
func Next(windows [][][]float64, plans []Placement) (Balance, error) {
	if len(windows) < 2 || len(plans) < len(windows)-1 {
		return Balance{}, fmt.Errorf("load: %d windows and %d plans; want 2 windows or more and a plan for each but the last", len(windows), len(plans))
	}
	var out Balance
	for i := range len(windows) - 1 {
		b, err := Balancedness(windows[i+1], plans[i])
		if err != nil {
			return Balance{}, fmt.Errorf("window %d: %w", i+1, err)
		}
		if i == 0 {
			out = b
			continue
		}
		if len(b.Layers) != len(out.Layers) {
			return Balance{}, fmt.Errorf("load: window %d has %d layers, those before it %d", i+1, len(b.Layers), len(out.Layers))
		}
		for l, v := range b.Layers {
			out.Layers[l] += v
		}
		out.Aggregate += b.Aggregate
		if b.Worst < out.Worst {
			out.Worst, out.WorstLayer = b.Worst, b.WorstLayer
		}
	}
	n := float64(len(windows) - 1)
	for l := range out.Layers {
		out.Layers[l] /= n
	}
	out.Aggregate /= n
	return out, nil
}
