package placement

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// grouped is a problem with groups of experts, on nodes of which many are equal.
func grouped(seed uint64) *Problem {
	r := rand.New(rand.NewPCG(seed, 25))
	if seed%4 == 0 { // equal and full: groups pay
		pr := &Problem{Layers: []Layer{{}}, Ranks: evenRanks(8, 2)}
		for g := range pr.Ranks {
			pr.Ranks[g].Node = -(g % 2)
		}
		for e := range 16 {
			pr.Groups = append(pr.Groups, 7*(e%4))
			pr.Layers[0].Load = append(pr.Layers[0].Load, 27720*float64(990+r.IntN(10)))
		}
		return pr
	}
	pr := &Problem{Layers: make([]Layer, 1+r.IntN(2))}
	size, nodes := 1+r.IntN(3), 2+r.IntN(2)
	for k := range 2 + r.IntN(4) {
		for range size + r.IntN(2)*r.IntN(2) {
			pr.Groups = append(pr.Groups, 7*k)
		}
	}
	r.Shuffle(len(pr.Groups), func(i, j int) { pr.Groups[i], pr.Groups[j] = pr.Groups[j], pr.Groups[i] })
	kind := []Rank{{Slots: 1 + r.IntN(5)}, {Slots: 2 + r.IntN(4), Speed: 2}}
	skew := r.IntN(2) == 0
	for range 3 + r.IntN(2) {
		for n := range nodes {
			k := kind[r.IntN(8)/7]
			k.Node = -n
			pr.Ranks = append(pr.Ranks, k)
		}
	}
	for l := range pr.Layers {
		for range pr.Groups {
			load := 2 * 27720 * float64(900+r.IntN(100))
			if skew {
				load = whole(r) * float64(r.IntN(6)/5*4+1)
			}
			pr.Layers[l].Load = append(pr.Layers[l].Load, load)
		}
	}
	return pr
}

// Groups are kept if that pays, by the figures of the plan that keeps them. Otherwise the plan is the one without
// groups.
func TestGroupsAreKept_WhenBeneficial(t *testing.T) {
	var p Planner
	pays, not := 0, 0
	for seed := range worlds(48) {
		pr := grouped(seed)
		free, err := p.Full(pr, Options{Groups: IgnoreGroups})
		if err != nil {
			continue // too few slots
		}
		require.NoError(t, verify(pr, free))
		require.False(t, free.Hierarchical)
		kept, err := p.Full(pr, Options{Groups: KeepGroups})
		got, autoErr := p.Full(pr, Options{})
		require.NoError(t, autoErr)
		if err != nil {
			require.ErrorContains(t, err, "do not fit whole")
			require.Equal(t, free, got, "seed %d", seed)
			continue
		}
		require.NoError(t, verify(pr, kept), "seed %d", seed)
		require.True(t, kept.Hierarchical)
		var bound, peak, home, mean float64
		for l, f := range kept.Layers {
			require.LessOrEqual(t, f.Home, homeOf(pr, kept.Placement, l)+1e-9, "seed %d", seed)
			require.GreaterOrEqual(t, f.Home, homeLeast, "seed %d: no more leaves home", seed)
			bound, peak, home, mean = bound+f.Bound, peak+f.Peak, home+f.Home*f.Mean, mean+f.Mean
		}
		if bound >= balanceLeast*peak && home >= homeLeast*mean {
			require.Equal(t, kept, got, "seed %d", seed)
			pays++
		} else {
			require.Equal(t, free, got, "seed %d", seed)
			not++
		}
	}
	require.Positive(t, pays)
	require.Positive(t, not)
}

