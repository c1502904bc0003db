package placement

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// With one node, or one group, there is nothing to keep together: the plan is one without groups, even with KeepGroups.
func TestGroupsAreIgnored_WhenOneNodeOrGroup(t *testing.T) {
	for what, change := range map[string]func(*Problem){
		"one node":  func(pr *Problem) { pr.Ranks[2].Node, pr.Ranks[3].Node = pr.Ranks[0].Node, pr.Ranks[0].Node },
		"one group": func(pr *Problem) { pr.Groups = []int{5, 5, 5, 5, 5, 5} },
		"no groups": func(pr *Problem) { pr.Groups = nil },
	} {
		pr := &Problem{Layers: []Layer{{Load: []float64{9, 5, 4, 3, 2, 1}}}, Ranks: evenRanks(4, 2), Groups: []int{1, 1, 1, 2, 2, 2}}
		pr.Ranks[2].Node, pr.Ranks[3].Node = 1, 1
		var p Planner
		kept, err := p.Full(pr, Options{Groups: KeepGroups})
		require.NoError(t, err)
		require.True(t, kept.Hierarchical, "two of each are kept")
		require.Positive(t, kept.Layers[0].Home)
		change(pr)
		free, err := p.Full(pr, Options{Groups: IgnoreGroups})
		require.NoError(t, err)
		for _, policy := range []GroupPolicy{AutoGroups, KeepGroups} {
			got, err := p.Full(pr, Options{Groups: policy})
			require.NoError(t, err, what)
			require.Equal(t, free, got, what)
			require.False(t, got.Hierarchical, what)
			require.Zero(t, got.Layers[0].Home, what)
		}
	}
}

// The bound of a plan, in nodes too, is that of the whole layer: its hottest replica on the fastest rank, or the mean.
func TestPlanBound(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 32))
		pr := &Problem{Layers: []Layer{{}}, Ranks: evenRanks(4, 3)}
		for g := range pr.Ranks {
			pr.Ranks[g].Node, pr.Ranks[g].Speed = g/2, []float64{2, 0.5}[g%2]
		}
		for e := range 8 {
			pr.Groups = append(pr.Groups, e/2)
			pr.Layers[0].Load = append(pr.Layers[0].Load, whole(r))
		}
		pr.Layers[0].Load[r.IntN(8)] *= float64(1 + r.IntN(60))
		for _, policy := range []GroupPolicy{KeepGroups, IgnoreGroups} {
			got, err := new(Planner).Full(pr, Options{Groups: policy})
			require.NoError(t, err)
			require.NoError(t, verify(pr, got))
			require.InEpsilon(t, EvenFloor(pr.Layers[0].Load, pr.Ranks), got.Layers[0].Bound, 1e-12, "seed %d", seed)
			pr.Old = got.Placement
		}
		got, err := new(Planner).Incremental(pr, Options{})
		require.NoError(t, err)
		require.InEpsilon(t, EvenFloor(pr.Layers[0].Load, pr.Ranks), got.Layers[0].Bound, 1e-12, "seed %d", seed)
	}
}

// One exchange of groups is the first of those that leave the larger of the two nodes least loaded, and loads and room
// stay correct.
func TestGroupExchange(t *testing.T) {
	changed := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 33))
		q := &grouping{groups: make([][]int32, 2+r.IntN(6))}
		nodes := 2 + r.IntN(2)
		at, weight := make([]int, len(q.groups)), make([]float64, len(q.groups))
		load, speed, room := make([]float64, nodes), make([]float64, nodes), make([]int, nodes)
		for n := range speed {
			speed[n] = []float64{1, 2, 4}[r.IntN(3)]
			room[n] = r.IntN(3)
		}
		for k := range q.groups {
			q.groups[k] = make([]int32, 1+r.IntN(3))
			weight[k], at[k] = float64(r.IntN(12)), r.IntN(nodes)
		}
		// books returns the times and the remaining room of the nodes after a move of the groups from `at` to `now`.
		books := func(now []int) ([]float64, []int) {
			times, left := make([]float64, nodes), slices.Clone(room)
			for k, n := range now {
				times[n] += weight[k] / speed[n]
				left[n] -= len(q.groups[k])
				left[at[k]] += len(q.groups[k])
			}
			return times, left
		}
		was := slices.Clone(at)
		times, _ := books(was)
		for k, n := range at {
			load[n] += weight[k]
		}
		for rounds := 0; ; rounds++ {
			hot := slices.Index(times, slices.Max(times))
			want, least := slices.Clone(was), times[hot]*(1-1e-12)
			for i := range was {
				for j := range was {
					if was[i] != hot || was[j] == hot {
						continue
					}
					now := slices.Clone(was)
					now[i], now[j] = now[j], now[i]
					after, left := books(now)
					if larger := max(after[hot], after[was[j]]); larger < least && slices.Min(left) >= 0 {
						want, least = now, larger
					}
				}
			}
			now, left := slices.Clone(was), slices.Clone(room)
			if rounds > 0 {
				_, left = books(was)
			}
			ok := q.cool(now, weight, load, speed, left)
			require.Equal(t, want, now, "seed %d", seed)
			require.Equal(t, !slices.Equal(want, was), ok)
			if !ok {
				break
			}
			changed++
			var after []int
			times, after = books(now)
			require.Equal(t, after, left, "seed %d", seed)
			for n := range load {
				require.Equal(t, times[n]*speed[n], load[n])
			}
			was = now
		}
	}
	require.Greater(t, changed, 100)
}

