package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"tangram.dev/api/v1alpha2"
	"tangram.dev/e2e/load"
)

// echoes answers each chat with its length three times, and the n-th chat with two almost equal logits.
func echoes(t *testing.T, n int) (*oracle, *load.Trace) {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{"build/models/demo-f32-qwen3/config.json": "{}", "build/vllm/bin/python": fmt.Sprintf(`#!/usr/bin/env python3
import json, sys
assert sys.argv[1].endswith("agent/vllm/tests/oracle.py") and sys.argv[2].endswith("build/models/demo-f32-qwen3"), sys.argv
for i, line in enumerate(sys.stdin):
    print(json.dumps({"tokens": [len(json.loads(line)["chat"])] * 3, "texts": ["", "a", "ab", "abc"], "gap": 1e-9 if i == %d else 0.5}))
`, n)} {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o700)) //nolint:gosec // a program
	}
	trace, err := load.NewTrace(1, time.Second)
	require.NoError(t, err)
	o := options{root: root, out: filepath.Join(root, "out"), vllm: true}
	known, err := askOracle(t.Context(), &o, trace)
	require.NoError(t, err)
	t.Cleanup(known.stop)
	return known, trace
}

func answered(chat, text string, tokens ...int) *load.Result {
	r := &load.Result{Request: load.Request{Chat: chat, MaxTokens: len(tokens)}, Text: text}
	for _, id := range tokens {
		r.Tokens = append(r.Tokens, load.Token{ID: uint32(id)})
	}
	return r
}

func TestAnswersAreComparedWithTransformers(t *testing.T) {
	known, trace := echoes(t, 5)
	undecided := trace.At(5).Chat
	rounds := trace.Round()
	require.NoError(t, known.choose(trace))
	require.Equal(t, rounds-1, trace.Round(), "one was not decided by float32")
	for i := range trace.Round() {
		require.NotEqual(t, undecided, trace.At(i).Chat)
		require.Zero(t, trace.At(i).Temperature)
		require.LessOrEqual(t, trace.At(i).MaxTokens, vllmAnswer)
	}
	a, b := trace.At(0).Chat, trace.At(1).Chat
	first, second := utf8.RuneCountInString(a), utf8.RuneCountInString(b)
	good := known.compare([]*load.Result{answered(a, "ab", first, first), answered(b, "a", second)})
	require.Equal(t, &oracleReport{Requests: 2, LeastGap: .5, LeftOut: 1, Chats: rounds}, good)
	require.Empty(t, good.broken())
	var out bytes.Buffer
	good.print(&out)
	require.Contains(t, out.String(), "tokens and texts of 2 chats compared, 0 different; the two best logits of a token are 0.5 apart at the least")

	lost := answered(a, "")
	lost.Err = os.ErrClosed
	bad := known.compare([]*load.Result{answered(a, "ab", first, first+1), answered(b, "abc", second, second, second, second), answered(a, "a?", first, first), lost})
	require.Equal(t, 3, bad.Requests, "what is lost is told elsewhere")
	require.Equal(t, 3, bad.Different, "another token, one more than transformers was asked for, and another text")
	require.Equal(t, []string{"3 requests differ from transformers"}, bad.broken())
}

func TestInconclusiveComparisonBreaksPromise(t *testing.T) {
	for _, r := range []oracleReport{{LeastGap: .5}, {Requests: 1, LeastGap: leastGap}, {Requests: 1, LeastGap: math.NaN()}, {Requests: 1, LeastGap: math.Inf(1)}} {
		require.Len(t, r.broken(), 1, "%v", r)
	}
	require.Empty(t, (&oracleReport{Requests: 1, LeastGap: 2 * leastGap}).broken())
}

// The world of vLLM equals the demo's, except model and engine.
func TestVLLMWorldDiffersOnlyInModelAndEngine(t *testing.T) {
	o := options{root: "../../..", vllm: true}
	d, _, err := readManifest(o.manifest())
	require.NoError(t, err)
	require.Equal(t, v1alpha2.EngineVLLM, d.Spec.Engine.Name)
	require.Equal(t, vllmFlags, d.Spec.Engine.Args[:len(vllmFlags)])
	require.EqualValues(t, vllmPreset+"-"+vllmTokenizer, d.Spec.Model.Source.PersistentVolumeClaim.Path)
	o.vllm = false
	plain, _, err := readManifest(o.manifest())
	require.NoError(t, err)
	for _, s := range []*v1alpha2.MoEDeployment{d, plain} {
		s.Spec.Replicas, s.Spec.Engine, s.Spec.Model.Source.PersistentVolumeClaim.Path = 0, v1alpha2.Engine{}, ""
		s.Spec.Gateway.Text, s.Spec.Memory.Weights, s.Spec.Template = nil, resource.Quantity{}, v1alpha2.PodTemplate{}
	}
	require.Equal(t, plain.Spec, d.Spec)
	require.Equal(t, []string{vllmImage}, (&options{vllm: true}).cluster().Archives)

	c := vllmCommand()
	require.Equal(t, "2", c.Flag("ranks").Value.String())
	names := []string{}
	for _, s := range steps(2, 1) {
		names = append(names, s.name)
	}
	require.Equal(t, []string{"2 -> 3 ranks", "EP -> TP", "TP -> EP", "3 -> 2 ranks"}, names)
}
