package peers

import "slices"

// FlashLB is vllm-ascend's policy 3 as described. It changes a layer only if its balance is low, absolutely or relative
// to its past. A tree search of depth 4 and width 8 distributes the redundant replicas, and each leaf is judged by
// packing it. Ranks are renamed to match the old layout. (Its variance weights need several windows; here a plan has
// one.)
type FlashLB struct{ past map[int]float64 }

// Name of the policy.
func (*FlashLB) Name() string { return "flashlb" }

// Plan plans one layer. It may be called repeatedly, because only Remember changes the recorded past.
func (f *FlashLB) Plan(layer int, load []float64, old Layout) Layout {
	threshold := 0.85
	if len(old) < 32 {
		threshold = 0.9
	}
	balance := balanceOf(load, old)
	if balance >= threshold && balance >= 0.9*f.past[layer] {
		return old
	}
	const depth, width = 4, 8
	spare := len(old)*len(old[0]) - len(load)
	beam := []leaf{f.judge(load, old, slices.Repeat([]int{1}, len(load)), false)}
	for level := range depth {
		share := spare*(level+1)/depth - spare*level/depth
		var next []leaf
		for _, b := range beam {
			for skip := range width {
				next = append(next, f.judge(load, old, spread(load, b.count, share, skip), level == depth-1))
			}
		}
		slices.SortStableFunc(next, func(a, b leaf) int {
			switch {
			case a.peak < b.peak:
				return -1
			case a.peak > b.peak:
				return 1
			}
			return 0
		})
		next = slices.CompactFunc(next, func(a, b leaf) bool { return slices.Equal(a.count, b.count) })
		beam = next[:min(width, len(next))]
	}
	return relabel(old, beam[0].layout)
}

// Remember records the result of a layer that was changed.
func (f *FlashLB) Remember(layer int, load []float64, old, now Layout) {
	if &old[0] == &now[0] {
		return
	}
	if f.past == nil {
		f.past = map[int]float64{}
	}
	f.past[layer] = balanceOf(load, now)
}

type leaf struct {
	count  []int
	peak   float64
	layout Layout
}

// judge packs complete counts; unfinished ones are judged by their hottest replica.
func (f *FlashLB) judge(load []float64, old Layout, count []int, whole bool) leaf {
	out := leaf{count: count}
	if !whole {
		for e, w := range load {
			out.peak = max(out.peak, w/float64(count[e]))
		}
		return out
	}
	out.layout = packCounts(load, iota32(len(load)), count, len(old), len(old[0]))
	out.peak, _ = Peak(load, out.layout)
	return out
}

// spread gives n more replicas to the hottest experts, but the first of them not to the `skip` hottest.
func spread(load []float64, count []int, n, skip int) []int {
	out := slices.Clone(count)
	for i := range n {
		var passed []int
		best := -1
		for again := true; again; {
			best, again = -1, false
			for e := range load {
				if !slices.Contains(passed, e) && (best < 0 || load[e]/float64(out[e]) > load[best]/float64(out[best])) {
					best = e
				}
			}
			if i == 0 && len(passed) < min(skip, len(load)-1) {
				passed, again = append(passed, best), true
			}
		}
		out[best]++
	}
	return out
}

func balanceOf(load []float64, l Layout) float64 {
	peak, mean := Peak(load, l)
	if peak == 0 {
		return 1
	}
	return mean / peak
}
