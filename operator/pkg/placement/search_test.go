package placement

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// timesOf returns the times of all ranks for this content of the slots.
func timesOf(s *state, slot []int32) []float64 {
	count, out := make([]float64, s.experts), make([]float64, s.ranks)
	for _, e := range slot {
		if e != Empty {
			count[e]++
		}
	}
	for j, e := range slot {
		if e != Empty {
			out[s.rankOf[j]] += s.w[e] / count[e] * s.slow[s.rankOf[j]]
		}
	}
	return out
}

func with(slot []int32, j, e int32) []int32 {
	out := slices.Clone(slot)
	out[j] = e
	return out
}

// replaceable: slot j may get e: the rank lacks it, and the slot's expert has another replica.
func replaceable(s *state, j, e int32) bool {
	for k := s.start[s.rankOf[j]]; k < s.start[s.rankOf[j]+1]; k++ {
		if s.slot[k] == e {
			return false
		}
	}
	n := 0
	for _, b := range s.slot {
		if b == s.slot[j] {
			n++
		}
	}
	return s.slot[j] == Empty || n > 1
}

// The predicted effect of a change of one replica is exact: the peak of the ranks that it touches, and the load over
// the aim.
func TestReplicaChangeMatchesPrediction(t *testing.T) {
	for seed := range uint64(80) {
		p, _, r := scene(t, seed)
		s := &p.state
		hot, peak := s.hottest()
		to := aimAt(peak * (0.4 + 0.5*r.Float64()))
		before := timesOf(s, s.slot)
		for j := range int32(s.slots) {
			for e := range int32(s.experts) {
				if !replaceable(s, j, e) {
					continue
				}
				after := timesOf(s, with(s.slot, j, e))
				worst, gain := after[hot], 0.0
				for g := range after {
					if after[g] != before[g] {
						worst = max(worst, after[g])
						gain += to.excess(before[g]) - to.excess(after[g])
					}
				}
				require.InEpsilon(t, worst, p.peakAfter(hot, j, e, math.Inf(1)), 1e-12)
				require.True(t, math.IsInf(p.peakAfter(hot, j, e, worst*(1-1e-9)), 1))
				got, ok := p.gain(hot, j, e, to)
				require.Equal(t, after[hot] < before[hot]*(1-1e-12), ok, "seed %d", seed)
				if ok {
					require.InDelta(t, gain, got, 1e-9*peak, "seed %d", seed)
				}
			}
		}
	}
}

// pairs is the minimum over exchanges that take load from g of the larger time of ranks g and h; limit if none is below
// it.
func pairs(s *state, g, h int32, limit float64) float64 {
	least := limit
	before := timesOf(s, s.slot)
	for x := s.start[g]; x < s.start[g+1]; x++ {
		for y := s.start[h]; y < s.start[h+1]; y++ {
			held := func(rank, e int32) bool {
				return e != Empty && slices.Contains(s.slot[s.start[rank]:s.start[rank+1]], e)
			}
			if s.slot[x] == Empty || held(h, s.slot[x]) || held(g, s.slot[y]) {
				continue
			}
			after := timesOf(s, with(with(s.slot, x, s.slot[y]), y, s.slot[x]))
			if after[g] < before[g] {
				least = min(least, max(after[g], after[h]))
			}
		}
	}
	return least
}

// An exchange is the best pair of the three coldest ranks that have one, or the first that brings both ranks to the
// goal.
func TestExchange(t *testing.T) {
	found := 0
	for seed := range uint64(200) {
		p, _, r := scene(t, seed)
		s := &p.state
		hot, peak := s.hottest()
		goal := peak * r.Float64()
		limit, left := peak*(1-1e-12), math.MaxInt
		times := timesOf(s, s.slot)
		cold := slices.DeleteFunc(slices.Clone(s.live), func(h int32) bool { return times[h] >= peak })
		slices.SortFunc(cold, func(a, b int32) int { return cmp.Compare(times[a], times[b]) })
		if len(slices.CompactFunc(slices.Clone(cold), func(a, b int32) bool { return times[a] == times[b] })) < len(cold) {
			continue // the order of two equally cold ranks is arbitrary
		}
		want, looks := limit, 0
		size := func(g int32) int { return int(s.start[g+1] - s.start[g]) }
		for n, h := range cold {
			if want <= goal || n >= fewRanks && want < limit {
				break
			}
			want, looks = min(want, pairs(s, hot, h, want)), looks+size(hot)*size(h)
		}
		i, j, ok := p.exchange(hot, peak, goal, &left)
		require.Equal(t, want < limit, ok, "seed %d", seed)
		require.Equal(t, looks, math.MaxInt-left, "seed %d: it costs a look at each pair of slots", seed)
		if !ok {
			continue
		}
		found++
		require.True(t, p.mayExchange(i, j))
		require.Equal(t, hot, s.rankOf[i])
		after := timesOf(s, with(with(s.slot, i, s.slot[j]), j, s.slot[i]))
		got := max(after[hot], after[s.rankOf[j]])
		if want > goal {
			require.InEpsilon(t, want, got, 1e-12, "seed %d", seed)
		} else {
			require.LessOrEqual(t, got, goal, "seed %d", seed)
		}
	}
	require.Greater(t, found, 60)
}

