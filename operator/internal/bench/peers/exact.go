package peers

import (
	"math"
	"slices"
)

// Exact returns the smallest peak of all ways to fill `ranks` equal ranks of `slots` slots with replicas that share
// evenly. Each expert has at least one replica, at most one per rank. It tries every vector of counts and packs each by
// branch and bound: for small cases only.
func Exact(load []float64, ranks, slots int) float64 {
	x := exact{load: load, slots: slots, best: math.Inf(1), count: make([]int, len(load)),
		rank: make([]float64, ranks), held: make([]int, ranks), has: make([][]bool, ranks)}
	for g := range x.has {
		x.has[g] = make([]bool, len(load))
	}
	for _, w := range load {
		x.mean += w / float64(ranks)
	}
	x.order = make([]int, len(load))
	for e := range x.order {
		x.order[e] = e
	}
	x.counts(0, ranks*slots-len(load))
	return x.best
}

type exact struct {
	load        []float64
	slots       int
	best, mean  float64
	count, held []int
	rank        []float64
	has         [][]bool
	order       []int
}

// counts chooses the number of replicas of expert e and of the experts after it.
func (x *exact) counts(e, spare int) {
	if x.best <= x.mean*(1+1e-12) {
		return
	}
	if e == len(x.load) {
		if spare == 0 {
			x.tryCounts()
		}
		return
	}
	for more := min(spare, len(x.rank)-1); more >= 0; more-- {
		if x.load[e]/float64(1+more) < x.best {
			x.count[e] = 1 + more
			x.counts(e+1, spare-more)
		}
	}
}

func (x *exact) tryCounts() {
	share := func(e int) float64 { return x.load[e] / float64(x.count[e]) }
	order := slices.Clone(x.order)
	slices.SortStableFunc(order, func(a, b int) int {
		if d := share(b) - share(a); d != 0 {
			return int(math.Copysign(1, d))
		}
		return 0
	})
	x.pack(order, 0, 0, 0)
}

// pack places replica `copied` of expert order[at]. Replicas of an expert go to ranks of increasing number from `from`.
// Of ranks in the same state, only the first is tried.
func (x *exact) pack(order []int, at, copied, from int) {
	if at == len(order) {
		x.best = min(x.best, slices.Max(x.rank))
		return
	}
	e := order[at]
	if copied == x.count[e] {
		x.pack(order, at+1, 0, 0)
		return
	}
	share := x.load[e] / float64(x.count[e])
	for g := from; g < len(x.rank); g++ {
		if x.held[g] == x.slots || x.rank[g]+share >= x.best || x.likeEarlier(g, from) {
			continue
		}
		before := x.rank[g]
		x.rank[g] += share
		x.held[g]++
		x.has[g][e] = true
		x.pack(order, at, copied+1, g+1)
		x.rank[g], x.has[g][e] = before, false
		x.held[g]--
	}
}

// likeEarlier reports whether an earlier rank, from `from` on, has the same state.
func (x *exact) likeEarlier(g, from int) bool {
	for h := from; h < g; h++ {
		if x.held[h] == x.held[g] && slices.Equal(x.has[h], x.has[g]) {
			return true
		}
	}
	return false
}
