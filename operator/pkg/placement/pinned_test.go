package placement

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The search is a heuristic: a plan that is valid and near its bound is not necessarily the intended plan. So some
// plans of each mode are pinned, as they were when they were measured to be good. An intentional change of the search
// renews them, and its diff shows the effect on peaks and moves:
//
//	UPDATE=1 go test ./pkg/placement -run TestPinned
const pinnedFile = "pinned_plans_test.go"

// pinnedCase is a chain of plans, the first from a random placement, each other from the previous one, all with other
// loads.
type pinnedCase struct {
	name    string
	problem func(r *rand.Rand, last *Placement) *Problem
	plan    func(*Planner, *Problem, Options) (*Result, error)
	options Options
	steps   int
	seed    uint64 // 0: derived from its name
}

// skewed loads: most are similar, a few are very hot, some are zero.
func skewed(r *rand.Rand, experts int, spread float64) []float64 {
	out := make([]float64, experts)
	for e := range out {
		out[e] = math.Round(1000 * math.Exp(spread*r.NormFloat64()))
		if r.IntN(12) == 0 {
			out[e] = 0
		}
	}
	return out
}

// pinnedProblem has experts on ranks; uneven ones differ in slots and speed, and sometimes one dies.
func pinnedProblem(experts, ranks, slots, layers int, spread float64, uneven, asked bool) func(*rand.Rand, *Placement) *Problem {
	return func(r *rand.Rand, last *Placement) *Problem {
		pr := &Problem{Ranks: evenRanks(ranks, slots), Old: last}
		for g := range pr.Ranks {
			pr.Ranks[g].Node = g * 3 / ranks
			if uneven {
				pr.Ranks[g].Slots += r.IntN(3) - 1
				pr.Ranks[g].Speed = []float64{0, 1, 0.7, 1.3}[r.IntN(4)]
			}
		}
		if uneven && last != nil {
			pr.Ranks[r.IntN(ranks)].Slots = 0
			pr.Ranks = append(pr.Ranks, Rank{Slots: slots + 1, Node: 2})
		}
		for range layers {
			layer := Layer{Load: skewed(r, experts, spread)}
			if asked {
				layer.BySource = make([][]float64, len(pr.Ranks))
				for g := range layer.BySource {
					layer.BySource[g] = make([]float64, experts)
				}
				for e, w := range layer.Load {
					near := r.IntN(len(pr.Ranks))
					for g := range layer.BySource {
						layer.BySource[g][e] = w / 2 / float64(len(pr.Ranks))
					}
					layer.BySource[near][e] += w / 2
				}
			}
			pr.Layers = append(pr.Layers, layer)
		}
		if last == nil {
			pr.Old = anything(r, pr, experts)
		}
		return pr
	}
}

// inGroups groups a problem's experts by `size`, on nodes of `node` ranks.
func inGroups(size, node int, of func(*rand.Rand, *Placement) *Problem) func(*rand.Rand, *Placement) *Problem {
	return func(r *rand.Rand, last *Placement) *Problem {
		pr := of(r, last)
		for e := range pr.Layers[0].Load {
			pr.Groups = append(pr.Groups, e/size)
		}
		for g := range pr.Ranks {
			pr.Ranks[g].Node = g / node
		}
		return pr
	}
}

// inTokens changes the loads of a problem.
func inTokens(change func(float64) float64, of func(*rand.Rand, *Placement) *Problem) func(*rand.Rand, *Placement) *Problem {
	return func(r *rand.Rand, last *Placement) *Problem {
		pr := of(r, last)
		for _, layer := range pr.Layers {
			for e, w := range layer.Load {
				layer.Load[e] = change(w)
			}
		}
		return pr
	}
}

func few(w float64) float64  { return math.Round(math.Log(1 + w)) } // with many equal values
func tiny(w float64) float64 { return w * 1e-3 }

