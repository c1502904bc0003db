package peers

import "slices"

// Swift is vllm-ascend's policy 2 (SwiftBalancer) as described. The first replica of each expert stays, and redundant
// slots are reassigned to the hottest experts. Then the hottest rank swaps with colder ones: at most one transfer per
// pair of ranks, 100 swaps, each with a gain of at least 1 %. The result is used only if the peak falls by 5 %.
type Swift struct{}

// Name of the policy.
func (Swift) Name() string { return "swift" }

// Plan plans one layer.
func (Swift) Plan(_ int, load []float64, old Layout) Layout {
	now := make(Layout, len(old))
	seen := make([]bool, len(load))
	spare := 0
	for g, held := range old {
		for _, e := range held {
			if seen[e] {
				spare++
				continue
			}
			seen[e] = true
			now[g] = append(now[g], e)
		}
	}
	for range spare {
		swiftReplica(load, now, len(old[0]))
	}
	swiftSwaps(load, now)
	before, _ := Peak(load, old)
	if after, _ := Peak(load, now); after > 0.95*before {
		return old
	}
	return now
}

// swiftReplica adds a replica of the hottest expert to the coldest rank that can take one.
func swiftReplica(load []float64, now Layout, slots int) {
	count, times := counts(len(load), now), Times(load, now)
	order := iota32(len(load))
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := load[a]/float64(count[a]), load[b]/float64(count[b])
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for _, e := range order {
		best := -1
		for g, held := range now {
			if len(held) < slots && !slices.Contains(held, e) && (best < 0 || times[g] < times[best]) {
				best = g
			}
		}
		if best >= 0 {
			now[best] = append(now[best], e)
			return
		}
	}
	for g, held := range now { // every rank with room holds every expert
		if len(held) < slots {
			now[g] = append(held, order[0])
			return
		}
	}
}

func swiftSwaps(load []float64, now Layout) {
	count, times := counts(len(load), now), Times(load, now)
	used := map[[2]int]bool{}
	for range 100 {
		hot := 0
		for g := range times {
			if times[g] > times[hot] {
				hot = g
			}
		}
		peak, best := times[hot], times[hot]*0.99
		bi, bj, bh := -1, -1, -1
		for h := range now {
			if h == hot || used[[2]int{hot, h}] {
				continue
			}
			for i, a := range now[hot] {
				for j, b := range now[h] {
					d := load[a]/float64(count[a]) - load[b]/float64(count[b])
					if t := max(peak-d, times[h]+d); t < best && !slices.Contains(now[h], a) && !slices.Contains(now[hot], b) {
						best, bi, bj, bh = t, i, j, h
					}
				}
			}
		}
		if bh < 0 {
			return
		}
		a, b := now[hot][bi], now[bh][bj]
		d := load[a]/float64(count[a]) - load[b]/float64(count[b])
		now[hot][bi], now[bh][bj] = b, a
		times[hot] -= d
		times[bh] += d
		used[[2]int{hot, bh}], used[[2]int{bh, hot}] = true, true
	}
}
