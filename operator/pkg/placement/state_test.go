package placement

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// whole loads remain integers if up to 12 replicas share them on ranks of half or double speed, so equality is exact.
func whole(r *rand.Rand) float64 { return float64(2 * 27720 * (1 + r.IntN(1000))) }

// anyRanks with room for the experts, of 1 to 4 slots each and of a few speeds.
func anyRanks(r *rand.Rand, experts int) []Rank {
	var out []Rank
	for slots := 0; len(out) < 2 || slots < experts; {
		k := Rank{Slots: 1 + r.IntN(4), Speed: []float64{0, 0.5, 1, 2}[r.IntN(4)], Node: r.IntN(2)}
		out, slots = append(out, k), slots+min(k.Slots, experts)
		if r.IntN(4) == 0 {
			out = append(out, Rank{}) // dead
		}
	}
	return out
}

// scene is a planner in the middle of a layer: each expert has a slot, some have more replicas, slots may be empty.
func scene(t *testing.T, seed uint64) (*Planner, *Problem, *rand.Rand) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 20))
	experts := 2 + r.IntN(6)
	pr := &Problem{Layers: []Layer{{}}, Ranks: anyRanks(r, experts)}
	for range experts {
		pr.Layers[0].Load = append(pr.Layers[0].Load, whole(r))
	}
	c, err := pr.check()
	require.NoError(t, err)
	p := &Planner{}
	p.state.shape(c)
	s := &p.state
	s.begin(c.load[0], make([]int32, s.slots))
	for k, j := range r.Perm(s.slots) {
		e := int32(k)
		if k >= experts {
			e = int32(r.IntN(experts))
		}
		if k < experts || r.IntN(4) > 0 && !s.has[s.at(s.rankOf[j], e)] {
			s.put(int32(j), e)
		}
	}
	return p, pr, r
}

// requireSound compares the incremental state with one computed from the slots alone.
func requireSound(t *testing.T, s *state, slot []int32, was []bool) {
	t.Helper()
	require.Equal(t, slot, s.slot)
	count, load, has, moved := make([]int32, s.experts), make([]float64, s.ranks), make([]bool, s.ranks*s.experts), 0
	for _, e := range slot {
		if e != Empty {
			count[e]++
		}
	}
	for j, e := range slot {
		if e != Empty {
			g := s.rankOf[j]
			load[g] += s.w[e] / float64(count[e])
			has[int(g)*s.experts+int(e)] = true
			if !was[int(g)*s.experts+int(e)] {
				moved++
			}
		}
	}
	require.Equal(t, count, s.count)
	require.Equal(t, load, s.load)
	require.Equal(t, has, s.has)
	require.Equal(t, moved, s.moved)
	for e, n := range count {
		var lies []int32
		for j := s.head[e]; j >= 0; j = s.next[j] {
			require.Equal(t, int32(e), slot[j])
			lies = append(lies, j)
		}
		slices.Sort(lies)
		require.Len(t, slices.Compact(lies), int(n), "each slot of an expert is in its list once")
		if n > 0 {
			require.Equal(t, s.w[e]/float64(n), s.share[e])
			require.Equal(t, s.w[e]/float64(n+1), s.more[e])
		} else {
			require.Zero(t, s.share[e])
		}
	}
}

func TestStateMatchesSlots(t *testing.T) {
	for seed := range uint64(60) {
		p, pr, r := scene(t, seed)
		s := &p.state
		was := make([]bool, s.ranks*s.experts)
		pr.Old = &Placement{Experts: s.experts, Start: []int32{0, 3, 4}, Slot: []int32{0, 1, Empty, 1}} // of two ranks, which all scenes have
		for _, i := range []int{s.at(0, 0), s.at(0, 1), s.at(1, 1)} {
			was[i] = true
		}
		s.remember(pr.Old, 0)
		require.Equal(t, was, s.was)
		s.moved = 0
		for j, e := range s.slot {
			if e != Empty {
				s.moved += s.arrives(s.rankOf[j], e)
			}
		}
		for range 60 {
			slot := slices.Clone(s.slot)
			i, j, e := int32(r.IntN(s.slots)), int32(r.IntN(s.slots)), int32(r.IntN(s.experts))
			switch {
			case slot[j] != Empty && r.IntN(3) == 0:
				s.take(j)
				slot[j] = Empty
			case slot[j] == Empty && !s.has[s.at(s.rankOf[j], e)]:
				s.put(j, e)
				slot[j] = e
			case p.mayExchange(i, j):
				before, adds := s.moved, s.swapMoves(i, j)
				s.swap(i, j)
				slot[i], slot[j] = slot[j], slot[i]
				require.Equal(t, adds, s.moved-before)
			}
			requireSound(t, s, slot, was)
			hot, peak := s.hottest()
			require.Equal(t, peak, s.load[hot]/pr.Ranks[hot].speed())
			for g, k := range pr.Ranks {
				require.LessOrEqual(t, s.load[g]/k.speed(), peak)
			}
		}
		if slot := slices.Clone(s.slot); !slices.Contains(s.count, 0) {
			moved := s.moved
			s.take(s.head[0]) // the content of the slots does not matter
			p.restore(slot)
			s.moved = moved
			requireSound(t, s, slot, was)
			clear(s.load)
			s.settle()
			requireSound(t, s, slot, was)
		}
		s.forget(pr.Old, 0)
		require.NotContains(t, s.was, true)
	}
}

// A layer starts with empty slots, whatever the previous one had.
func TestLayerStartsEmpty(t *testing.T) {
	p, pr, _ := scene(t, 5)
	s := &p.state
	require.Positive(t, s.moved)
	s.begin(pr.Layers[0].Load, s.slot)
	require.NotContains(t, s.head, int32(0))
	requireSound(t, s, slices.Repeat([]int32{Empty}, s.slots), s.has)
}

func TestMayExchange(t *testing.T) {
	for seed := range uint64(40) {
		p, _, _ := scene(t, seed)
		s := &p.state
		for i := range int32(s.slots) {
			for j := range int32(s.slots) {
				held := func(at, e int32) bool { // by the rank of `at`, in another slot
					for k := range int32(s.slots) {
						if k != at && s.rankOf[k] == s.rankOf[at] && s.slot[k] == e && e != Empty {
							return true
						}
					}
					return false
				}
				want := s.rankOf[i] != s.rankOf[j] && s.slot[i] != s.slot[j] && !held(i, s.slot[j]) && !held(j, s.slot[i])
				require.Equal(t, want, p.mayExchange(i, j), "seed %d: %d, %d", seed, i, j)
			}
		}
	}
}
