package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// leastGap is the minimum gap of a token's two best logits. Kernels of vLLM and of transformers differ by some 1e-6 of
// the largest logit in float32, so a token with a smaller gap is undetermined and its request is left out.
const leastGap = 1e-3

// oracle has transformers' answer to each chat of a round of the trace, in float32, greedily.
type oracle struct {
	chats   []string
	answers map[string]answer // by chat
	least   float64           // gap of the chats that are used
	left    int               // chats left out because of their gap
	end     context.CancelFunc
	ended   chan error
	out     bytes.Buffer
}

type answer struct {
	Tokens []uint32 `json:"tokens"`
	Texts  []string `json:"texts"` // of zero tokens, the first, the first two, ...
	Gap    float64  `json:"gap"`
}

// oracleReport compares the answers of clients.
type oracleReport struct {
	Requests  int `json:"requests"`
	Different int `json:"different"`
	// LeastGap is the smallest gap of the two best logits of any token of the chats that were used.
	LeastGap float64 `json:"least_gap"`
	LeftOut  int     `json:"chats_left_out"`
	Chats    int     `json:"chats"`
}

// askOracle starts to compute all answers of a round in parallel with other work. It makes the trace one of greedy
// chats.
func askOracle(ctx context.Context, o *options, trace *load.Trace) (*oracle, error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return nil, err
	}
	checkpoint, err := harness.WithTokenizer(ctx, root, vllmPreset, vllmTokenizer)
	if err != nil {
		return nil, err
	}
	trace.Chat, trace.Greedy, trace.MaxAnswer = true, true, vllmAnswer
	k := &oracle{answers: map[string]answer{}, ended: make(chan error, 1)}
	var asked bytes.Buffer
	encoder := json.NewEncoder(&asked)
	for i := range trace.Round() {
		chat := trace.At(i).Chat
		k.chats = append(k.chats, chat)
		if err := encoder.Encode(map[string]any{"chat": chat, "tokens": vllmAnswer}); err != nil {
			return nil, err
		}
	}
	ctx, k.end = context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, filepath.Join(root, "build/vllm/bin/python"), filepath.Join(root, "agent/vllm/tests/oracle.py"), checkpoint)
	cmd.Stdin, cmd.Stdout = &asked, &k.out
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	if err := os.MkdirAll(o.out, 0o750); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(o.out, "oracle.log"))
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	say("transformers answers %d chats meanwhile", len(k.chats))
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("transformers (of make vllm-setup): %w", err), log.Close())
	}
	go func() { k.ended <- errors.Join(cmd.Wait(), log.Close()) }()
	return k, nil
}

func (k *oracle) stop() { k.end() }

// choose keeps the requests of the trace whose answers float32 determines.
func (k *oracle) choose(trace *load.Trace) error {
	say("waiting for transformers")
	if err := <-k.ended; err != nil {
		return fmt.Errorf("transformers (see oracle.log): %w", err)
	}
	k.least = math.Inf(1)
	decoder := json.NewDecoder(&k.out)
	for _, chat := range k.chats {
		var a answer
		if err := decoder.Decode(&a); err != nil {
			return fmt.Errorf("transformers answered %d of %d chats: %w", len(k.answers), len(k.chats), err)
		}
		k.answers[chat] = a
		if a.Gap > leastGap {
			k.least = min(k.least, a.Gap)
		} else {
			k.left++
		}
	}
	say("the two best logits of a token are %.2g apart at the least; %d of %d chats have closer ones and are left out", k.least, k.left, len(k.chats))
	return trace.Keep(func(r load.Request) bool { return k.answers[r.Chat].Gap > leastGap })
}

// compare compares the clients' answers. Lost requests are counted elsewhere.
func (k *oracle) compare(results []*load.Result) *oracleReport {
	r := &oracleReport{LeastGap: k.least, LeftOut: k.left, Chats: len(k.chats)}
	for _, result := range results {
		if result.Err != nil {
			continue
		}
		r.Requests++
		var got []uint32
		for _, t := range result.Tokens {
			got = append(got, t.ID)
		}
		known := k.answers[result.Request.Chat]
		switch n := result.Request.MaxTokens; {
		case len(known.Tokens) < n || !slices.Equal(got, known.Tokens[:n]):
			r.Different++
			say("request %d: %v, and transformers has %v", result.Request.Index, got, known.Tokens)
		case result.Text != known.Texts[n]:
			r.Different++
			say("request %d: %q, and transformers has %q", result.Request.Index, result.Text, known.Texts[n])
		}
	}
	return r
}

// broken returns broken promises. One promise is that the comparison is meaningful.
func (r *oracleReport) broken() (out []string) {
	if r.Different > 0 {
		out = append(out, fmt.Sprintf("%d requests differ from transformers", r.Different))
	}
	if r.Requests == 0 || !(r.LeastGap > leastGap) || math.IsInf(r.LeastGap, 1) {
		out = append(out, fmt.Sprintf("%d requests were compared with transformers, the least gap of two logits is %g: equality means nothing", r.Requests, r.LeastGap))
	}
	return out
}

func (r *oracleReport) print(out io.Writer) {
	_, _ = fmt.Fprintf(out, "transformers in float32: tokens and texts of %d chats compared, %d different; the two best logits of a token are %.2g apart at the least (%d of %d chats have closer ones and were left out)\n",
		r.Requests, r.Different, r.LeastGap, r.LeftOut, r.Chats)
}
