package placement

import (
	"math"
	"math/rand/v2"
	"testing"
)

// drifting generates windows of log-normal popularity with AR(1) drift, as tokens: the workload `ln1.0, rho .9` of the
// reference, without its sampling noise.
type drifting struct {
	random *rand.Rand
	x      [][]float64
}

const drift = 0.9

func newDrifting(layers, experts int) *drifting {
	d := &drifting{random: rand.New(rand.NewPCG(7, 1)), x: make([][]float64, layers)}
	for l := range d.x {
		d.x[l] = make([]float64, experts)
		for e := range d.x[l] {
			d.x[l][e] = d.random.NormFloat64()
		}
	}
	return d
}

func (d *drifting) next() []Layer {
	out := make([]Layer, len(d.x))
	for l, row := range d.x {
		out[l].Load = make([]float64, len(row))
		for e := range row {
			row[e] = drift*row[e] + math.Sqrt(1-drift*drift)*d.random.NormFloat64()
			out[l].Load[e] = math.Round(60 * math.Exp(row[e]))
		}
	}
	return out
}

func evenRanks(ranks, slots int) []Rank {
	out := make([]Rank, ranks)
	for g := range out {
		out[g] = Rank{Slots: slots, Node: g / 8}
	}
	return out
}

// benchmark plans a third window of workload A (58 layers, 256 experts in 288 slots of 32
// ranks) from the plan of the second.
func benchmark(b *testing.B, plan func(*Planner, *Problem) (*Result, error)) {
	gen := newDrifting(58, 256)
	pr := &Problem{Ranks: evenRanks(32, 9)}
	var p Planner
	for range 2 {
		pr.Layers = gen.next()
		r, err := plan(&p, pr)
		if err != nil {
			b.Fatal(err)
		}
		pr.Old = r.Placement
	}
	pr.Layers = gen.next()
	for b.Loop() {
		r, err := plan(&p, pr)
		if err != nil {
			b.Fatal(err)
		}
		all, _ := r.Balance()
		b.ReportMetric(all, "balance")
		b.ReportMetric(float64(r.Moved())/float64(len(r.Placement.Slot)), "moved")
	}
}

func BenchmarkFull(b *testing.B) {
	benchmark(b, func(p *Planner, pr *Problem) (*Result, error) { return p.Full(pr, Options{}) })
}

func BenchmarkIncremental(b *testing.B) {
	benchmark(b, func(p *Planner, pr *Problem) (*Result, error) { return p.Incremental(pr, Options{Price: 0.00066}) })
}
