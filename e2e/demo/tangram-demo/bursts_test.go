package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/load"
)

func answeredAt(sent time.Time, first, each time.Duration, n int) *load.Result {
	r := &load.Result{Sent: sent}
	for i := range n {
		r.Tokens = append(r.Tokens, load.Token{ID: uint32(i), At: sent.Add(first + time.Duration(i)*each)})
	}
	return r
}

func TestClientLatenciesInInterval(t *testing.T) {
	at := time.UnixMilli(1000)
	results := []*load.Result{
		answeredAt(at.Add(-time.Second), 100*time.Millisecond, 10*time.Millisecond, 2), // before
		answeredAt(at, 100*time.Millisecond, 10*time.Millisecond, 3),
		answeredAt(at.Add(time.Second), 300*time.Millisecond, 20*time.Millisecond, 1), // one token has no interval
		answeredAt(at.Add(1500*time.Millisecond), 200*time.Millisecond, 30*time.Millisecond, 2),
		{Sent: at, Err: errors.New("lost")},
		answeredAt(at.Add(2*time.Second), 0, 0, 1), // after
	}
	f := feltIn("here", results, at, at.Add(2*time.Second))
	require.Equal(t, 3, f.Requests)
	require.InDelta(t, .2, f.TTFT50, 1e-9)
	require.InDelta(t, .3, f.TTFT99, 1e-9)
	require.InDelta(t, .01, f.TPOT50, 1e-9)
	require.InDelta(t, .03, f.TPOT99, 1e-9)
	require.InDelta(t, 3, f.TokensPerSecond, 1e-9)
	require.Zero(t, feltIn("nobody", nil, at, at).TTFT99)
}

func TestArrivalsAreDeterministicWithGivenMeans(t *testing.T) {
	a, b := &arrivals{seed: 3, prompt: 100, answer: 30}, &arrivals{seed: 3, prompt: 100, answer: 30}
	prompts, answers := 0, 0
	for i := range 2000 {
		r := a.at(i)
		require.Equal(t, b.at(i), r)
		require.LessOrEqual(t, len(r.Prompt), longestPrompt)
		prompts, answers = prompts+len(r.Prompt), answers+r.MaxTokens
	}
	require.InEpsilon(t, 100, float64(prompts)/2000, .1)
	require.InEpsilon(t, 30, float64(answers)/2000, .1)
	require.NotEqual(t, a.at(0), a.at(1))
}

// The world of the bursts applies mode and replicas, which its manifest must enable.
func TestBurstsManifestAppliesDecisions(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", manifests, "bursts", "30-bursts.yaml"))
	require.NoError(t, err)
	d := &v1alpha2.MoEDeployment{}
	require.NoError(t, yaml.UnmarshalStrict(text, d))
	require.True(t, d.AppliesMode() && d.AppliesReplicas())
}

