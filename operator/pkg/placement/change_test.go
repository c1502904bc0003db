package placement

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// aimed is a scene with an aim below its peak, and an old placement that differs from the current one in some slots.
func aimed(t *testing.T, seed uint64) (p *Planner, hot int32, peak float64, to aim) {
	t.Helper()
	p, _, r := scene(t, seed)
	s := &p.state
	for i := range s.was {
		s.was[i] = s.has[i] != (r.IntN(4) == 0)
	}
	s.moved = movedNow(s, s.slot)
	p.keep = make([]bool, s.experts)
	hot, peak = s.hottest()
	return p, hot, peak, aimAt(max(s.mean, peak*(0.5+0.5*r.Float64())))
}

func movedNow(s *state, slot []int32) (n int) {
	for j, e := range slot {
		if e != Empty && !s.was[s.at(s.rankOf[j], e)] {
			n++
		}
	}
	return n
}

// scoreOf a change: the decrease of the load over the aim, per moved slot.
func scoreOf(s *state, to aim, slot []int32) float64 {
	before, after, gain := timesOf(s, s.slot), timesOf(s, slot), 0.0
	for g := range after {
		gain += to.excess(before[g]) - to.excess(after[g])
	}
	return perMove(gain, int32(movedNow(s, slot)-movedNow(s, s.slot)))
}

// The chosen change has the declared score, and no change of one replica that relieves the hottest rank scores higher,
// except those that the estimate skips: a rank that holds both experts, ranks under the aim, slots after an empty one,
// and replacements of one newcomer by another on the hottest rank.
func TestCheapestChange(t *testing.T) {
	found, swaps := 0, 0
	for seed := range uint64(300) {
		p, hot, peak, to := aimed(t, seed)
		s := &p.state
		c, ok := p.cheapest(hot, peak, to)
		require.Equal(t, c.score > 0, ok)
		best := 0.0
		times := timesOf(s, s.slot)
		for j := range int32(s.slots) {
			g := s.rankOf[j]
			for e := range int32(s.experts) {
				mine := slices.Contains(s.slot[s.start[hot]:s.start[hot+1]], e)
				if !replaceable(s, j, e) || g != hot && (!mine || times[g] >= to.at) {
					continue
				}
				if slices.Contains(s.slot[s.start[g]:j], Empty) {
					continue
				}
				if b := s.slot[j]; g == hot && b != Empty && !s.was[s.at(g, b)] && !s.was[s.at(g, e)] {
					continue
				}
				after := with(s.slot, j, e)
				if relieved := timesOf(s, after)[hot] < times[hot]*(1-1e-12); !relieved || together(s, s.slot[j], e) {
					continue
				}
				small := false // the gain of ranks under the aim is negligible
				for h := range times {
					small = small || times[h] <= to.at && slices.Contains(s.slot[s.start[h]:s.start[h+1]], e)
				}
				if !small {
					best = max(best, scoreOf(s, to, after))
				}
			}
		}
		if !ok {
			require.LessOrEqual(t, best, 1e-9*peak, "seed %d", seed)
			continue
		}
		found++
		require.GreaterOrEqual(t, c.score, best*(1-1e-9)-1e-9*peak, "seed %d", seed)
		before, slot := s.moved, slices.Clone(s.slot)
		if c.swap {
			swaps++
			slot[c.i], slot[c.j] = slot[c.j], slot[c.i]
		} else {
			slot[c.i] = c.e
		}
		require.InDelta(t, scoreOf(s, to, slot), c.score, 1e-9*peak, "seed %d", seed)

		// Its execution and undo match the declaration.
		was, lay := slices.Clone(s.was), slices.Clone(s.slot)
		p.log = p.log[:0]
		p.apply(c)
		requireSound(t, s, slot, was)
		p.undo()
		requireSound(t, s, lay, was)
		require.Equal(t, before, s.moved)
	}
	require.Greater(t, found, 150)
	require.Greater(t, swaps, 30)
}

// together reports whether a rank holds both, or one of them is Empty.
func together(s *state, a, b int32) bool {
	for g := range s.ranks {
		held := s.slot[s.start[g]:s.start[g+1]]
		if a != Empty && slices.Contains(held, a) && slices.Contains(held, b) {
			return true
		}
	}
	return false
}

