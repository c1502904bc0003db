package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// worlds is the number of random seeds: n, or an eighth of it with -short.
func worlds(n uint64) uint64 {
	if testing.Short() {
		return n / 8
	}
	return n
}

// verify is the independent checker: it reads only the problem and the result.
func verify(pr *Problem, r *Result) error {
	p := r.Placement
	experts := len(pr.Layers[0].Load)
	if experts == 0 {
		experts = len(pr.Layers[0].BySource[0])
	}
	if p.Ranks() != len(pr.Ranks) || p.Layers() != len(pr.Layers) || len(r.Layers) != len(pr.Layers) {
		return fmt.Errorf("shape: %d ranks, %d layers", p.Ranks(), p.Layers())
	}
	for l := range pr.Layers {
		count := make([]int, experts)
		for g, rank := range pr.Ranks {
			held := p.Rank(l, g)
			if len(held) > rank.Slots || len(held) < min(rank.Slots, experts) {
				return fmt.Errorf("layer %d, rank %d: %d slots used of %d", l, g, len(held), rank.Slots)
			}
			seen := map[int32]bool{}
			for _, e := range held {
				if e == Empty {
					continue
				}
				if seen[e] {
					return fmt.Errorf("layer %d, rank %d: expert %d twice", l, g, e)
				}
				seen[e] = true
				count[e]++
			}
		}
		for e, n := range count {
			if n == 0 {
				return fmt.Errorf("layer %d: expert %d has no replica", l, e)
			}
		}
		peak, arrived := peakOf(pr, p, l, count), 0
		f := r.Layers[l]
		if math.Abs(peak-f.Peak) > 1e-9*(1+peak) {
			return fmt.Errorf("layer %d: peak %v, says %v", l, peak, f.Peak)
		}
		if b := f.Balance(); b > 1+1e-9 || math.IsNaN(b) {
			return fmt.Errorf("layer %d: balance %v", l, b)
		}
		if floor := EvenFloor(loadOf(pr, l), pr.Ranks); floor > peak*(1+1e-9) {
			return fmt.Errorf("layer %d: floor %v over the peak %v", l, floor, peak)
		}
		if err := verifyWorth(pr, r, l, peak); err != nil {
			return err
		}
		for g := range pr.Ranks {
			for _, e := range p.Rank(l, g) {
				if e != Empty && !holds(pr.Old, l, g, e) {
					arrived++
				}
			}
		}
		if arrived != f.Moved {
			return fmt.Errorf("layer %d: %d arrived, says %d", l, arrived, f.Moved)
		}
	}
	return nil
}

// verifyWorth checks the other figures of a layer.
func verifyWorth(pr *Problem, r *Result, l int, peak float64) error {
	f, total, speeds := r.Layers[l], 0.0, 0.0
	for _, w := range loadOf(pr, l) {
		total += w
	}
	for _, k := range pr.Ranks {
		if k.Slots > 0 {
			speeds += k.speed()
		}
	}
	if math.Abs(f.Mean-total/speeds) > 1e-9*(1+f.Mean) {
		return fmt.Errorf("layer %d: mean %v, says %v", l, total/speeds, f.Mean)
	}
	if floor := EvenFloor(loadOf(pr, l), pr.Ranks); f.Bound < floor*(1-1e-9) || f.Bound > peak*(1+1e-9) {
		return fmt.Errorf("layer %d: says bound %v, which is not from the floor %v to the peak %v", l, f.Bound, floor, peak)
	}
	local, near := 0.0, 0.0
	if pr.Layers[l].BySource != nil {
		local, near = served(pr, r.Placement, l, inOrder(len(pr.Ranks)))
	}
	if math.Abs(local-f.Local)+math.Abs(near-f.Near) > 1e-9 {
		return fmt.Errorf("layer %d: local %v and near %v, says %v and %v", l, local, near, f.Local, f.Near)
	}
	return nil
}

func loadOf(pr *Problem, l int) []float64 {
	if pr.Layers[l].Load != nil {
		return pr.Layers[l].Load
	}
	out := make([]float64, len(pr.Layers[l].BySource[0]))
	for _, row := range pr.Layers[l].BySource {
		for e, w := range row {
			out[e] += w
		}
	}
	return out
}

func holds(old *Placement, l, g int, e int32) bool {
	if old == nil || g >= old.Ranks() {
		return false
	}
	for _, x := range old.Rank(l, g) {
		if x == e {
			return true
		}
	}
	return false
}

func peakOf(pr *Problem, p *Placement, l int, count []int) float64 {
	peak, load := 0.0, loadOf(pr, l)
	for g, rank := range pr.Ranks {
		sum, speed := 0.0, rank.Speed
		if speed == 0 {
			speed = 1
		}
		for _, e := range p.Rank(l, g) {
			if e != Empty {
				sum += load[e] / float64(count[e])
			}
		}
		peak = max(peak, sum/speed)
	}
	return peak
}

// randomProblem is small and of arbitrary shape: uneven slots, dead and slow ranks, zero loads.
func randomProblem(r *rand.Rand, layers int) *Problem {
	pr := &Problem{}
	experts := 1 + r.IntN(12)
	slots := 0
	for range 1 + r.IntN(6) {
		k := Rank{Slots: r.IntN(7), Node: r.IntN(3)}
		if r.IntN(3) == 0 {
			k.Speed = 0.5 + r.Float64()
		}
		pr.Ranks = append(pr.Ranks, k)
		slots += min(k.Slots, experts)
	}
	if slots < experts {
		pr.Ranks[0].Slots += experts - slots
		pr.Ranks[0].Slots = min(pr.Ranks[0].Slots, experts)
		for slots = 0; ; slots = 0 {
			for _, k := range pr.Ranks {
				slots += min(k.Slots, experts)
			}
			if slots >= experts {
				break
			}
			pr.Ranks = append(pr.Ranks, Rank{Slots: 2})
		}
	}
	for range layers {
		pr.Layers = append(pr.Layers, Layer{Load: randomLoads(r, experts)})
	}
	return pr
}

func randomLoads(r *rand.Rand, experts int) []float64 {
	out := make([]float64, experts)
	kind := r.IntN(4)
	for e := range out {
		switch {
		case kind == 0 && r.IntN(2) == 0: // zeros
		case kind == 1:
			out[e] = float64(r.IntN(5))
		default:
			out[e] = math.Exp(2 * r.NormFloat64())
		}
	}
	return out
}
