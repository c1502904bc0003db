// Package peers has baselines for the placement benches, written from the public descriptions of the algorithms
// (reference: algorithms.md, section 2). Not copied.
package peers

import (
	"math"
	"slices"
)

// Layout of one layer: [rank][slot] expert.
type Layout [][]int32

// Policy plans one layer from the load and the current layout `old`, which it does not change.
type Policy interface {
	Name() string
	Plan(layer int, load []float64, old Layout) Layout
}

// Default is the layout that engines start with: physical slot j holds expert j modulo E.
func Default(experts, ranks, slots int) Layout {
	out := make(Layout, ranks)
	for g := range out {
		for s := range slots {
			out[g] = append(out[g], int32((g*slots+s)%experts))
		}
	}
	return out
}

// Times returns the times of the ranks, with an even split.
func Times(load []float64, l Layout) []float64 {
	count, out := counts(len(load), l), make([]float64, len(l))
	for g, held := range l {
		for _, e := range held {
			out[g] += load[e] / float64(count[e])
		}
	}
	return out
}

// Peak returns the peak and the mean of the times.
func Peak(load []float64, l Layout) (peak, mean float64) {
	times := Times(load, l)
	for _, t := range times {
		peak, mean = max(peak, t), mean+t/float64(len(times))
	}
	return peak, mean
}

// Moved counts the (rank, expert) pairs in now that old lacks. A duplicate replica on a rank counts once.
func Moved(old, now Layout) int {
	n := 0
	for g, held := range now {
		for s, e := range held {
			if !slices.Contains(old[g], e) && !slices.Contains(held[:s], e) {
				n++
			}
		}
	}
	return n
}

func counts(experts int, l Layout) []int {
	out := make([]int, experts)
	for _, held := range l {
		for _, e := range held {
			out[e]++
		}
	}
	return out
}

// replicas gives each expert one replica, and the others one at a time to the largest load / count.
func replicas(load []float64, slots int) []int {
	count := make([]int, len(load))
	for e := range count {
		count[e] = 1
	}
	for range slots - len(load) {
		best := 0
		for e := range load {
			if load[e]/float64(count[e]) > load[best]/float64(count[best]) {
				best = e
			}
		}
		count[best]++
	}
	return count
}

// packItems assigns items, heaviest first, to the lightest bin with room (LPT with cardinality).
func packItems(weight []float64, bins, room int) (bin []int) {
	order := make([]int, len(weight))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case weight[a] > weight[b]:
			return -1
		case weight[a] < weight[b]:
			return 1
		}
		return 0
	})
	bin = make([]int, len(weight))
	sum, used := make([]float64, bins), make([]int, bins)
	for _, i := range order {
		best := -1
		for b := range bins {
			if used[b] < room && (best < 0 || sum[b] < sum[best]) {
				best = b
			}
		}
		bin[i] = best
		sum[best] += weight[i]
		used[best]++
	}
	return bin
}

// packCounts packs the replicas of experts onto ranks.
func packCounts(load []float64, experts []int32, count []int, ranks, slots int) Layout {
	var weight []float64
	var who []int32
	for i, e := range experts {
		for range count[i] {
			weight, who = append(weight, load[e]/float64(count[i])), append(who, e)
		}
	}
	out := make(Layout, ranks)
	for i, g := range packItems(weight, ranks, slots) {
		out[g] = append(out[g], who[i])
	}
	return out
}

func iota32(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// DeepSeek is deepseek-ai/EPLB: groups are packed into nodes, experts are replicated within the node, and replicas are
// packed onto its ranks. With one group and one node (or if groups do not divide) it is the global policy. It ignores
// the old layout.
type DeepSeek struct{ Groups, Nodes int }

// Name distinguishes the two.
func (d DeepSeek) Name() string {
	if d.Groups > 1 {
		return "deepseek-hierarchical"
	}
	return "deepseek-global"
}

// Plan plans one layer.
func (d DeepSeek) Plan(_ int, load []float64, old Layout) Layout {
	groups, nodes := max(d.Groups, 1), max(d.Nodes, 1)
	ranks, slots := len(old), len(old[0])
	if groups%nodes != 0 || len(load)%groups != 0 || ranks%nodes != 0 {
		groups, nodes = 1, 1
	}
	size := len(load) / groups
	weight := make([]float64, groups)
	for e, w := range load {
		weight[e/size] += w
	}
	node := packItems(weight, nodes, groups/nodes)
	out := make(Layout, 0, ranks)
	for n := range nodes {
		var experts []int32
		var own []float64
		for e, w := range load {
			if node[e/size] == n {
				experts, own = append(experts, int32(e)), append(own, w)
			}
		}
		out = append(out, packCounts(load, experts, replicas(own, ranks/nodes*slots), ranks/nodes, slots)...)
	}
	return out
}

// relabel renames the ranks of now so that as many experts as possible stay where old had them (the Hungarian method,
// O(n^3)).
func relabel(old, now Layout) Layout {
	n := len(now)
	cost := make([][]float64, n+1)
	for i := range cost {
		cost[i] = make([]float64, n+1)
	}
	for i, held := range now {
		for j := range old {
			for _, e := range held {
				if slices.Contains(old[j], e) {
					cost[i+1][j+1]--
				}
			}
		}
	}
	u, v, row, way := make([]float64, n+1), make([]float64, n+1), make([]int, n+1), make([]int, n+1)
	for i := 1; i <= n; i++ {
		row[0] = i
		j0 := 0
		least, used := make([]float64, n+1), make([]bool, n+1)
		for j := range least {
			least[j] = math.Inf(1)
		}
		for row[j0] != 0 {
			used[j0] = true
			i0, delta, j1 := row[j0], math.Inf(1), 0
			for j := 1; j <= n; j++ {
				if used[j] {
					continue
				}
				if c := cost[i0][j] - u[i0] - v[j]; c < least[j] {
					least[j], way[j] = c, j0
				}
				if least[j] < delta {
					delta, j1 = least[j], j
				}
			}
			for j := 0; j <= n; j++ {
				if used[j] {
					u[row[j]] += delta
					v[j] -= delta
				} else {
					least[j] -= delta
				}
			}
			j0 = j1
		}
		for j0 != 0 {
			row[j0] = row[way[j0]]
			j0 = way[j0]
		}
	}
	out := make(Layout, n)
	for j := 1; j <= n; j++ {
		out[j-1] = now[row[j]-1]
	}
	return out
}