// A chosen exchange heals as much per move as any with the coldest rank.
func TestCheapestSwap(t *testing.T) {
	for seed := range uint64(200) {
		p, hot, peak, to := aimed(t, seed)
		s := &p.state
		times := timesOf(s, s.slot)
		coldest := slices.MinFunc(s.live, func(a, b int32) int {
			if times[a] < times[b] {
				return -1
			}
			return 1
		})
		limit := peak * (1 - 1e-12)
		best := candidate{}
		p.cheapestSwap(hot, limit, to, &best)
		if coldest == hot || times[coldest] >= to.at {
			require.Zero(t, best)
			continue
		}
		want := 0.0
		for i := s.start[hot]; i < s.start[hot+1]; i++ {
			for j := s.start[coldest]; j < s.start[coldest+1]; j++ {
				if s.slot[i] == Empty || !p.mayExchange(i, j) {
					continue
				}
				slot := with(with(s.slot, i, s.slot[j]), j, s.slot[i])
				if now := timesOf(s, slot); now[hot] < limit && now[coldest] < limit {
					want = max(want, scoreOf(s, to, slot))
				}
			}
		}
		require.GreaterOrEqual(t, best.score, want*(1-1e-9)-1e-9*peak, "seed %d", seed)
		if best.score > 0 {
			require.True(t, best.swap && p.mayExchange(best.i, best.j))
			require.Equal(t, hot, s.rankOf[best.i])
			require.Less(t, s.time(s.rankOf[best.j]), to.at)
			slot := with(with(s.slot, best.i, s.slot[best.j]), best.j, s.slot[best.i])
			require.InDelta(t, scoreOf(s, to, slot), best.score, 1e-9*peak)
			require.Less(t, slices.Max([]float64{timesOf(s, slot)[hot], timesOf(s, slot)[s.rankOf[best.j]]}), peak)
		}
	}
}

// An exchange leaves the hottest rank cooler, however near it brings tokens.
func TestSwapForLocalityCoolsHottestRank(t *testing.T) {
	found := 0
	for seed := range uint64(100) {
		p, _, _ := asking(t, seed, 30)
		s := &p.state
		hot, peak := s.hottest()
		limit := peak * (1 - 1e-12)
		best := candidate{}
		p.cheapestSwap(hot, limit, aimAt(max(s.mean, 0.8*peak)), &best)
		if best.score > 0 {
			found++
			slot := with(with(s.slot, best.i, s.slot[best.j]), best.j, s.slot[best.i])
			require.Less(t, timesOf(s, slot)[hot], peak, "seed %d", seed)
		}
	}
	require.Greater(t, found, 20)
}

// A forced replica is of the hottest rank's heaviest expert, on the rank where it hurts least, once per layer.
func TestForce(t *testing.T) {
	found := 0
	for seed := range uint64(150) {
		p, hot, _, to := aimed(t, seed)
		s := &p.state
		heaviest := Empty
		for _, e := range s.slot[s.start[hot]:s.start[hot+1]] {
			if e != Empty && (heaviest == Empty || s.share[e] > s.share[heaviest]) {
				heaviest = e
			}
		}
		kept := int32(seed % uint64(s.experts))
		p.keep[kept] = true
		want, times := math.Inf(-1), timesOf(s, s.slot)
		for j := range int32(s.slots) {
			if heaviest == kept || !replaceable(s, j, heaviest) || s.slot[j] == kept {
				continue
			}
			slot := with(s.slot, j, heaviest)
			if now := timesOf(s, slot); now[hot] < times[hot] {
				gain := 0.0
				for g := range now {
					gain += to.excess(times[g]) - to.excess(now[g])
				}
				want = max(want, gain)
			}
		}
		c, ok := p.force(hot, to)
		require.Equal(t, !math.IsInf(want, -1), ok, "seed %d", seed)
		if !ok {
			continue
		}
		found++
		require.Equal(t, heaviest, c.e)
		require.False(t, c.swap)
		got, _ := p.gain(hot, c.i, c.e, to)
		require.InDelta(t, want, got, 1e-6, "seed %d", seed)
		_, ok = p.force(hot, to)
		require.False(t, ok, "one is enough")
	}
	require.Greater(t, found, 40)
}

// Experts without a holder are placed, the heaviest first, in the slot with the lowest resulting peak; of equals an
// empty one.
func TestRepair(t *testing.T) {
	for seed := range uint64(150) {
		p, _, _ := scene(t, seed)
		s := &p.state
		r := rand.New(rand.NewPCG(seed, 24))
		for j := range int32(s.slots) { // lose some
			if e := s.slot[j]; e != Empty && r.IntN(3) == 0 {
				s.take(j)
			}
			if e := int32(r.IntN(s.experts)); s.slot[j] == Empty && seed%2 == 0 && s.count[e] > 0 && !s.has[s.at(s.rankOf[j], e)] {
				s.put(j, e) // with another replica in its slot
			}
		}
		want := slices.Clone(s.slot)
		q, _, _ := scene(t, seed) // repeats it by the definition
		for {
			q.restore(want)
			lost := int32(-1)
			for e := range int32(s.experts) {
				if !slices.Contains(want, e) && (lost < 0 || s.w[e] > s.w[lost]) {
					lost = e
				}
			}
			if lost < 0 {
				break
			}
			hot, _ := q.state.hottest()
			before := timesOf(s, want)
			slot, least := int32(-1), math.Inf(1)
			empty := slices.Contains(want, Empty)
			for j := range int32(s.slots) {
				if n := len(slices.DeleteFunc(slices.Clone(want), func(e int32) bool { return e != want[j] })); want[j] != Empty && (n < 2 || empty) {
					continue
				}
				after := timesOf(s, with(want, j, lost))
				worst := after[hot]
				for g := range after {
					if after[g] != before[g] {
						worst = max(worst, after[g])
					}
				}
				if worst < least {
					slot, least = j, worst
				}
			}
			want[slot] = lost
		}
		p.repair()
		require.Equal(t, want, s.slot, "seed %d", seed)
	}
}
