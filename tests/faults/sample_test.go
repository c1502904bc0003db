package faults

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

const daysOfWeek = 7

// today is the number of the day whose sample is played: FAULT_SEED, or that of the other samples.
func today(t *testing.T) int {
	t.Helper()
	day := worlds.Today(t)
	if text := os.Getenv("FAULT_SEED"); text != "" {
		given, err := strconv.Atoi(text)
		require.NoError(t, err, "FAULT_SEED")
		require.GreaterOrEqual(t, given, 0, "FAULT_SEED")
		day = given
	}
	return day
}

// samples of the days of a week: together each kind of fault meets each transition, and every point is played; each
// day has every kind.
func samples(cells []fault, week int) [daysOfWeek][]fault {
	cells = slices.Clone(cells)
	random := rand.New(rand.NewPCG(uint64(week), 1))
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
	var out [daysOfWeek][]fault
	for i, f := range taken {
		out[i%daysOfWeek] = append(out[i%daysOfWeek], f)
	}
	for day := range out {
		for _, kind := range kinds() {
			is := func(f fault) bool { return f.kind == kind }
			if i := slices.IndexFunc(cells, is); i >= 0 && !slices.ContainsFunc(out[day], is) {
				out[day] = append(out[day], cells[i])
			}
		}
	}
	return out
}

func kinds() []string { return slices.Concat(atThePoint, elsewhere, atSome) }

// In each week all is played, and no day takes long.
func TestSamplesCoverAllInAWeek(t *testing.T) {
	takes, err := harness.FaultPoints(t.Context(), worlds.Root)
	require.NoError(t, err)
	sent := matrix(transitions, readExpected(t), takes)
	requireWeeks(t, sent)
	requireWeeks(t, onOneNode(sent))
}

func requireWeeks(t *testing.T, cells []fault) {
	t.Helper()
	require.ElementsMatch(t, kinds(), kindsOf(cells), "kinds that no cell has, or that are not named")
	for week := range 100 {
		pairs, points := map[string]bool{}, map[string]bool{}
		for _, f := range cells {
			pairs[f.transition.name+"/"+f.kind], points[f.point] = true, true
		}
		for _, day := range samples(cells, 2900+week) {
			require.LessOrEqual(t, len(day), longestDay)
			require.ElementsMatch(t, kinds(), kindsOf(day))
			for _, f := range day {
				delete(pairs, f.transition.name+"/"+f.kind)
				delete(points, f.point)
			}
		}
		require.Empty(t, pairs)
		require.Empty(t, points)
	}
	again := samples(cells, 2900)
	require.Equal(t, again, samples(cells, 2900), "a week can be played again")
	require.NotEqual(t, again, samples(cells, 2901))
}

func kindsOf(cells []fault) []string {
	var out []string
	for _, f := range cells {
		out = append(out, f.kind)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
