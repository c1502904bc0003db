package walk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// golden has transformers' results, for requests to worlds.
type golden struct{ worlds.Golden }

func readGolden(t *testing.T, preset string) *golden {
	t.Helper()
	return &golden{worlds.ReadGolden(t, preset)}
}

// requireGiven: the files are those that transformers read.
func (g *golden) requireGiven(t *testing.T, dir string) {
	t.Helper()
	for file, want := range g.Checkpoint {
		wire, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		sum := sha256.Sum256(wire)
		require.Equal(t, want, hex.EncodeToString(sum[:]), file)
	}
}

// ask sends every golden prompt concurrently, as a stream and as a whole; every answer must be the golden one.
func (g *golden) ask(ctx context.Context, w *harness.World) error {
	answers := map[string]func(context.Context, *harness.World, []uint32, int) ([]uint32, error){"streamed": streamed, "whole": whole}
	var wait sync.WaitGroup
	errs := make(chan error, len(g.Cases)*len(answers))
	for i, c := range g.Cases {
		for how, answer := range answers {
			wait.Go(func() {
				tokens, err := answer(ctx, w, c.Prompt, len(c.Tokens))
				if err == nil {
					err = sameTokens(tokens, c.Tokens)
				}
				if err != nil {
					errs <- fmt.Errorf("golden case %d, %s: %w", i, how, err)
				}
			})
		}
	}
	wait.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return all
}

func sameTokens(got, want []uint32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d tokens, transformers gave %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("token %d is %d, of transformers %d", i, got[i], want[i])
		}
	}
	return nil
}

func streamed(ctx context.Context, w *harness.World, prompt []uint32, n int) ([]uint32, error) {
	result := client(w).Do(ctx, load.Request{Prompt: prompt, MaxTokens: n, TopP: 1})
	var tokens []uint32
	for _, token := range result.Tokens {
		tokens = append(tokens, token.ID)
	}
	return tokens, result.Err
}

// whole requests an answer in one body, with the required fields only.
func whole(ctx context.Context, w *harness.World, prompt []uint32, n int) ([]uint32, error) {
	body, err := json.Marshal(map[string]any{"prompt": prompt, "max_tokens": n, "temperature": 0})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL()+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reply.Body.Close() }() // only read
	var answer struct {
		Choices []struct {
			TokenIDs []uint32 `json:"token_ids"`
		} `json:"choices"`
	}
	if reply.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP %d", reply.StatusCode)
	}
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if len(answer.Choices) != 1 {
		return nil, fmt.Errorf("%d choices", len(answer.Choices))
	}
	return answer.Choices[0].TokenIDs, nil
}

// Clients of a world of agents and engines that loaded the checkpoint get transformers' tokens through the gateway,
// with either slab format: at rest in each layout, and from requests that run during the transition to it.
func TestGolden(t *testing.T) {
	type world struct {
		preset string
		harness.Options
	}
	const rows = "row-major"
	for _, of := range worlds.Cases(1, []world{
		{"tiny", harness.Options{Granule: 8}},
		{"odd", harness.Options{Granule: 8}},
		{"demo", harness.Options{Granule: 16}},
		{"tiny", harness.Options{Granule: 8, SlabFormat: rows, OneNode: true}},
		{"odd", harness.Options{Granule: 8, SlabFormat: rows}},
		{"demo", harness.Options{Granule: 16, SlabFormat: rows}},
	}) {
		t.Run(of.preset+of.SlabFormat, func(t *testing.T) {
			g := readGolden(t, of.preset)
			checkpoint, err := harness.Checkpoint(t.Context(), worlds.Root, of.preset)
			require.NoError(t, err)
			g.requireGiven(t, checkpoint)
			of.Pods, of.Checkpoint = harness.Pods(4), checkpoint
			w := start(t, of.Options)
			apply(t, w, 1, "ExpertParallel")
			require.NoError(t, g.ask(t.Context(), w))
			for _, s := range []stop{
				{3, "ExpertParallel", nil},
				{3, "TensorParallel", nil},
				{4, "TensorParallel", nil},
				{4, "ExpertParallel", []string{"0=2/2"}}, // one layer sharded in pairs
				{2, "ExpertParallel", nil},
			} {
				t.Run(fmt.Sprint(s.ranks, s.mode, s.shapes), func(t *testing.T) {
					g.askUntil(t, w, func() { apply(t, w, s.ranks, s.mode, s.shapes...) })
					require.NoError(t, g.ask(t.Context(), w))
				})
			}
		})
	}
}

// askUntil repeats the requests until `do` has ended.
func (g *golden) askUntil(t *testing.T, w *harness.World, do func()) {
	t.Helper()
	halt, asked := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if err := g.ask(t.Context(), w); err != nil {
				asked <- err
				return
			}
			select {
			case <-halt:
				asked <- nil
				return
			default:
			}
		}
	}()
	defer func() { require.NoError(t, <-asked) }()
	defer close(halt)
	do()
}