// anything is a random old placement: experts anywhere or nowhere, empty slots, a rank that no longer exists.
func anything(r *rand.Rand, pr *Problem, experts int) *Placement {
	old := &Placement{Experts: experts, Start: []int32{0}}
	for range len(pr.Ranks) + 1 {
		old.Start = append(old.Start, old.Start[len(old.Start)-1]+int32(1+r.IntN(min(experts, 5))))
	}
	for range pr.Layers {
		for g := range old.Ranks() {
			for _, e := range r.Perm(experts)[:old.Start[g+1]-old.Start[g]] {
				if r.IntN(5) == 0 {
					e = int(Empty)
				}
				old.Slot = append(old.Slot, int32(e))
			}
		}
	}
	return old
}

// Incremental plans are cheap, so there are more of them.
func pinnedSteps() []pinnedCase {
	step := (*Planner).Incremental
	var out []pinnedCase
	for n := range 8 {
		of := pinnedProblem(5+n, 3+n%3, 3+(5+n)/4, 2, 0.5+0.2*float64(n), n%2 == 1, n%3 == 2)
		o := Options{Price: []float64{0, 0.0005, 0.004, 0.02}[n%4], Locality: float64(n%3) / 4}
		out = append(out, pinnedCase{fmt.Sprint("step, small ", n), of, step, o, 3, 0})
	}
	return append(out, []pinnedCase{
		{"step, even", pinnedProblem(16, 4, 6, 3, 0.8, false, false), step, Options{Price: 0.002}, 4, 0},
		{"step, free", pinnedProblem(12, 4, 4, 2, 0.8, false, false), step, Options{}, 4, 0},
		{"step, very skewed", pinnedProblem(16, 6, 4, 3, 2, false, false), step, Options{Price: 0.001}, 4, 0},
		{"step, uneven", pinnedProblem(12, 5, 5, 3, 1, true, false), step, Options{Price: 0.003}, 6, 0},
		{"step, uneven and skewed", pinnedProblem(10, 6, 3, 3, 1.8, true, false), step, Options{Price: 0.001}, 6, 0},
		{"step, large", pinnedProblem(64, 8, 10, 2, 1, false, false), step, Options{Price: 0.0005}, 4, 0},
		{"step, near", pinnedProblem(16, 6, 4, 2, 0.8, false, true), step, Options{Price: 0.002, Locality: 1}, 4, 0},
		{"step, near and uneven", pinnedProblem(16, 6, 4, 2, 1, true, true), step, Options{Price: 0.001, Locality: 0.5}, 4, 0},
		// The cost improves only with the seventeenth change after the best so far.
		{"step, patient", pinnedProblem(24, 12, 4, 1, 2, false, false), step, Options{Price: 0.0001}, 2, 69},
		{"step, more patient", pinnedProblem(24, 12, 4, 1, 2, false, false), step, Options{Price: 0.0001}, 2, 119},
		{"step, of two alike", pinnedProblem(24, 12, 4, 1, 2, false, false), step, Options{Price: 0.0001}, 2, 3},
		// Many loads are equal, and ranks are exactly at the aim.
		{"step, whole loads", inTokens(few, pinnedProblem(8, 5, 3, 2, 0.8, false, false)), step, Options{}, 2, 79},
		{"step, whole loads on fewer ranks", inTokens(few, pinnedProblem(10, 4, 3, 2, 0.8, false, false)), step, Options{}, 2, 11},
		{"step, whole loads, uneven", inTokens(few, pinnedProblem(7, 4, 4, 2, 0.8, true, false)), step, Options{Price: 0.002}, 2, 1},
		{"step, tiny loads", inTokens(tiny, pinnedProblem(8, 4, 4, 2, 0.7, false, false)), step, Options{Price: 0.001}, 2, 1},
	}...)
}

