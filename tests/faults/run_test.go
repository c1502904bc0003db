package faults

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

// transitionsOfARun are mode switches of twelve flips under one permit: 24 layers with two spare banks, where the other
// worlds have as many spare banks as layers.
var transitionsOfARun = []transition{
	{"walk-to-tensor", four, tensor, first{}, true},
	{"walk-to-expert", tensor, four, first{}, true},
}

// Each of these faults strikes at each point between two flips of a run.
var kindsOfARun = slices.Concat(atThePoint, []string{"other-engine", "other-pod", "engine-stop", "agent-pause", "slow", "error"})

// ofARun reports points that agents pass between two flips.
func ofARun(point string) bool { return strings.HasPrefix(point, "run.") }

func matrixOfARun(points map[string][]string) []fault {
	var out []fault
	for _, tr := range transitionsOfARun {
		for _, point := range points[tr.name] {
			for _, kind := range kindsOfARun {
				out = append(out, fault{point: point, kind: kind, transition: tr})
			}
		}
	}
	return out
}

const sizeOfARunSample = 5

// sampleOfARun returns a few cells; consecutive seeds cover all.
func sampleOfARun(cells []fault, seed int) []fault {
	var out []fault
	for n := sizeOfARunSample * seed; n < sizeOfARunSample*(seed+1); n++ {
		shuffled := slices.Clone(cells)
		random := rand.New(rand.NewPCG(uint64(n/len(cells)), 3))
		random.Shuffle(len(cells), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		out = append(out, shuffled[n%len(cells)])
	}
	return out
}

func sceneOfARun(t *testing.T) *scene {
	t.Helper()
	s := referenceScene(t, false, worlds.StartDeep)
	s.report, s.transitions, s.surveyed = "run.json", transitionsOfARun, ofARun
	s.start = func(t *testing.T) *harness.World {
		t.Helper()
		return worlds.StartDeep(t, harness.Options{Pods: slices.Repeat([]int{1}, s.pods), Restart: true, FaultDirs: true, LeastStep: leastStep, Hangs: true})
	}
	s.most = 11                // of 32
	s.reach = 40 * time.Second // twelve flips, one after another
	return s
}

// A process dies, hangs or fails in the middle of a chain with one permit: completed flips stay, the rest is planned
// again.
func TestFaultsOfARun(t *testing.T) {
	playMatrix(t, func() *scene { return sceneOfARun(t) }, matrixOfARun, sampleOfARun)
}

func TestSamplesOfRunCoverAllCells(t *testing.T) {
	cells := matrixOfARun(readExpected(t))
	require.NotEmpty(t, cells)
	played := map[string]bool{}
	for seed := range (len(cells) + sizeOfARunSample - 1) / sizeOfARunSample * 2 {
		for _, f := range sampleOfARun(cells, 1+seed) {
			played[f.name()] = true
		}
	}
	require.Len(t, played, len(cells))
}
