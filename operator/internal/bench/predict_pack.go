package bench

import (
	"cmp"
	"container/heap"
	"slices"
)

// greedyPack is the placement that `predict` holds constant while forecasts vary: the next
// replica to the expert with the largest load per replica, then the largest replicas first,
// each to the least loaded rank with a free slot and without that expert. A rank takes a
// second replica only where no other has room. It is not the planner's; with the true
// loads it comes to .995 on workload A.
func greedyPack(loads []float64, ranks, slots int) [][]int32 {
	replicas := replicate(loads, ranks, slots)
	order := make([]int32, 0, ranks*slots)
	for e, n := range replicas {
		for range n {
			order = append(order, int32(e))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		return cmp.Compare(loads[b]/float64(replicas[b]), loads[a]/float64(replicas[a]))
	})
	out, sums := make([][]int32, ranks), make([]float64, ranks)
	for _, e := range order {
		best, bestHas := -1, false
		for r := range out {
			if len(out[r]) == slots {
				continue
			}
			has := slices.Contains(out[r], e)
			if best < 0 || bestHas && !has || bestHas == has && sums[r] < sums[best] {
				best, bestHas = r, has
			}
		}
		out[best] = append(out[best], e)
		sums[best] += loads[e] / float64(replicas[e])
	}
	return out
}

// replicate gives each expert one replica and the slots that are left to the hottest, at
// most one replica per rank.
func replicate(loads []float64, ranks, slots int) []int {
	h := &hottest{loads: loads, replicas: make([]int, len(loads))}
	for e := range loads {
		if h.replicas[e] = 1; ranks > 1 {
			h.experts = append(h.experts, e)
		}
	}
	heap.Init(h)
	for n := len(loads); n < ranks*slots && h.Len() > 0; n++ {
		if h.replicas[h.experts[0]]++; h.replicas[h.experts[0]] == ranks {
			heap.Pop(h)
		} else {
			heap.Fix(h, 0)
		}
	}
	return h.replicas
}

// hottest is a heap of experts by load per replica, then by index.
type hottest struct {
	loads    []float64
	replicas []int
	experts  []int
}

func (h *hottest) Len() int { return len(h.experts) }
func (h *hottest) Less(i, j int) bool {
	a, b := h.experts[i], h.experts[j]
	x, y := h.loads[a]/float64(h.replicas[a]), h.loads[b]/float64(h.replicas[b])
	return x > y || x == y && a < b
}
func (h *hottest) Swap(i, j int) { h.experts[i], h.experts[j] = h.experts[j], h.experts[i] }
func (h *hottest) Push(x any)    { h.experts = append(h.experts, x.(int)) }
func (h *hottest) Pop() any {
	last := h.experts[len(h.experts)-1]
	h.experts = h.experts[:len(h.experts)-1]
	return last
}
