package peers

import "slices"

// Greedy is the reference for plan time. A heap gives the next replica to the expert with the hottest replicas. Then
// replicas, heaviest first, go to the lightest rank with room, by another heap. It ignores the placement in the old
// layout.
type Greedy struct{}

// Name of the policy.
func (Greedy) Name() string { return "greedy" }

// weighted is an index with its load.
type weighted struct {
	load float64
	at   int32
}

// Plan plans one layer.
func (Greedy) Plan(_ int, load []float64, old Layout) Layout {
	ranks, slots := len(old), len(old[0])
	count, hottest := make([]int32, len(load)), make([]weighted, len(load))
	for e, w := range load {
		count[e], hottest[e] = 1, weighted{-w, int32(e)} // least first
	}
	heapify(hottest)
	for range ranks*slots - len(load) {
		e := hottest[0].at
		count[e]++
		hottest[0].load = -load[e] / float64(count[e])
		down(hottest, 0)
	}
	replicas := make([]weighted, 0, ranks*slots)
	for e, n := range count {
		for range n {
			replicas = append(replicas, weighted{load[e] / float64(n), int32(e)})
		}
	}
	slices.SortFunc(replicas, func(a, b weighted) int {
		switch {
		case a.load > b.load:
			return -1
		case a.load < b.load:
			return 1
		}
		return int(a.at - b.at)
	})
	out, lightest := make(Layout, ranks), make([]weighted, ranks)
	for g := range out {
		out[g], lightest[g].at = make([]int32, 0, slots), int32(g)
	}
	for _, r := range replicas {
		g := lightest[0].at
		out[g] = append(out[g], r.at)
		if lightest[0].load += r.load; len(out[g]) == slots {
			lightest[0] = lightest[len(lightest)-1]
			lightest = lightest[:len(lightest)-1]
		}
		if len(lightest) > 0 {
			down(lightest, 0)
		}
	}
	return out
}

func heapify(h []weighted) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		down(h, i)
	}
}

// down restores the heap, least load first, below i.
func down(h []weighted, i int) {
	x := h[i]
	for {
		k := 2*i + 1
		if k >= len(h) {
			break
		}
		if k+1 < len(h) && h[k+1].load < h[k].load {
			k++
		}
		if h[k].load >= x.load {
			break
		}
		h[i], i = h[k], k
	}
	h[i] = x
}
