package driver

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

func TestLargestWholeAgainstEverySubset(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for round := range 3000 {
		n := dice.IntN(10)
		cuts := map[[2]int]bool{}
		for range dice.IntN(1 + n*n/2) {
			i, j := dice.IntN(n), dice.IntN(n)
			cuts[[2]int{i, j}], cuts[[2]int{j, i}] = i != j, i != j
		}
		cut := func(i, j int) bool { return cuts[[2]int{i, j}] }
		var want []int
		for set := range 1 << n {
			var ids []int
			whole := true
			for i := range n {
				if set>>i&1 == 0 {
					continue
				}
				for _, j := range ids {
					whole = whole && !cut(i, j)
				}
				ids = append(ids, i)
			}
			if whole && (len(ids) > len(want) || len(ids) == len(want) && slices.Compare(ids, want) < 0) {
				want = ids
			}
		}
		require.Equal(t, want, largestWhole(n, cut), "round %d, %d vertices, cuts %v", round, n, cuts)
	}
}

// In large worlds, the cuts of real networks are decided in a few steps.
func TestLargestWhole_WhenWorldIsLarge(t *testing.T) {
	half := func(i, j int) bool { return (i < 40) != (j < 40) }
	require.Len(t, largestWhole(128, half), 88)
	require.Equal(t, 40, largestWhole(128, half)[0])
	loners := func(i, j int) bool { return i != j && (i%7 == 3 || j%7 == 3) }
	require.Len(t, largestWhole(128, loners), 110)
	matched := func(i, j int) bool { return i/2 == j/2 && i != j }
	require.Len(t, largestWhole(128, matched), 64)
}

// still is a member that is stopped at an epoch and can survive.
func still(id string, epoch uint64) evidence {
	return evidence{id: id, answers: true, epoch: epoch, attached: true, stopped: true, phase: tangramv1.Phase_PHASE_IDLE}
}

func sceneOf(epoch uint64, members ...evidence) scene {
	s := scene{epoch: epoch, members: map[string]evidence{}}
	for _, e := range members {
		s.newest = append(s.newest, e.id)
		s.members[e.id] = e
	}
	return s
}

