package placement

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The greedy search reaches the even floor: r*, computed by another method.
func TestEvenFloorIsReached(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 5))
		load := randomLoads(r, 1+r.IntN(40))
		ranks := evenRanks(1+r.IntN(10), 1)
		for g := range ranks {
			ranks[g].Slots = 1 + len(load)/len(ranks) + r.IntN(4)
		}
		slots, total := 0, 0.0
		for _, k := range ranks {
			slots += min(k.Slots, len(load))
		}
		count := make([]int, len(load))
		for e, w := range load {
			count[e] = 1
			total += w
		}
		for range slots - len(load) {
			best := 0
			for e, w := range load {
				if w/float64(count[e]) > load[best]/float64(count[best]) {
					best = e
				}
			}
			count[best]++
		}
		star := 0.0
		for e, w := range load {
			star = max(star, w/float64(count[e]))
		}
		require.InDelta(t, max(star, total/float64(len(ranks))), EvenFloor(load, ranks), 1e-9*(1+star), "seed %d", seed)
	}
	require.Zero(t, EvenFloor([]float64{1, 2}, []Rank{{}, {}}))
	require.Zero(t, EvenFloor([]float64{0, 0}, evenRanks(2, 1)))
}

// subsets is the exact weighted floor by its dual: over all sets of experts, their load over
// the speed of the ranks that hold one of them.
func subsets(load []float64, p *Placement, ranks []Rank) float64 {
	worst := 0.0
	for set := 1; set < 1<<len(load); set++ {
		w, speed := 0.0, 0.0
		for e := range load {
			if set>>e&1 == 1 {
				w += load[e]
			}
		}
		for g := range ranks {
			for _, e := range p.Rank(0, g) {
				if e != Empty && set>>e&1 == 1 {
					speed += ranks[g].speed()
					break
				}
			}
		}
		if w > 0 { // a set without load may have no ranks
			worst = max(worst, w/speed)
		}
	}
	return worst
}

func TestWeightedFloor(t *testing.T) {
	var p Planner
	for seed := range worlds(120) {
		r := rand.New(rand.NewPCG(seed, 6))
		pr := randomProblem(r, 1)
		load := pr.Layers[0].Load
		got, err := p.Full(pr, Options{})
		require.NoError(t, err)
		peak, weight, err := WeightedFloor(load, got.Placement, 0, pr.Ranks)
		require.NoError(t, err)
		require.InDelta(t, subsets(load, got.Placement, pr.Ranks), peak, 1e-9*(1+peak), "seed %d", seed)
		require.LessOrEqual(t, peak, got.Layers[0].Peak*(1+1e-9))
		sum := make([]float64, len(load))
		for g := range pr.Ranks {
			time := 0.0
			for i, e := range got.Placement.Rank(0, g) {
				part := weight[int(got.Placement.Start[g])+i]
				require.GreaterOrEqual(t, part, 0.0)
				sum[e] += part
				time += part * load[e] / pr.Ranks[g].speed()
			}
			require.LessOrEqual(t, time, peak*(1+1e-6)+1e-9, "seed %d: rank %d", seed, g)
		}
		for e := range sum {
			require.InDelta(t, 1, sum[e], 1e-9, "seed %d: expert %d", seed, e)
		}
	}
}

// The same for arbitrary placements: experts anywhere, some slots empty, ranks of all speeds. An expert without load
// may have no slot. The split keeps every rank within the peak, and the parts of an expert with load sum to 1.
func TestWeightedFloor_WhenPlacementIsArbitrary(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 31))
		load := make([]float64, 1+r.IntN(6))
		ranks := anyRanks(r, 1)
		p := &Placement{Experts: len(load), Start: []int32{0}}
		for _, k := range ranks {
			p.Start = append(p.Start, p.Start[len(p.Start)-1]+int32(k.Slots))
			for range k.Slots {
				p.Slot = append(p.Slot, int32(r.IntN(len(load)+1)-1))
			}
		}
		for e := range load {
			if slices.Contains(p.Slot, int32(e)) && r.IntN(5) > 0 {
				load[e] = math.Exp(3 * r.NormFloat64())
			}
		}
		peak, weight, err := WeightedFloor(load, p, 0, ranks)
		require.NoError(t, err)
		require.InEpsilon(t, 1+subsets(load, p, ranks), 1+peak, 1e-9, "seed %d", seed)
		sum, times := make([]float64, len(load)), make([]float64, len(ranks))
		for g := range ranks {
			for j := p.Start[g]; j < p.Start[g+1]; j++ {
				if e := p.Slot[j]; e != Empty {
					require.GreaterOrEqual(t, weight[j], 0.0)
					sum[e] += weight[j]
					times[g] += weight[j] * load[e] / ranks[g].speed()
				} else {
					require.Zero(t, weight[j])
				}
			}
			require.LessOrEqual(t, times[g], peak*(1+1e-9)+1e-12, "seed %d: rank %d", seed, g)
		}
		for e := range sum {
			if slices.Contains(p.Slot, int32(e)) {
				require.InDelta(t, 1, sum[e], 1e-12, "seed %d: expert %d", seed, e)
			}
		}
	}
}

func TestWeightedFloorRejectsInvalidInput(t *testing.T) {
	p := &Placement{Experts: 2, Start: []int32{0, 1}, Slot: []int32{0}}
	_, _, err := WeightedFloor([]float64{1, 2}, p, 0, evenRanks(1, 1))
	require.ErrorContains(t, err, "layer 0, expert 1 has load 2 and no replica")
	_, _, err = WeightedFloor([]float64{1}, p, 0, evenRanks(1, 1))
	require.ErrorIs(t, err, ErrInput)
	_, _, err = WeightedFloor([]float64{1, 0}, p, 0, evenRanks(2, 1))
	require.ErrorContains(t, err, "a placement of 2 experts on 1 ranks with loads of 2 and 2 ranks")
	_, _, err = WeightedFloor([]float64{1, math.NaN()}, p, 0, evenRanks(1, 1))
	require.ErrorContains(t, err, "expert 1: load NaN")
	peak, weight, err := WeightedFloor([]float64{0, 0}, p, 0, evenRanks(1, 1))
	require.NoError(t, err)
	require.Zero(t, peak)
	require.Equal(t, []float64{1}, weight)
}

func TestAssignmentIsOptimal(t *testing.T) {
	var a assignment
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 7))
		n := 1 + r.IntN(6)
		weight, columns := make([]float64, n*n), make([]int32, n)
		for i := range weight {
			weight[i] = float64(r.IntN(5)) - 1
		}
		a.heaviest(n, weight, columns)
		sum, used := 0.0, map[int32]bool{}
		for i, j := range columns {
			require.False(t, used[j])
			used[j] = true
			sum += weight[i*n+int(j)]
		}
		best := math.Inf(-1)
		var try func(i int, taken int, sum float64)
		try = func(i, taken int, sum float64) {
			if i == n {
				best = max(best, sum)
				return
			}
			for j := range n {
				if taken>>j&1 == 0 {
					try(i+1, taken|1<<j, sum+weight[i*n+j])
				}
			}
		}
		try(0, 0, 0)
		require.Equal(t, best, sum, "seed %d", seed)
	}
}
