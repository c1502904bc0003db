package rebalance

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/operator/pkg/load"
	"tangram.dev/operator/pkg/placement"
)

// somewhere: each expert has a home, some have copies, and ranks have a few spare slots.
func somewhere(t *testing.T, dice *rand.Rand, layers, experts, ranks int) (*placement.Problem, [][]float64) {
	t.Helper()
	slots := (experts+ranks-1)/ranks + dice.IntN(3)
	lists, loads := make([][][]int32, layers), make([][]float64, layers)
	problem := &placement.Problem{Ranks: make([]placement.Rank, ranks)}
	for r := range problem.Ranks {
		problem.Ranks[r].Slots = slots
	}
	for l := range lists {
		lists[l] = make([][]int32, ranks)
		for i, e := range dice.Perm(experts) {
			lists[l][i%ranks] = append(lists[l][i%ranks], int32(e))
			loads[l] = append(loads[l], float64(dice.IntN(10)*dice.IntN(100)))
		}
		for r, held := range lists[l] {
			if e := int32(dice.IntN(experts)); len(held) < slots && !slices.Contains(held, e) {
				lists[l][r] = append(held, e)
			}
		}
		problem.Layers = append(problem.Layers, placement.Layer{Load: loads[l]})
	}
	var err error
	problem.Old, err = placement.FromLists(lists, experts, slots)
	require.NoError(t, err)
	return problem, loads
}

func TestChoiceMatchesReportedFigures(t *testing.T) {
	const seed = 4
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	capped, moves := 0, 0
	for range 40 {
		problem, loads := somewhere(t, dice, 1+dice.IntN(3), 6+dice.IntN(8), 2+dice.IntN(3))
		var planner placement.Planner
		best, err := planner.Full(problem, placement.Options{})
		require.NoError(t, err)
		for _, way := range []Way{{Full: true}, {Full: true, Price: .05}, {Full: true, Price: never}, {}, {Price: .05}, {Price: never}} {
			next, err := planner.Incremental(problem, placement.Options{Price: way.Price})
			if way.Full {
				next, err = planner.Least(problem, best, placement.Options{Price: way.Price})
			}
			require.NoError(t, err)
			for _, way.MaxMoves = range []int{0, 1 + dice.IntN(6), next.Moved()} {
				c, err := Choose(problem, loads, way)
				require.NoError(t, err)
				require.Equal(t, best.Placement.Lists(), c.Best.Placement.Lists())
				require.Equal(t, next.Moved(), c.Wanted)
				if way.MaxMoves > 0 && way.MaxMoves < c.Wanted {
					capped++
					require.LessOrEqual(t, len(c.Moves), way.MaxMoves)
				} else {
					require.Equal(t, next.Placement.Lists(), c.Now.Lists(), "%+v", way)
				}
				checkMoves(t, problem.Old.Lists(), c)
				moves += len(c.Moves)
				for p, told := range map[*placement.Placement]load.Balance{problem.Old: c.Before, c.Now: c.After, c.Best.Placement: c.Reachable} {
					want, err := load.Balancedness(loads, p.Lists())
					require.NoError(t, err)
					require.Equal(t, want, told)
				}
				if way.MaxMoves != 0 {
					continue
				}
				by := way
				by.Sources = make([]float64, len(problem.Ranks))
				by.Sources[dice.IntN(len(by.Sources))] = 1 // all tokens come from one rank
				from, err := Choose(problem, loads, by)
				require.NoError(t, err)
				require.Equal(t, c.Now.Lists(), from.Now.Lists(), "sources change what is told, not what is chosen")
				for p, told := range map[*placement.Placement]load.Balance{problem.Old: from.Before, from.Now: from.After, from.Best.Placement: from.Reachable} {
					want, err := load.BalancednessFrom(load.Sourced(loads, by.Sources), p.Lists())
					require.NoError(t, err)
					require.Equal(t, want, told)
				}
			}
		}
	}
	require.Greater(t, capped, 40)
	require.Greater(t, moves, 1000)
}

// checkMoves: the moves are the missing experts of the ranks, each from a rank that had it, round by round, and no rank
// sends or receives two in a round.
func checkMoves(t *testing.T, old [][][]int32, c *Choice) {
	t.Helper()
	type place struct{ layer, rank, expert int32 }
	type turn struct {
		round, rank int32
		sends       bool
	}
	lacks := map[place]bool{}
	for l, ranks := range c.Now.Lists() {
		for r, held := range ranks {
			for _, e := range held {
				if e != placement.Empty && !slices.Contains(old[l][r], e) {
					lacks[place{int32(l), int32(r), e}] = true
				}
			}
		}
	}
	require.Len(t, c.Moves, len(lacks))
	last, busy := int32(-1), map[turn]bool{}
	for _, m := range c.Moves {
		require.True(t, lacks[place{m.Layer, m.To, m.Expert}])
		require.Contains(t, old[m.Layer][m.Source], m.Expert)
		require.GreaterOrEqual(t, m.Round, last)
		last = m.Round
		for _, x := range []turn{{m.Round, m.To, false}, {m.Round, m.Source, true}} {
			require.False(t, busy[x], "%+v", x)
			busy[x] = true
		}
	}
	require.Equal(t, int(last)+1, c.Rounds)
}

func TestChooseRejectsInvalidInput(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 0))
	for says, spoil := range map[string]func(*placement.Problem, *[][]float64, *Way){
		"0 layers on 2 ranks":               func(p *placement.Problem, _ *[][]float64, w *Way) { p.Layers, w.Full = nil, true },
		"slot is -1":                        func(_ *placement.Problem, _ *[][]float64, w *Way) { w.Price = -1 },
		"loads of 1 layers on 2 ranks":      func(_ *placement.Problem, l *[][]float64, w *Way) { *l, w.Full, w.MaxMoves = (*l)[:1], true, 1 },
		"a placement is missing":            func(p *placement.Problem, _ *[][]float64, _ *Way) { p.Old = nil },
		"loads of 1 layers, a placement of": func(_ *placement.Problem, l *[][]float64, _ *Way) { *l = (*l)[:1] },
	} {
		problem, loads := somewhere(t, dice, 2, 8, 2)
		way := Way{}
		spoil(problem, &loads, &way)
		_, err := Choose(problem, loads, way)
		require.ErrorContains(t, err, says)
	}
}