func TestFenceDecisions(t *testing.T) {
	dead := evidence{id: "c", why: "connection refused"}
	running := still("b", 4)
	running.stopped = false
	detached := still("b", 4)
	detached.attached = false
	cut := still("b", 4)
	cut.unreachable = []string{"a"}
	hears := func(e evidence, no ...string) evidence { e.unreachable = no; return e }
	freshCut := cut
	freshCut.fresh = true
	staged := still("b", 4)
	staged.attempt, staged.phase = 9, tangramv1.Phase_PHASE_PERMITTED
	flipped := still("a", 5)
	flipped.attempt, flipped.phase = 9, tangramv1.Phase_PHASE_FLIPPED
	cutFlipped := flipped
	cutFlipped.unreachable = []string{"b", "c"}
	idle := func(e evidence) evidence { e.idle = true; return e }
	stagedC := staged
	stagedC.id = "c"
	mixed := func(members ...evidence) scene {
		s := sceneOf(5, members...)
		s.older = s.newest
		return s
	}
	left := func(members ...evidence) scene { // a leaver flipped by attempt 9 and is out
		s := sceneOf(5, members...)
		s.older = append([]string{"z"}, s.newest...)
		s.members["z"] = evidence{id: "z", answers: true, attached: true, attempt: 9, leads: 5, phase: tangramv1.Phase_PHASE_FLIPPED}
		return s
	}
	fenced := func(s scene, f Fence) scene { s.fence = &f; return s }
	for name, c := range map[string]struct {
		scene     scene
		survivors []string
		outcome   tangramv1.Outcome
		standOn   uint64
		running   []string
	}{
		"one died":                    {sceneOf(4, still("a", 4), still("b", 4), dead), []string{"a", "b"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"a tie":                       {sceneOf(4, hears(still("a", 4), "b"), still("b", 4), still("c", 4)), []string{"a", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"a tie, one may hang":         {sceneOf(4, idle(hears(still("a", 4), "b")), still("b", 4), still("c", 4)), []string{"b", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"all may hang":                {sceneOf(4, idle(still("a", 4)), idle(still("b", 4)), still("c", 4)), []string{"a", "b", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"one runs":                    {sceneOf(4, still("a", 4), running, dead), nil, 0, 0, []string{"b"}},
		"one hangs":                   {sceneOf(4, hears(still("a", 4), "b"), running, hears(still("c", 4), "b")), []string{"a", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"one hangs, of two":           {sceneOf(4, hears(still("a", 4), "b"), running), []string{"a"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"one is late":                 {sceneOf(4, hears(still("a", 4), "b"), running, still("c", 4)), nil, 0, 0, []string{"b"}},
		"an engine is away":           {sceneOf(4, still("a", 4), detached, still("c", 4)), []string{"a", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"all are there":               {sceneOf(4, still("a", 4), still("b", 4), still("c", 4)), []string{"a", "b", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"a cut counts for both":       {sceneOf(4, still("a", 4), cut, still("c", 4)), []string{"a", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"a fresh one has no address":  {sceneOf(4, still("a", 4), freshCut, still("c", 4)), []string{"a", "b", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"alone of three":              {sceneOf(4, still("a", 4), evidence{id: "b"}, dead), nil, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"alone of two":                {sceneOf(4, still("a", 4), dead), []string{"a"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"nobody answers":              {sceneOf(4, evidence{id: "a"}, dead), nil, 0, 0, nil},
		"one is gone for good":        {sceneOf(4, evidence{id: "a", gone: true}, dead), nil, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"one flipped":                 {mixed(flipped, staged, dead), []string{"a", "b"}, tangramv1.Outcome_OUTCOME_ROLL_FORWARD, 5, nil},
		"one flipped, one forgot":     {mixed(flipped, still("b", 4), stagedC), []string{"a", "c"}, tangramv1.Outcome_OUTCOME_ROLL_FORWARD, 5, nil},
		"only a leaver flipped":       {left(staged, dead), []string{"b"}, tangramv1.Outcome_OUTCOME_ROLL_FORWARD, 5, nil},
		"nobody can follow a leaver":  {left(still("b", 4), dead), nil, tangramv1.Outcome_OUTCOME_ABORT, 5, nil},
		"who flipped reaches nobody":  {mixed(cutFlipped, staged, stagedC), []string{"b", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"a fence has fewer":           {fenced(sceneOf(4, still("a", 4), still("b", 4), still("c", 4)), Fence{FromEpoch: 4, Epoch: 4, Survivors: []string{"b", "c"}}), []string{"b", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"a fence has ruled: forward":  {fenced(mixed(evidence{id: "a"}, staged, stagedC), Fence{FromEpoch: 4, Epoch: 5, Attempt: 9, Outcome: "forward", Survivors: []string{"a", "b", "c"}}), []string{"b", "c"}, tangramv1.Outcome_OUTCOME_ROLL_FORWARD, 5, nil},
		"nobody can follow the fence": {fenced(mixed(evidence{id: "a"}, still("b", 4), still("c", 4)), Fence{FromEpoch: 4, Epoch: 5, Attempt: 9, Outcome: "forward", Survivors: []string{"a", "b", "c"}}), nil, tangramv1.Outcome_OUTCOME_ABORT, 5, nil},
		"the others forgot":           {mixed(flipped, still("b", 4), still("c", 4)), []string{"b", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"one that is left out runs":   {fenced(sceneOf(4, still("a", 4), running, still("c", 4)), Fence{FromEpoch: 4, Epoch: 4, Survivors: []string{"a", "c"}}), []string{"a", "c"}, tangramv1.Outcome_OUTCOME_ABORT, 4, nil},
		"only of the older one":       {func() scene { s := left(evidence{id: "a"}, dead); s.members["z"] = still("z", 4); return s }(), nil, 0, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := survivors(c.scene)
			switch {
			case r.outcome == 0:
				require.Zero(t, r.fromEpoch)
			case len(c.scene.older) > 0:
				require.EqualValues(t, 4, r.fromEpoch)
			default:
				require.EqualValues(t, 4, r.standOn)
				require.EqualValues(t, 4, r.fromEpoch)
			}
			require.Equal(t, c.survivors, r.survivors, "%+v", r)
			require.Equal(t, c.outcome, r.outcome)
			require.Equal(t, c.standOn, r.standOn)
			require.Equal(t, c.running, r.running)
			if r.outcome != 0 {
				for _, l := range r.lost {
					require.NotEmpty(t, l.Why)
				}
			}
		})
	}
}

// A ruling names the members that stay at their epoch, and those that do not answer.
func TestFenceDecisionNamesMembers(t *testing.T) {
	flipped := still("a", 5)
	flipped.attempt, flipped.phase = 9, tangramv1.Phase_PHASE_FLIPPED
	s := sceneOf(5, flipped, still("b", 4), still("c", 4))
	s.older = s.newest
	require.Equal(t, []Lost{{"a", "the member is not at epoch 4, where the others stay"}}, survivors(s).lost)
	r := survivors(sceneOf(4, evidence{id: "a"}, still("b", 4), evidence{id: "c"}, evidence{id: "d", gone: true}))
	require.Equal(t, []string{"a", "c"}, r.unknown)
}

// randomScene returns members of a layout, perhaps in the middle of a flip, with random faults.
func randomScene(dice *rand.Rand) scene {
	n := 1 + dice.IntN(6)
	s := scene{epoch: 5, members: map[string]evidence{}}
	mix := dice.IntN(2) == 0
	for i := range n {
		id := fmt.Sprint("m", i)
		e := evidence{id: id, answers: dice.IntN(4) > 0, epoch: 5, attached: dice.IntN(6) > 0, stopped: dice.IntN(8) > 0,
			phase: tangramv1.Phase_PHASE_IDLE, gone: dice.IntN(3) == 0, fresh: dice.IntN(8) == 0}
		if mix {
			e.epoch, e.attempt, e.phase = uint64(4+dice.IntN(2)), 9, tangramv1.Phase_PHASE_FLIPPED
			if e.epoch == 4 {
				e.phase = []tangramv1.Phase{tangramv1.Phase_PHASE_PERMITTED, tangramv1.Phase_PHASE_IDLE}[dice.IntN(2)]
			}
			s.older = append(s.older, id)
		}
		if e.answers {
			e.gone = false
		}
		for j := range n {
			if j != i && dice.IntN(6) == 0 {
				e.unreachable = append(e.unreachable, fmt.Sprint("m", j))
			}
		}
		s.newest = append(s.newest, id)
		s.members[id] = e
	}
	if dice.IntN(3) == 0 {
		f := Fence{FromEpoch: 4, Epoch: 5, Outcome: "stay"}
		for _, id := range s.newest {
			if dice.IntN(3) > 0 {
				f.Survivors = append(f.Survivors, id)
			}
		}
		s.fence = &f
	}
	return s
}

// A member is idle if it is stopped and does not poll between two distant queries. Without enough queries, or if its
// agent reports no polls, it is not idle.
func TestIdle_WhenEngineDoesNotPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := func(w *stillness, a, b, c uint64) map[string]bool {
			rank := func(n uint64, stopped bool) rankTruth {
				return rankTruth{status: &tangramv1.RankStatus{Engine: &tangramv1.EngineStatus{Polls: n, Stopped: stopped}}}
			}
			return w.idle(&truth{ranks: map[string]rankTruth{"turns": rank(a, true), "hangs": rank(b, true), "steps": rank(c, false), "old": rank(0, true)}})
		}
		w := &stillness{}
		nobody := map[string]bool{"turns": false, "hangs": false, "steps": false, "old": false}
		require.Equal(t, nobody, look(w, 1, 1, 1))
		time.Sleep(lookEvery)
		require.Equal(t, nobody, look(w, 2, 1, 1))
		time.Sleep(cutsSettle/2 - lookEvery)
		hangs := maps.Clone(nobody)
		hangs["hangs"] = true
		require.Equal(t, hangs, look(w, 3, 1, 1))
		require.Equal(t, nobody, look(w, 4, 2, 1), "it goes on")
	})
}

func TestSurvivorsProperties(t *testing.T) {
	dice := rand.New(rand.NewPCG(7, 7))
	ruled := 0
	for round := range 20000 {
		s := randomScene(dice)
		r := survivors(s)
		say := fmt.Sprintf("round %d: %+v -> %+v", round, s, r)
		if r.outcome == 0 {
			require.Empty(t, r.survivors, say)
			continue
		}
		ruled++
		for i, id := range r.survivors {
			e := s.members[id]
			require.True(t, e.answers && e.attached && e.stopped, say)
			require.True(t, s.fence == nil || contains(s.fence.Survivors, id), say)
			require.True(t, e.epoch == r.standOn || r.outcome == tangramv1.Outcome_OUTCOME_ROLL_FORWARD && e.phase == tangramv1.Phase_PHASE_PERMITTED, say)
			for _, other := range r.survivors[:i] {
				require.False(t, s.cut(id, other), say)
			}
		}
		if r.outcome == tangramv1.Outcome_OUTCOME_ROLL_FORWARD {
			require.True(t, slices.ContainsFunc(r.survivors, func(id string) bool { return s.members[id].epoch == 5 }), say)
		}
		require.False(t, len(r.survivors) == 1 && len(s.newest) >= 3, say)
		for _, id := range s.newest {
			lost := slices.ContainsFunc(r.lost, func(l Lost) bool { return l.Member == id })
			require.NotEqual(t, contains(r.survivors, id), lost, say)
			require.False(t, s.members[id].answers && !s.members[id].stopped && !s.hangs(id) && (s.fence == nil || contains(s.fence.Survivors, id)), say)
		}
		// A later ruling on the same evidence, after a fence of this one, is equal.
		if len(r.survivors) > 0 && s.fence == nil && s.older == nil {
			s.fence = &Fence{FromEpoch: r.fromEpoch, Epoch: r.standOn, Outcome: "stay", Survivors: r.survivors}
			require.Equal(t, r.survivors, survivors(s).survivors, say)
			// Without one of the survivors, it is a subset.
			gone := r.survivors[dice.IntN(len(r.survivors))]
			s.members[gone] = evidence{id: gone, why: "killed"}
			for _, id := range survivors(s).survivors {
				require.True(t, contains(r.survivors, id) && id != gone, say)
			}
		}
	}
	require.Greater(t, ruled, 3000)
}