// After a renaming of nodes and of their ranks, the same plan moves nothing.
func TestRenamedNodesMoveNothing(t *testing.T) {
	var p Planner
	renamed := 0
	for seed := range worlds(48) {
		pr := grouped(seed)
		for g := range pr.Ranks { // all nodes equal
			pr.Ranks[g].Slots, pr.Ranks[g].Speed = pr.Ranks[0].Slots, 1
		}
		first, err := p.Full(pr, Options{Groups: KeepGroups})
		if err != nil {
			continue
		}
		r := rand.New(rand.NewPCG(seed, 26))
		pr.Old = &Placement{Experts: len(pr.Groups), Start: first.Placement.Start, Slot: slices.Clone(first.Placement.Slot)}
		nodes := map[int][]int{}
		for g, k := range pr.Ranks {
			nodes[k.Node] = append(nodes[k.Node], g)
		}
		for l := range pr.Layers {
			order := r.Perm(len(nodes))
			for n := range nodes {
				for k, g := range nodes[n] {
					copy(pr.Old.Rank(l, g), first.Placement.Rank(l, nodes[-order[-n]][(k+1)%len(nodes[n])]))
				}
			}
		}
		again, err := p.Full(pr, Options{Groups: KeepGroups})
		require.NoError(t, err)
		require.NoError(t, verify(pr, again), "seed %d", seed)
		require.Zero(t, again.Moved(), "seed %d", seed)
		for l, f := range again.Layers {
			require.InDelta(t, first.Layers[l].Home, f.Home, 1e-9)
		}
		require.Equal(t, pr.Old.Slot, again.Placement.Slot)
		renamed++
	}
	require.Greater(t, renamed, 2)
}

// The greedy method assigns nodes to groups: the large groups first, then the heavy ones, each to the node that
// finishes first. Afterwards no exchange of two groups, one of them of the hottest node, leaves both nodes cooler than
// that node is.
func TestGroupsAreAssignedToNodesGreedily(t *testing.T) {
	whole, refused := 0, 0
	for seed := range uint64(300) {
		pr := grouped(seed)
		c, err := pr.check()
		if err != nil {
			continue
		}
		var p Planner
		s, q := &p.state, &p.groups
		s.shape(c)
		require.True(t, q.ready(pr, s))
		s.begin(c.load[0], make([]int32, s.slots))
		load, room, speed, at, fits := greedyNodes(pr)
		require.Equal(t, fits, q.settleGroups(s), "seed %d", seed)
		if !fits {
			refused++
			continue
		}
		whole++
		most := func(load []float64) float64 {
			m := 0.0
			for n := range load {
				m = max(m, load[n]/speed[n])
			}
			return m
		}
		greedy := most(load)
		for k, n := range at { // from the greedy assignment to the current one
			var home int32
			w, size := 0.0, 0
			for e, name := range pr.Groups {
				if name == k {
					home, w, size = q.home[e], w+s.w[e], size+1
				}
			}
			load[n], room[n] = load[n]-w, room[n]+size
			load[home], room[home] = load[home]+w, room[home]-size
			at[k] = int(home)
			for e, name := range pr.Groups {
				require.True(t, name != k || q.home[e] == home, "a group is in one node")
			}
		}
		peak := most(load)
		require.LessOrEqual(t, peak, greedy)
		require.GreaterOrEqual(t, slices.Min(room), 0)
		weigh := func(k int) (w float64, size int) {
			for e, name := range pr.Groups {
				if name == k {
					w, size = w+s.w[e], size+1
				}
			}
			return w, size
		}
		hot := 0
		for n := range load {
			if load[n]/speed[n] > load[hot]/speed[hot] {
				hot = n
			}
		}
		for a, x := range at {
			for b, y := range at {
				wa, na := weigh(a)
				wb, nb := weigh(b)
				if x == hot && y != hot && room[x]+na >= nb && room[y]+nb >= na {
					after := max((load[x]-wa+wb)/speed[x], (load[y]+wa-wb)/speed[y])
					require.GreaterOrEqual(t, after, peak*(1-1e-9), "seed %d: groups %d and %d", seed, a, b)
				}
			}
		}
	}
	require.Greater(t, whole, 100)
	require.Positive(t, refused)
}

