package faults

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

const parts = 7 // per deal

// samples deals cells into parts. Together they have each kind of fault in each transition, and every point; each part
// has every kind. The seed of `make check` is 7 x deal + part.
func samples(cells []fault, deal int) [parts][]fault {
	cells = slices.Clone(cells)
	random := rand.New(rand.NewPCG(uint64(deal), 1))
	random.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
	var taken []fault
	have := map[string]bool{}
	take := func(wanted func(pair, point bool) bool) {
		for _, f := range cells {
			pair := f.transition.name + "/" + f.kind
			if wanted(!have[pair], !have[f.point]) {
				have[pair], have[f.point] = true, true
				taken = append(taken, f)
			}
		}
	}
	take(func(pair, point bool) bool { return pair && point })
	take(func(pair, _ bool) bool { return pair })
	take(func(_, point bool) bool { return point })
	slices.SortStableFunc(taken, func(a, b fault) int { return slices.Index(kinds(), a.kind) - slices.Index(kinds(), b.kind) })
	var out [parts][]fault
	for i, f := range taken {
		out[i%parts] = append(out[i%parts], f)
	}
	for part := range out {
		for _, kind := range kinds() {
			is := func(f fault) bool { return f.kind == kind }
			if i := slices.IndexFunc(cells, is); i >= 0 && !slices.ContainsFunc(out[part], is) {
				out[part] = append(out[part], cells[i])
			}
		}
	}
	return out
}

func kinds() []string { return slices.Concat(atThePoint, elsewhere, atSome, ofSources) }

// Seven seeds cover all cells, and every sample is small.
func TestSamplesCoverAllCells(t *testing.T) {
	takes, err := harness.FaultPoints(t.Context(), worlds.Root)
	require.NoError(t, err)
	sent := matrix(transitions, readExpected(t), takes)
	requireDeals(t, sent)
	requireDeals(t, onOneNode(sent))
}

func requireDeals(t *testing.T, cells []fault) {
	t.Helper()
	require.ElementsMatch(t, kinds(), kindsOf(cells), "kinds that no cell has, or that are not named")
	for deal := range 100 {
		pairs, points := map[string]bool{}, map[string]bool{}
		for _, f := range cells {
			pairs[f.transition.name+"/"+f.kind], points[f.point] = true, true
		}
		for _, part := range samples(cells, deal) {
			require.LessOrEqual(t, len(part), largestSample)
			require.ElementsMatch(t, kinds(), kindsOf(part))
			for _, f := range part {
				delete(pairs, f.transition.name+"/"+f.kind)
				delete(points, f.point)
			}
		}
		require.Empty(t, pairs)
		require.Empty(t, points)
	}
	again := samples(cells, 1)
	require.Equal(t, again, samples(cells, 1), "a seed always has the same cells")
	require.NotEqual(t, again, samples(cells, 2))
}

func kindsOf(cells []fault) []string {
	var out []string
	for _, f := range cells {
		out = append(out, f.kind)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
