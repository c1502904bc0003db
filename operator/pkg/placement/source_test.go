package placement

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// served returns the shares of a layer's tokens that are served on their source rank and in its node, if rank g has the
// content of rank order[g].
func served(pr *Problem, p *Placement, l int, order []int) (local, near float64) {
	count := map[int32]float64{}
	for _, e := range p.Layer(l) {
		count[e]++
	}
	total := 0.0
	for _, w := range loadOf(pr, l) {
		total += w
	}
	for g, from := range order {
		for _, e := range p.Rank(l, from) {
			for s, row := range pr.Layers[l].BySource {
				if e != Empty && total > 0 && s == g {
					local += row[e] / count[e] / total
				}
				if e != Empty && total > 0 && pr.Ranks[s].Node == pr.Ranks[g].Node {
					near += row[e] / count[e] / total
				}
			}
		}
	}
	return local, near
}

// asking is a scene with tokens by source rank.
func asking(t *testing.T, seed uint64, locality float64) (*Planner, *Problem, *rand.Rand) {
	t.Helper()
	p, pr, r := scene(t, seed)
	load := pr.Layers[0].Load
	by := make([][]float64, len(pr.Ranks))
	for g := range by {
		by[g] = make([]float64, len(load))
	}
	for e, w := range load {
		for range 3 {
			by[r.IntN(len(by))][e] += w / 3
		}
	}
	pr.Layers[0].BySource = by
	p.ask.ready(&p.state, pr, 0, Options{Locality: locality})
	return p, pr, r
}

func inOrder(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// An exchange gains Locality times the tokens, over the mean, that are served nearer after it: half for the node, half
// for the rank.
func TestExchangeGainsLocality(t *testing.T) {
	for seed := range uint64(60) {
		const locality = 0.7
		p, pr, _ := asking(t, seed, locality)
		s := &p.state
		worth := func(slot []int32) float64 {
			local, near := served(pr, &Placement{Experts: s.experts, Start: s.start, Slot: slot}, 0, inOrder(s.ranks))
			total := 0.0
			for _, w := range s.w {
				total += w
			}
			return locality * (local + near) / 2 * total / s.mean
		}
		before := worth(s.slot)
		for i := range int32(s.slots) {
			for j := range int32(s.slots) {
				if !p.mayExchange(i, j) {
					continue
				}
				after := with(with(s.slot, i, s.slot[j]), j, s.slot[i])
				gain, diff := p.nearer(i, j)
				require.InDelta(t, worth(after)-before, gain, 1e-9, "seed %d", seed)
				h := s.rankOf[j]
				require.InDelta(t, (timesOf(s, after)[h]-timesOf(s, s.slot)[h])/s.slow[h], diff, 1e-6)
			}
		}
		local, near := p.ask.shares(s)
		wantLocal, wantNear := served(pr, &Placement{Experts: s.experts, Start: s.start, Slot: s.slot}, 0, inOrder(s.ranks))
		require.InDelta(t, wantLocal, local, 1e-9)
		require.InDelta(t, wantNear, near, 1e-9)

		// An approach ends when no exchange brings tokens nearer without a higher peak.
		_, peak := s.hottest()
		p.approach(Options{Locality: locality})
		requireSound(t, s, slices.Clone(s.slot), make([]bool, len(s.was)))
		_, now := s.hottest()
		require.LessOrEqual(t, now, peak)
		require.GreaterOrEqual(t, worth(s.slot), before-1e-9)
		for i := range int32(s.slots) {
			for j := range int32(s.slots) {
				if p.mayExchange(i, j) {
					after := with(with(s.slot, i, s.slot[j]), j, s.slot[i])
					require.False(t, worth(after) > worth(s.slot)+1e-8 && slices.Max(timesOf(s, after)) <= peak, "seed %d: %d, %d", seed, i, j)
				}
			}
		}
	}
}

// Two ranks each hold the expert of the other's tokens. Both experts have equal load, so they change places, though no
// rank may get hotter.
func TestEqualExpertsSwapForLocality(t *testing.T) {
	pr := &Problem{Layers: []Layer{{BySource: [][]float64{{0, 4, 1}, {4, 0, 0}, {0, 0, 1}}}}, Ranks: evenRanks(3, 1)}
	c, err := pr.check()
	require.NoError(t, err)
	var p Planner
	s := &p.state
	s.shape(c)
	s.begin(c.load[0], make([]int32, 3))
	for g, e := range []int32{0, 1, 2} {
		s.put(int32(g), e)
	}
	p.ask.ready(s, pr, 0, Options{Locality: 1})
	p.approach(Options{Locality: 1})
	require.Equal(t, []int32{1, 0, 2}, s.slot)
}

// A layer without tokens keeps its seats, even after a layer with tokens.
func TestIdleLayerKeepsSeats(t *testing.T) {
	asked, idle := make([][]float64, 4), make([][]float64, 4)
	for g := range asked {
		asked[g], idle[g] = []float64{float64(g), 3, 1, 2, 0, 1}, make([]float64, 6)
	}
	pr := &Problem{Layers: []Layer{{BySource: asked}, {BySource: idle}}, Ranks: evenRanks(4, 2)}
	var p Planner
	first, err := p.Full(pr, Options{Locality: 1})
	require.NoError(t, err)
	pr.Old = &Placement{Experts: 6, Start: first.Placement.Start, Slot: slices.Clone(first.Placement.Slot)}
	for g := range 4 { // each rank had the name of the next
		copy(pr.Old.Rank(1, g), first.Placement.Rank(1, (g+1)%4))
	}
	again, err := p.Full(pr, Options{Locality: 1})
	require.NoError(t, err)
	require.Zero(t, again.Layers[1].Moved)
}

// Without tokens by source, without a price on distance or without tokens, no exchange is nearer.
func TestApproachChangesNothing_WhenNoDemand(t *testing.T) {
	nearer := 0
	for seed := range uint64(10) {
		p, pr, _ := asking(t, seed, 1)
		by, before := pr.Layers[0].BySource, slices.Clone(p.state.slot)
		pr.Layers[0].BySource = nil
		p.ask.ready(&p.state, pr, 0, Options{Locality: 1})
		p.approach(Options{Locality: 1})
		require.Equal(t, before, p.state.slot, "seed %d: what a layer before asked for does not matter", seed)
		pr.Layers[0].BySource = by
		p.ask.ready(&p.state, pr, 0, Options{Locality: 1})
		if p.approach(Options{Locality: 1}); !slices.Equal(before, p.state.slot) {
			nearer++
		}
	}
	require.Greater(t, nearer, 3)

	p, pr, _ := asking(t, 1, 0)
	before := slices.Clone(p.state.slot)
	p.approach(Options{})
	require.Equal(t, before, p.state.slot)
	pr.Layers[0].BySource = nil
	p.ask.ready(&p.state, pr, 0, Options{Locality: 1})
	p.approach(Options{Locality: 1})
	require.Equal(t, before, p.state.slot)
	local, near := p.ask.shares(&p.state)
	require.Zero(t, local+near)

	idle := &Problem{Layers: []Layer{{BySource: [][]float64{{0, 0}, {0, 0}}}}, Ranks: evenRanks(2, 1)}
	got, err := p.Full(idle, Options{Locality: 1})
	require.NoError(t, err)
	require.NoError(t, verify(idle, got))
	require.False(t, math.IsNaN(got.Layers[0].Local+got.Layers[0].Near))
}
