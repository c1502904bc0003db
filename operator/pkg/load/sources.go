package load

import "fmt"

// RankLoadsFrom adds up the load of a layer's ranks if the load by source rank is known, sources[rank][expert]. A
// rank's tokens for an expert stay on the rank if it holds a replica; other tokens go to all replicas in turn, as the
// ranks' routes do (agent/dispatch). If a rank holds two replicas of an expert, all take turns. For equal sources the
// result is RankLoads of the sum. Errors as there.
func RankLoadsFrom(sources [][]float64, ranks [][]int32) ([]float64, error) {
	if len(sources) != len(ranks) || len(sources) == 0 {
		return nil, fmt.Errorf("load: %d ranks bring loads, %d have slots; want the same number, at least 1", len(sources), len(ranks))
	}
	all := make([]float64, len(sources[0]))
	for r, loads := range sources {
		if len(loads) != len(all) {
			return nil, fmt.Errorf("load: rank %d brings loads of %d experts, rank 0 of %d", r, len(loads), len(all))
		}
		for e, v := range loads {
			if err := checkLoad(v); err != nil {
				return nil, fmt.Errorf("load: rank %d, expert %d: %w", r, e, err)
			}
			all[e] += v
		}
	}
	out, err := RankLoads(all, ranks)
	if err != nil {
		return nil, err
	}
	holders := make([][]int, len(all))
	for r, slots := range ranks {
		for _, e := range slots {
			if e != Empty {
				holders[e] = append(holders[e], r)
			}
		}
	}
	for e, held := range holders {
		own, twice := 0.0, false
		for i, r := range held {
			own += sources[r][e]
			twice = twice || i > 0 && held[i-1] == r // in order of rank
		}
		if twice || len(held) < 2 {
			continue
		}
		for _, r := range held {
			out[r] += sources[r][e] - own/float64(len(held))
		}
	}
	return out, nil
}

// BalancednessFrom is Balancedness with known source ranks: sources[layer][rank][expert].
func BalancednessFrom(sources [][][]float64, p Placement) (Balance, error) {
	if len(sources) != len(p) || len(sources) == 0 {
		return Balance{}, fmt.Errorf("load: sources of %d layers, a placement of %d; want the same number, at least 1", len(sources), len(p))
	}
	ranks := make([][]float64, len(sources))
	for l := range sources {
		var err error
		if ranks[l], err = RankLoadsFrom(sources[l], p[l]); err != nil {
			return Balance{}, fmt.Errorf("layer %d: %w", l, err)
		}
	}
	return OfRanks(ranks, p)
}

// Sourced splits loads by [layer][expert] over source ranks in these parts, equally for each expert:
// [layer][rank][expert]. A token passes every layer, so a rank's part is the same in all.
func Sourced(loads [][]float64, parts []float64) [][][]float64 {
	out := make([][][]float64, len(loads))
	for l, experts := range loads {
		out[l] = make([][]float64, len(parts))
		for r, part := range parts {
			out[l][r] = make([]float64, len(experts))
			for e, v := range experts {
				out[l][r][e] = v * part
			}
		}
	}
	return out
}