// A world that keeps all promises of the act; each change of it breaks one.
func TestBurstsPromises(t *testing.T) {
	begun := time.Now().Add(-5 * time.Minute)
	sound := func() (*bursts, []*load.Result) {
		d := &v1alpha2.MoEDeployment{}
		d.Spec.Parallelism.Mode, d.Spec.Replicas = v1alpha2.ModeAuto, 4
		d.Status.Mode, d.Status.Ranks = v1alpha2.ModeTensor, 4
		d.Status.Conditions = []metav1.Condition{{Type: v1alpha2.ConditionReady, Status: metav1.ConditionTrue}}
		quiet := shape{v1alpha2.ModeTensor, 4}
		after := func(after time.Duration, to shape) *decided {
			return &decided{at: begun.Add(after), inForce: begun.Add(after + time.Second), to: to}
		}
		b := &bursts{now: d, began: begun, ended: begun.Add(time.Minute), back: begun.Add(2 * time.Minute), before: quiet, Decisions: []*decided{
			after(-30*time.Second, quiet), after(3*time.Second, shape{v1alpha2.ModeExpert, 4}), after(20*time.Second, shape{v1alpha2.ModeExpert, 6}),
			after(90*time.Second, shape{v1alpha2.ModeTensor, 6}), after(110*time.Second, quiet)}}
		var reference []*load.Result
		for i := range 60 {
			b.results = append(b.results, answeredAt(begun.Add(time.Duration(i)*time.Second), 100*time.Millisecond, 10*time.Millisecond, 5))
			reference = append(reference, answeredAt(begun, 0, 0, 5))
		}
		return b, reference
	}
	b, reference := sound()
	require.NoError(t, b.judge(reference))
	require.Empty(t, b.Broken)
	require.Len(t, b.Felt, 4)
	require.Equal(t, 21, b.Felt[1].Requests, "until the wider world was in force")
	var out strings.Builder
	(&report{Bursts: b}).printBursts(&out)
	require.Contains(t, out.String(), "60 requests, 300 tokens; HTTP 429 and 503, then sent again: 0; lost requests: 0; requests that differ from the one-rank run: 0")

	for words, spoil := range map[string]func(*bursts, []*load.Result){
		"did not switch":                      func(b *bursts, _ []*load.Result) { b.Decisions = append(b.Decisions[:1], b.Decisions[4:]...) },
		"did not become wider":                func(b *bursts, _ []*load.Result) { b.Decisions = append(b.Decisions[:2], b.Decisions[3:]...) },
		"and not TP, 4 ranks again":           func(b *bursts, _ []*load.Result) { b.now.Status.Ranks = 6 },
		"few requests are served faster":      func(b *bursts, _ []*load.Result) { b.before.Mode = v1alpha2.ModeExpert },
		"spec.replicas 6: another client":     func(b *bursts, _ []*load.Result) { b.now.Spec.Replicas = 6 },
		"1 requests of bursts were lost":      func(b *bursts, _ []*load.Result) { b.results[3].Err = errors.New("gone") },
		"1 requests of bursts differ from on": func(_ *bursts, reference []*load.Result) { reference[7].Tokens[2].ID = 99 },
	} {
		b, reference := sound()
		spoil(b, reference)
		require.NoError(t, b.judge(reference))
		require.Contains(t, strings.Join(b.Broken, "; "), words)
	}
	b, reference = sound()
	reference[0].Err = errors.New("out of memory")
	require.ErrorContains(t, b.judge(reference), "failed on one rank")
}

func TestBurstFigures(t *testing.T) {
	t.Setenv("QUICK", "1")
	run := func(ttft, tpot float64) *burstRun {
		r := &burstRun{results: make([]*load.Result, 5)}
		for range burstPhases() {
			r.Felt = append(r.Felt, felt{Requests: 1, TTFT99: ttft, TPOT50: tpot})
		}
		return r
	}
	runs := []*burstRun{run(1, .2), run(2, .1), run(1.1, .1), run(1, .1)}
	runs[2].Lost, runs[3].Grown = 1, &burstGrown{Error: .07}
	s := burstSummary(runs)
	require.InDelta(t, 1.1, s["value"], 1e-9, "over the better one of each figure")
	m := s["metrics"].(map[string]any) //nolint:forcetypeassert // what it gives
	require.Equal(t, 1, m["lost"])
	require.Equal(t, 20, m["requests"])
	require.InDelta(t, .07, m["grow_error"], 1e-9)
	require.InDelta(t, 1.1, m["ttft"], 1e-9)
	require.InDelta(t, 1, m["tpot_before"], 1e-9)
	require.InDelta(t, 2, m["alone"], 1e-9, "one mode is twice as long to a first token, the other for the later ones")

	for _, r := range runs {
		r.Felt[2] = felt{}
	}
	s = burstSummary(runs)
	for _, figure := range []string{"tpot_after", "alone_after"} {
		require.NotContains(t, s["metrics"], figure, "no request came in this phase")
	}
	_, err := json.Marshal(s)
	require.NoError(t, err)

	start := time.UnixMilli(0)
	require.InDelta(t, .02, medianGap([]*load.Result{answeredAt(start, time.Second, 20*time.Millisecond, 50)}, start, start.Add(time.Minute)), 1e-6)
}
