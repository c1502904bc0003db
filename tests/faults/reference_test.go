package faults

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/e2e/load"
	"tangram.dev/tests/internal/worlds"
)

// judge checks the clients' results; nil: they are right.
type judge interface {
	check(ctx context.Context, results []*load.Result) error
}

// reference is a world of one rank without events. It computes each request once.
type reference struct {
	world   *harness.World
	answers map[int]*load.Result // by index of the request
}

func newReference(t *testing.T, start func(*testing.T, harness.Options) *harness.World) *reference {
	t.Helper()
	w := start(t, harness.Options{Pods: []int{1}, Dir: "-one"})
	worlds.Apply(t, w, 1, "ExpertParallel")
	return &reference{w, map[int]*load.Result{}}
}

// check requires that every request ended, with the tokens and logit hashes of the world of one rank.
func (r *reference) check(ctx context.Context, results []*load.Result) error {
	var fresh []*load.Result
	for i, result := range results {
		if result == nil {
			return fmt.Errorf("request %d has no result", i)
		}
		if r.answers[result.Request.Index] == nil {
			fresh = append(fresh, result)
		}
	}
	for _, a := range worlds.Client(r.world).Again(ctx, fresh, 8) {
		if a.Err != nil {
			return fmt.Errorf("request %d of the world of one rank: %w", a.Request.Index, a.Err)
		}
		r.answers[a.Request.Index] = a
	}
	return differ(results, r.answers)
}

// differ reports lost requests, and requests whose tokens differ from the answers, by index.
func differ(results []*load.Result, answers map[int]*load.Result) error {
	wrong, first := 0, ""
	note := func(text string) {
		if wrong++; wrong == 1 {
			first = text
		}
	}
	for _, r := range results {
		want := answers[r.Request.Index]
		switch {
		case r.Err != nil:
			note(fmt.Sprintf("request %d is lost after %d tokens: %v", r.Request.Index, len(r.Tokens), r.Err))
		case want == nil:
			note(fmt.Sprintf("request %d has nothing to be compared with", r.Request.Index))
		default:
			if where := r.Differs(want); where != "" {
				note(where)
			}
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d requests: %s", wrong, len(results), first)
	}
	return nil
}

// Every request is compared, whatever its index.
func TestEveryRequestIsCompared(t *testing.T) {
	answer := func(i int) *load.Result {
		return &load.Result{Request: load.Request{Index: i}, Tokens: []load.Token{{ID: uint32(i), Hash: "h"}, {ID: 7, Hash: "g"}}}
	}
	answers := map[int]*load.Result{}
	var results []*load.Result
	for i := range 60 {
		answers[i] = answer(i)
		results = append(results, answer(i))
	}
	require.NoError(t, differ(results, answers))
	for i := range results {
		results[i].Tokens[1].ID++
		require.ErrorContains(t, differ(results, answers), fmt.Sprintf("request %d, token 1", i))
		results[i].Tokens[1].ID--
		results[i].Tokens[0].Hash = "other"
		require.ErrorContains(t, differ(results, answers), fmt.Sprintf("request %d, token 0", i))
		results[i] = answer(i)
		results[i].Tokens = results[i].Tokens[:1]
		require.ErrorContains(t, differ(results, answers), fmt.Sprintf("request %d: 1 and 2 tokens", i))
		results[i] = answer(i)
		results[i].Err = context.Canceled
		require.ErrorContains(t, differ(results, answers), fmt.Sprintf("request %d is lost", i))
		results[i] = answer(i)
	}
	delete(answers, 59)
	require.ErrorContains(t, differ(results, answers), "request 59 has nothing to be compared with")
}