func pinnedFull() []pinnedCase {
	full := (*Planner).Full
	return []pinnedCase{
		{"full, large", pinnedProblem(64, 8, 10, 2, 1, false, false), full, Options{}, 3, 0},
		{"full, even", pinnedProblem(12, 4, 4, 2, 0.8, false, false), full, Options{}, 1, 0},
		{"full, no spare slot", pinnedProblem(12, 4, 3, 2, 0.8, false, false), full, Options{}, 1, 0},
		{"full, very skewed", pinnedProblem(16, 6, 4, 2, 2, false, false), full, Options{}, 1, 0},
		{"full, uneven", pinnedProblem(10, 5, 4, 1, 1, true, false), full, Options{}, 2, 0},
		{"full, uneven and skewed", pinnedProblem(9, 6, 3, 1, 2, true, false), full, Options{}, 2, 0},
		{"full, near", pinnedProblem(12, 6, 3, 2, 0.8, false, true), full, Options{Locality: 1}, 1, 0},
		{"full, near and uneven", pinnedProblem(12, 6, 4, 1, 1, true, true), full, Options{Locality: 0.5}, 2, 0},
	}
}

func pinnedGroups() []pinnedCase {
	full := (*Planner).Full
	return []pinnedCase{
		{"groups, kept", inGroups(4, 4, pinnedProblem(32, 8, 6, 2, 0.6, false, false)), full, Options{Groups: KeepGroups}, 2, 0},
		{"groups, if they pay", inGroups(4, 4, pinnedProblem(32, 8, 8, 2, 0.5, false, false)), full, Options{}, 2, 0},
		{"groups, skewed", inGroups(4, 2, pinnedProblem(24, 8, 5, 2, 1.2, false, false)), full, Options{Groups: KeepGroups}, 2, 0},
		{"groups, near", inGroups(4, 4, pinnedProblem(32, 8, 6, 2, 0.6, false, true)), full, Options{Groups: KeepGroups, Locality: 1}, 1, 0},
		{"groups, uneven", inGroups(3, 3, pinnedProblem(18, 9, 4, 1, 1, true, false)), full, Options{Groups: KeepGroups}, 3, 0},
		{"groups, uneven and near home", inGroups(3, 3, pinnedProblem(12, 6, 4, 1, 0.8, true, false)), full, Options{Groups: KeepGroups}, 2, 17},
		{"groups, tiny and skewed", inTokens(tiny, inGroups(4, 4, pinnedProblem(32, 8, 6, 1, 0.9, false, false))), full, Options{Groups: KeepGroups}, 2, 3},
		{"groups, tiny loads", inTokens(tiny, inGroups(4, 4, pinnedProblem(32, 8, 6, 1, 0.8, false, false))), full, Options{Groups: KeepGroups}, 2, 2},
	}
}

// plans computes the chain, one line per plan: the layers' peaks over their bounds, the moves, and a hash of the slots;
// at the end the state of the search when its effort was used up.
func (c *pinnedCase) plans(t *testing.T, p *Planner) string {
	var lines []string
	r := rand.New(rand.NewPCG(uint64(c.steps*100+len(c.name)), uint64(c.name[len(c.name)-1])))
	if c.seed > 0 {
		r = rand.New(rand.NewPCG(c.seed, 77))
	}
	var last *Placement
	for range c.steps {
		pr := c.problem(r, last)
		got, err := c.plan(p, pr, c.options)
		if err != nil {
			require.ErrorIs(t, err, ErrInput)
			lines = append(lines, err.Error())
			continue
		}
		require.NoError(t, verify(pr, got), c.name)
		line := fmt.Sprintf("moved %d", got.Moved())
		for _, f := range got.Layers {
			line += fmt.Sprintf(", %.6f", f.Peak/f.Bound)
			if f.Home > 0 {
				line += fmt.Sprintf(" home %.4f", f.Home)
			}
			if f.Near > 0 {
				line += fmt.Sprintf(" near %.4f", f.Near)
			}
		}
		lines = append(lines, fmt.Sprintf("%s: %08x", line, hashed(got.Placement.Slot)))
		last = got.Placement
	}
	if len(p.from) > 0 {
		lines = append(lines, fmt.Sprintf("the last try is from %08x", hashed(p.from)))
	}
	return strings.Join(lines, "\n")
}

func hashed(slot []int32) uint32 {
	hash := fnv.New32a()
	for _, e := range slot {
		hash.Write([]byte{byte(e)})
	}
	return hash.Sum32()
}