// Worked by hand: three nodes, the middle one unlike the others; their plan, their old content, and their content after
// the renaming. A node takes the name of an equal one that held more of it, never that of an unequal one.
func TestNodesSwapNamesOnlyWithEqualNodes(t *testing.T) {
	for what, c := range map[string]struct {
		middle          Rank
		old, plan, want [][]int32
	}{
		"all that moved comes back":      {Rank{Slots: 2}, [][]int32{{4, 5}, {2, 3}, {0, 1}}, [][]int32{{0, 1}, {2, 3}, {4, 5}}, [][]int32{{4, 5}, {2, 3}, {0, 1}}},
		"more slots are unlike":          {Rank{Slots: 3}, [][]int32{{6}, {0, 1, 4}, {6}}, [][]int32{{0, 1}, {2, 3, 6}, {4, 5}}, [][]int32{{0, 1}, {2, 3, 6}, {4, 5}}},
		"another speed is unlike":        {Rank{Slots: 2, Speed: 2}, [][]int32{{6}, {0, 1}, {6}}, [][]int32{{0, 1}, {2, 3}, {4, 5}}, [][]int32{{0, 1}, {2, 3}, {4, 5}}},
		"unlike without anything to win": {Rank{Slots: 3}, [][]int32{{6}, {6}, {0, 1, 4}}, [][]int32{{0, 1}, {2, 3, 7}, {4, 5}}, [][]int32{{4, 5}, {2, 3, 7}, {0, 1}}},
		"the first slot alone":           {Rank{Slots: 2, Speed: 2}, [][]int32{{6}, {6}, {0}}, [][]int32{{0, 1}, {2, 3}, {4, 5}}, [][]int32{{4, 5}, {2, 3}, {0, 1}}},
		"a rank that is gone":            {Rank{Slots: 2}, [][]int32{{6}, {Empty}, {6}, {0, 1}}, [][]int32{{0, 1}, {2, 3}, {4, 5}}, [][]int32{{0, 1}, {2, 3}, {4, 5}}},
	} {
		pr := &Problem{Layers: []Layer{{Load: make([]float64, 8)}}, Groups: []int{0, 0, 1, 1, 2, 2, 3, 3}}
		pr.Ranks = []Rank{{Slots: 2}, c.middle, {Slots: 2}, {Slots: 8, Speed: 3}} // last: room for all, unlike others
		for g := range pr.Ranks {
			pr.Ranks[g].Node = 10 - g
		}
		old, err := FromLists([][][]int32{c.old}, 8, 0)
		require.NoError(t, err)
		pr.Old = old
		checked, err := pr.check()
		require.NoError(t, err)
		var p Planner
		r := p.begin(pr, checked)
		s, q := &p.state, &p.groups
		require.True(t, q.ready(pr, s))
		s.begin(checked.load[0], r.Placement.Layer(0))
		for g, held := range c.plan {
			for i, e := range held {
				s.put(s.start[g]+int32(i), e)
			}
		}
		for e := range q.home {
			q.home[e] = int32(e / 2)
		}
		p.likeOldNodes(old, 0)
		require.Equal(t, c.want, r.Placement.Lists()[0][:3], what)
		for e, home := range q.home[:6] { // the groups followed the content of the nodes
			if slices.Contains(c.want[home], int32(e)) != slices.Contains(c.plan[e/2], int32(e)) {
				require.Fail(t, what, "expert %d", e)
			}
		}
	}
}

// Earlier plans of a planner, and the remains in its arrays, do not affect later ones.
func TestPlannerKeepsNoState(t *testing.T) {
	var p Planner
	for _, cases := range [][]pinnedCase{pinnedGroups()[:3], pinnedSteps()[:6], pinnedFull()[:2]} {
		for _, c := range cases {
			r := rand.New(rand.NewPCG(3, 34))
			pr := c.problem(r, nil)
			want, err := c.plan(new(Planner), pr, c.options)
			require.NoError(t, err)
			for i := range p.keep {
				p.keep[i] = true
			}
			for i := range p.state.was {
				p.state.was[i] = true
			}
			p.groups.closed = !p.groups.closed
			for i := range p.queues.heaps {
				p.queues.heaps[i] = append(p.queues.heaps[i], 0)
			}
			p.queues.heaps = append(p.queues.heaps, []uint64{0}, []uint64{1})
			got, err := c.plan(&p, pr, c.options)
			require.NoError(t, err)
			require.Equal(t, want, got, c.name)
		}
	}
}

// Without tokens all are served at home.
func TestGroupsWithoutLoad(t *testing.T) {
	pr := &Problem{Layers: []Layer{{Load: make([]float64, 4)}}, Ranks: evenRanks(4, 2), Groups: []int{1, 1, 2, 2}}
	pr.Ranks[2].Node, pr.Ranks[3].Node = 1, 1
	got, err := new(Planner).Full(pr, Options{Groups: KeepGroups})
	require.NoError(t, err)
	require.NoError(t, verify(pr, got))
	require.Equal(t, 1.0, got.Layers[0].Home)
}
