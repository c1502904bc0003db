package cluster

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
)

// oneRank is a world of one rank, as local processes, started at first use. Tests send the same requests, so each is
// computed once.
var oneRank reference

type reference struct {
	mu      sync.Mutex
	world   *harness.World
	answers map[string]*load.Result
}

// question identifies a request by all that determines its answer.
func question(r load.Request) string {
	return fmt.Sprint(r.Prompt, r.MaxTokens, r.Temperature, r.TopP, r.Seed)
}

// answer returns the reference results of the requests, in their order.
func (o *reference) answer(ctx context.Context, results []*load.Result) ([]*load.Result, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.world == nil {
		w, err := harness.Start(ctx, harness.Options{Root: root, Dir: filepath.Join(root, "build/cluster-one"), Pods: harness.Pods(1)})
		if err != nil {
			return nil, err
		}
		o.world, o.answers = w, map[string]*load.Result{}
		if _, err := w.Apply(ctx, 1, "ExpertParallel", nil, nil); err != nil {
			return nil, fmt.Errorf("%w: %s", err, w.Died())
		}
	}
	var unknown []*load.Result
	for _, r := range results {
		if o.answers[question(r.Request)] == nil {
			unknown = append(unknown, r)
		}
	}
	c := &load.Client{URL: o.world.URL(), Model: o.world.Model(), HTTP: &http.Client{}}
	for i, answer := range c.Again(ctx, unknown, 8) {
		if answer.Err != nil {
			return nil, answer.Err
		}
		o.answers[question(unknown[i].Request)] = answer
	}
	out := make([]*load.Result, len(results))
	for i, r := range results {
		out[i] = o.answers[question(r.Request)]
	}
	return out, nil
}

func (o *reference) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.world != nil {
		o.world.Stop()
	}
}

// requireOneRanksTokens requires the tokens and logit hashes of a world of one rank.
func requireOneRanksTokens(t *testing.T, results []*load.Result) {
	t.Helper()
	all, err := oneRank.answer(t.Context(), results)
	require.NoError(t, err, "on one rank")
	for i, want := range all {
		require.Empty(t, results[i].Differs(want))
	}
}