// The best change of one replica that relieves the hottest rank: one of its slots gets any expert, or another slot one
// of its experts.
func TestReplica(t *testing.T) {
	found := 0
	for seed := range uint64(150) {
		p, _, _ := scene(t, seed)
		s := &p.state
		hot, peak := s.hottest()
		best := func() float64 {
			least := peak * (1 - 1e-12)
			for j := range int32(s.slots) {
				for e := range int32(s.experts) {
					mine := slices.Contains(s.slot[s.start[hot]:s.start[hot+1]], e)
					if (s.rankOf[j] == hot || mine) && replaceable(s, j, e) {
						least = min(least, p.peakAfter(hot, j, e, math.Inf(1)))
					}
				}
			}
			return least
		}
		left := math.MaxInt
		want := best()
		j, e, ok := p.replica(hot, peak, &left)
		require.Equal(t, want < peak*(1-1e-12), ok, "seed %d", seed)
		if ok {
			found++
			require.True(t, replaceable(s, j, e))
			require.InEpsilon(t, want, p.peakAfter(hot, j, e, math.Inf(1)), 1e-12, "seed %d", seed)
		}
		// A descent ends when neither helps.
		left = math.MaxInt
		end := p.descend(0, &left)
		requireSound(t, s, slices.Clone(s.slot), make([]bool, s.ranks*s.experts))
		hot, peak = s.hottest()
		require.Equal(t, peak, end)
		require.GreaterOrEqual(t, best(), peak*(1-1e-12), "seed %d", seed)
		for _, h := range s.live {
			if h != hot && s.time(h) < peak {
				require.GreaterOrEqual(t, pairs(s, hot, h, peak), peak*(1-1e-12), "seed %d", seed)
			}
		}
	}
	require.Greater(t, found, 60)
}

// The search for a replica takes the first of the best. It pays one unit of effort for a change that a quick check
// excludes, and one per affected rank for an exact evaluation.
func TestReplicaSearchEffort(t *testing.T) {
	quick, exact := 0, 0
	for seed := range uint64(100) {
		p, _, _ := scene(t, seed)
		s := &p.state
		hot, peak := s.hottest()
		before, least, cost := timesOf(s, s.slot), peak*(1-1e-12), 0
		slot, expert, found := int32(0), int32(0), false
		try := func(j, e int32) {
			if e == Empty || !replaceable(s, j, e) {
				return
			}
			after, g := timesOf(s, with(s.slot, j, e)), s.rankOf[j]
			lighter := before[hot] - s.slow[hot]*(s.w[e]/float64(s.count[e])-s.w[e]/float64(s.count[e]+1)) // if nothing else changes there
			if after[g] >= least || g != hot && lighter >= least {
				quick, cost = quick+1, cost+1
				return
			}
			exact, cost = exact+1, cost+int(s.count[e])+2
			worst := after[hot]
			for h := range after {
				if after[h] != before[h] {
					worst = max(worst, after[h])
				}
			}
			if worst < least {
				slot, expert, found, least = j, e, true, worst
			}
		}
		for j := range int32(s.slots) {
			if s.rankOf[j] == hot {
				for e := range int32(s.experts) {
					try(j, e)
				}
				continue
			}
			for _, e := range s.slot[s.start[hot]:s.start[hot+1]] {
				try(j, e)
			}
		}
		left := 1 << 20
		j, e, ok := p.replica(hot, peak, &left)
		require.Equal(t, []any{slot, expert, found}, []any{j, e, ok}, "seed %d", seed)
		require.Equal(t, cost, 1<<20-left, "seed %d", seed)
	}
	require.Positive(t, min(quick, exact))
}

// A descent without effort, or at its goal, changes nothing.
func TestDescendStopsAtGoalOrWithoutEffort(t *testing.T) {
	p, _, _ := scene(t, 3)
	before := slices.Clone(p.state.slot)
	_, peak := p.state.hottest()
	none, all := 0, math.MaxInt
	require.Equal(t, peak, p.descend(0, &none))
	require.Equal(t, peak, p.descend(peak, &all))
	require.Equal(t, before, p.state.slot)
}