// greedyNodes returns the greedy assignment of groups to nodes, numbered in the order of ranks.
func greedyNodes(pr *Problem) (load []float64, room []int, speed []float64, at map[int]int, fits bool) {
	number := map[int]int{}
	for _, k := range pr.Ranks {
		if _, ok := number[k.Node]; !ok {
			number[k.Node] = len(number)
			load, room, speed = append(load, 0), append(room, 0), append(speed, 0)
		}
		n := number[k.Node]
		room[n], speed[n] = room[n]+min(k.Slots, len(pr.Groups)), speed[n]+k.speed()
	}
	weight, size := map[int]float64{}, map[int]int{}
	var order []int
	for e, k := range pr.Groups {
		if size[k] == 0 {
			order = append(order, k)
		}
		weight[k], size[k] = weight[k]+pr.Layers[0].Load[e], size[k]+1
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(size[b], size[a]), cmp.Compare(weight[b], weight[a])) })
	at = map[int]int{}
	for _, k := range order {
		best := -1
		for n := range load {
			if room[n] >= size[k] && (best < 0 || (load[n]+weight[k])/speed[n] < (load[best]+weight[k])/speed[best]) {
				best = n
			}
		}
		if best < 0 {
			return nil, nil, nil, nil, false
		}
		at[k], load[best], room[best] = best, load[best]+weight[k], room[best]-size[k]
	}
	return load, room, speed, at, true
}

// The predicted change of the load away from home is exact.
func TestPredictedLoadAwayFromHomeIsExact(t *testing.T) {
	for seed := range uint64(60) {
		p, pr, r := scene(t, seed)
		s, q := &p.state, &p.groups
		for range s.experts {
			pr.Groups = append(pr.Groups, r.IntN(2))
		}
		if !q.ready(pr, s) {
			continue
		}
		for e := range q.home {
			q.home[e] = int32(pr.Groups[e])
		}
		for g := range int32(s.ranks) {
			for e := range int32(s.experts) {
				s.was[s.at(g, e)] = s.start[g+1] > s.start[g] && q.nodeOf[g] == q.home[e]
			}
		}
		total := 0.0
		for _, w := range s.w {
			total += w
		}
		away := func(slot []int32) float64 {
			out := 0.0
			for j, e := range slot {
				if e != Empty && int32(pr.Groups[e]) != q.nodeOf[s.rankOf[j]] {
					n := len(slices.DeleteFunc(slices.Clone(slot), func(x int32) bool { return x != e }))
					out += s.w[e] / float64(n)
				}
			}
			return out
		}
		require.InDelta(t, 1-away(s.slot)/total, q.share(s), 1e-9)
		for j := range int32(s.slots) {
			for e := range int32(s.experts) {
				if !replaceable(s, j, e) {
					continue
				}
				got := q.away(s, e, 1, s.arrives(s.rankOf[j], e))
				if b := s.slot[j]; b != Empty {
					got += q.away(s, b, -1, -s.arrives(s.rankOf[j], b))
				}
				require.InDelta(t, away(with(s.slot, j, e))-away(s.slot), got, 1e-6, "seed %d", seed)
			}
		}
	}
}

// Less load away from home is worth more. Once `closed` is set, a change that moves load away is worth nothing.
func TestValueOfLoadAwayFromHome(t *testing.T) {
	q := &grouping{}
	require.Greater(t, q.perAway(2, 1, 10), q.perAway(1, 1, 10))
	require.Greater(t, q.perAway(1, 0.5, 10), q.perAway(1, 1, 10))
	require.Equal(t, q.perAway(1, 0, 10), q.perAway(1, -1, 10), "what comes home counts as what stays")
	require.InDelta(t, 1/1.2, q.perAway(1, 1, 10), 1e-12)
	q.closed = true
	require.Zero(t, q.perAway(1, 1e-3, 10))
	require.InDelta(t, 5, q.perAway(1, 0, 10), 1e-12)
	require.InDelta(t, 5, q.perAway(1, 0.9e-8, 10), 1e-6, "rounding does not close it")
	mean := 10.0
	require.Positive(t, q.perAway(1, 1e-9*mean, mean))
}
