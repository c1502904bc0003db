package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

var (
	two          = shape{2, "ExpertParallel", nil}
	expertsInTwo = shape{3, "TensorParallel", nil} // with whole requests: vLLM keeps attention on one rank
)

// transitionsOfVLLM are the kit's part of the reference engine's transitions.
var transitionsOfVLLM = []transition{
	{"vllm-resize-up", two, three, first{}, false},
	{"vllm-resize-down", three, two, first{}, true},
	{"vllm-expert-to-tensor", three, expertsInTwo, first{}, false},
	{"vllm-tensor-to-expert", expertsInTwo, three, first{}, false},
	{"vllm-repair", three, three, first{kind: "pod"}, false},
	{"vllm-return", three, three, first{kind: "engine"}, false},
}

const ofEachGroup = 2 // in a sample

// At each point an engine is killed, one hangs, and one of these strikes in turn.
var inTurnOfVLLM = []string{"pod", "link", "engine-pause", "other-engine", "slow", "operator", "agent"}

// If one of three is already dead, no other may be lost: the remaining one could not continue.
var harmlessOfVLLM = []string{"engine-pause", "slow", "operator"}

// ofTheKit reports points that an engine passes: the agents' points are the same for every engine.
func ofTheKit(point string) bool {
	return strings.HasPrefix(point, "engine.") && point != "engine.attach"
}

func matrixOfVLLM(points map[string][]string) []fault {
	var out []fault
	for i, tr := range transitionsOfVLLM {
		for j, point := range points[tr.name] {
			kinds := []string{"engine", "engine-stop", inTurnOfVLLM[(i+j)%len(inTurnOfVLLM)]}
			if tr.first.kind == "pod" {
				kinds = harmlessOfVLLM
			}
			for _, kind := range kinds {
				out = append(out, fault{point: point, kind: kind, transition: tr})
			}
		}
	}
	return out
}

// sampleOfVLLM returns two deaths, two hangs and two of the other kinds; engines need seconds to start.
func sampleOfVLLM(cells []fault, seed int) []fault {
	var of [3][]fault
	for _, f := range cells {
		i := max(0, slices.Index([]string{"", "engine", "engine-stop"}, f.kind))
		of[i] = append(of[i], f)
	}
	var out []fault
	for i, group := range of {
		for n := ofEachGroup * seed; n < ofEachGroup*(seed+1); n++ {
			shuffled := slices.Clone(group)
			random := rand.New(rand.NewPCG(uint64(n/len(group)), uint64(i)))
			random.Shuffle(len(group), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			out = append(out, shuffled[n%len(group)])
		}
	}
	return out
}

// noHash is the gateway's value for an engine without logit hashes.
const noHash = "0000000000000000"

// transformers has the answers to the golden prompts.
type transformers struct{ worlds.Golden }

// At returns the golden prompts in turn, with answers of various lengths, so that concurrent requests do not end
// together.
func (g transformers) At(i int) load.Request {
	c := g.Cases[i%len(g.Cases)]
	return load.Request{Index: i, Prompt: c.Prompt, MaxTokens: len(c.Tokens) - i*5%(len(c.Tokens)/2), TopP: 1}
}

func (g transformers) check(_ context.Context, results []*load.Result) error {
	answers := map[int]*load.Result{}
	for i, r := range results {
		if r == nil {
			return fmt.Errorf("request %d has no result", i)
		}
		want := &load.Result{Request: r.Request}
		for _, id := range g.Cases[r.Request.Index%len(g.Cases)].Tokens[:r.Request.MaxTokens] {
			want.Tokens = append(want.Tokens, load.Token{ID: id, Hash: noHash})
		}
		answers[r.Request.Index] = want
	}
	return differ(results, answers)
}

// sceneOfVLLM has worlds of three vLLM ranks, whose answers are transformers'.
func sceneOfVLLM(t *testing.T) *scene {
	t.Helper()
	const pods = 3
	checkpoint, err := harness.Checkpoint(t.Context(), worlds.Root, "demo-f32")
	require.NoError(t, err)
	root, err := filepath.Abs(worlds.Root)
	require.NoError(t, err)
	o := harness.Options{Root: root, Granule: 16, Checkpoint: checkpoint, Pods: slices.Repeat([]int{1}, pods), MaxTokens: 512, Restart: true, FaultDirs: true,
		LeastStep: leastStep, EngineFlags: []string{"--max-batch-tokens", "64"}, Hangs: true}
	o.VLLM()
	start := func(t *testing.T) *harness.World {
		t.Helper()
		return worlds.Start(t, o)
	}
	known := transformers{worlds.ReadGolden(t, "demo")}
	return &scene{report: "vllm.json", transitions: transitionsOfVLLM, surveyed: ofTheKit, start: start, pods: pods, rest: three, source: known, judge: known,
		settle: 90 * time.Second, reach: 15 * time.Second, most: 32 /* of 64, on two ranks */, slower: 3 /* than the reference engine, whose limits these are */, tries: 4}
}

// vLLM's ranks run the kit's step loop: a death or a hang at one of its points costs a pause, and no token.
func TestFaultsOfVLLM(t *testing.T) {
	playMatrix(t, func() *scene { return sceneOfVLLM(t) }, matrixOfVLLM, sampleOfVLLM)
}

// Every sample has cells of each group, and as many seeds as the largest group has cells cover all.
func TestSamplesOfVLLMCoverAllCells(t *testing.T) {
	cells := matrixOfVLLM(readExpected(t))
	require.NotEmpty(t, cells)
	const first = 1
	played := map[string]bool{}
	for seed := range 2 * len(cells) {
		sample := sampleOfVLLM(cells, first+seed)
		require.Equal(t, sample, sampleOfVLLM(cells, first+seed), "a seed always has the same cells")
		require.Len(t, sample, 3*ofEachGroup)
		for _, f := range sample {
			played[f.name()] = true
		}
	}
	require.Len(t, played, len(cells))
}
