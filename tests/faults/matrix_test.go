// Package faults runs the fault matrix: README.md.
package faults

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/e2e/harness"
	"tangram.dev/tests/internal/worlds"
)

const (
	largestSample = 35 // cells
	expectedFile  = "expected.txt"
	failedDir     = worlds.Root + "/build/fault-matrix/failed" // logs
)

// exceptions are points without a cell, with the reason.
var exceptions = map[string]string{}

// outcome is the result of a cell, for the report.
type outcome struct {
	Name       string  `json:"name"`
	Kind       string  `json:"kind"`
	Passed     bool    `json:"passed"`
	NotReached bool    `json:"not_reached,omitempty"`
	Seconds    float64 `json:"seconds"`
	Error      string  `json:"error,omitempty"`
	Toll       toll    `json:"toll"`
}

func TestFaults(t *testing.T) {
	oneNode := sharesMemory(t, isFull())
	takes, err := harness.FaultPoints(t.Context(), worlds.Root)
	require.NoError(t, err)
	cells := func(expected map[string][]string) []fault {
		if all := matrix(transitions, expected, takes); !oneNode {
			return all
		}
		return onOneNode(matrix(transitions, expected, takes))
	}
	sample := func(cells []fault, seed int) []fault { return samples(cells, seed/parts)[seed%parts] }
	if worlds.IsCI() {
		sample = coreCells(t)
	}
	playMatrix(t, func() *scene { return referenceScene(t, oneNode, worlds.StartTiny) }, cells, sample)
}

// isFull reports whether all cells are requested.
func isFull() bool { return os.Getenv("FAULT_MATRIX") == "full" }

// playMatrix runs cells on a scene, which is made only if there is a cell to run. The cells are those of the points
// that its transitions pass.
func playMatrix(t *testing.T, set func() *scene, matrix func(expected map[string][]string) []fault, sample func(cells []fault, day int) []fault) {
	t.Helper()
	full, update := isFull(), os.Getenv("UPDATE") == "1"
	began := time.Now()
	require.NoError(t, os.RemoveAll(filepath.Join(failedDir, t.Name())), "logs of an earlier run")
	if only := os.Getenv("ONLY"); only != "" && !update && len(choose(t, matrix(readExpected(t)), full, sample)) == 0 {
		t.Logf("no cell here is called %s", only)
		return
	}
	sc := set()
	s := newStage(t, sc)
	if full && os.Getenv("ONLY") == "" && !sc.oneNode || update {
		survey(t, s, readExpected(t), update)
	}
	cells := matrix(readExpected(t))
	all := len(cells)
	cells = choose(t, cells, full, sample)
	slices.SortFunc(cells, func(a, b fault) int { return cmp.Compare(a.name(), b.name()) })
	t.Logf("%d of %d cells", len(cells), all)

	var outcomes []outcome
	for _, f := range cells {
		t.Run(f.name(), func(t *testing.T) {
			began := time.Now()
			toll, notReached, err := s.play(t.Context(), f)
			o := outcome{Name: f.name(), Kind: f.kind, Passed: err == nil && !notReached, NotReached: notReached,
				Seconds: time.Since(began).Seconds(), Toll: toll}
			if err != nil {
				o.Error = err.Error()
			}
			outcomes = append(outcomes, o)
			if full {
				// For progress: go test prints its output only at the end.
				fmt.Printf("%d/%d %s: %.1f s, passed %t\n", len(outcomes), len(cells), o.Name, o.Seconds, o.Passed)
			}
			require.NoError(t, err, "logs are in %s", s.Dir())
			require.False(t, notReached, "in %d plays the point was not passed, or the flip had no KV to carry", s.tries)
		})
		if n := len(outcomes); n > 0 && outcomes[n-1].Error != "" {
			s.endKeeper()
			s.Stop()
			keepLogs(t, s, f) // no process writes to them any longer
			s = newStage(t, sc)
		}
	}
	report(t, sc.report, outcomes, all, full, time.Since(began))
}

// sharesMemory reports whether the agents map each other's memory: with ONE_NODE=1, and in the samples of every other
// seven seeds.
func sharesMemory(t *testing.T, full bool) bool {
	t.Helper()
	oneNode := os.Getenv("ONE_NODE") == "1" || !full && os.Getenv("ONLY") == "" && os.Getenv("UPDATE") != "1" && worlds.Seed(t)/parts%2 == 1
	t.Logf("agents map each other's memory: %t (ONE_NODE=1)", oneNode)
	return oneNode
}

// survey checks that each transition passes all expected points. Further points are passed only sometimes.
func survey(t *testing.T, s *stage, expected map[string][]string, update bool) {
	t.Helper()
	var lines []string
	for _, tr := range s.transitions {
		seen, err := s.survey(t.Context(), tr, expected[tr.name])
		require.NoError(t, err, tr.name)
		for _, point := range seen {
			if s.surveyed != nil && !s.surveyed(point) {
				continue
			}
			lines = append(lines, tr.name+" "+point+"\n")
			if !slices.Contains(expected[tr.name], point) {
				t.Logf("%s also passes %s", tr.name, point)
			}
		}
		for _, point := range expected[tr.name] {
			require.True(t, update || slices.Contains(seen, point), "%s does not pass %s any more; UPDATE=1 writes %s anew", tr.name, point, expectedFile)
		}
	}
	if update {
		ours := func(name string) bool {
			return slices.ContainsFunc(s.transitions, func(tr transition) bool { return tr.name == name })
		}
		for name, points := range expected { // entries of other matrices
			for _, point := range points {
				if !ours(name) {
					lines = append(lines, name+" "+point+"\n")
				}
			}
		}
		slices.Sort(lines)
		require.NoError(t, os.WriteFile(expectedFile, []byte(strings.Join(lines, "")), 0o600))
	}
}

// choose selects the cells to run: all of a shard, those of a pattern, or a sample.
func choose(t *testing.T, cells []fault, full bool, sample func([]fault, int) []fault) []fault {
	t.Helper()
	if only := os.Getenv("ONLY"); only != "" {
		pattern, err := regexp.Compile(only)
		require.NoError(t, err, "ONLY")
		return slices.DeleteFunc(cells, func(f fault) bool { return !pattern.MatchString(f.name()) })
	}
	if !full {
		return sample(cells, worlds.Seed(t))
	}
	shard, of := 1, 1
	if text := os.Getenv("SHARD"); text != "" {
		_, err := fmt.Sscanf(text, "%d/%d", &shard, &of)
		require.NoError(t, err, "SHARD: want i/n")
	}
	var out []fault
	for i, f := range cells {
		if i%of == shard-1 {
			out = append(out, f)
		}
	}
	return out
}

// readExpected returns the points that each transition passes, by its name.
func readExpected(t *testing.T) map[string][]string {
	t.Helper()
	wire, err := os.ReadFile(expectedFile)
	require.NoError(t, err)
	out := map[string][]string{}
	for line := range strings.Lines(string(wire)) {
		name, point, ok := strings.Cut(strings.TrimSpace(line), " ")
		require.True(t, ok, "%s: %q is not a transition and a point", expectedFile, line)
		out[name] = append(out[name], point)
	}
	return out
}

// Every declared point is passed in some transition, or is an exception.
func TestEveryFaultPointIsCovered(t *testing.T) {
	declared, err := harness.FaultPoints(t.Context(), worlds.Root)
	require.NoError(t, err)
	require.NotEmpty(t, declared)
	played := map[string]bool{}
	known := slices.Concat(transitions, transitionsOfVLLM, transitionsOfARun)
	for name, points := range readExpected(t) {
		require.True(t, slices.ContainsFunc(known, func(tr transition) bool { return tr.name == name }), "%s: no transition %s", expectedFile, name)
		for _, point := range points {
			require.Contains(t, declared, point, "%s: %s", expectedFile, name)
			played[point] = true
		}
	}
	for point := range declared {
		_, excepted := exceptions[point]
		require.True(t, played[point] != excepted, "%s: played %t, an exception %t", point, played[point], excepted)
	}
	for point, why := range exceptions {
		require.Contains(t, declared, point, "an exception")
		require.NotEmpty(t, why, point)
	}
}

// keepLogs copies the logs of a failed case: the next stage uses the folder.
func keepLogs(t *testing.T, s *stage, f fault) {
	t.Helper()
	matrix, _, _ := strings.Cut(t.Name(), "/")
	to := filepath.Join(failedDir, matrix, strings.ReplaceAll(f.name(), "/", "_"))
	require.NoError(t, os.RemoveAll(to))
	require.NoError(t, os.CopyFS(to, os.DirFS(s.Dir())))
	t.Logf("logs of %s: %s", f.name(), to)
}

// coreCells returns the cells of `make test`: one of each kind of death, and a corrupt byte.
func coreCells(t *testing.T) func([]fault, int) []fault {
	t.Helper()
	core := []string{
		"resize-up/stage.before_verify/agent",
		"resize-down/flip.before_commit/pod",
		"expert-to-tensor/stage.after_fetch/corrupt",
		"tensor-to-expert/engine.flip_commit/engine",
		"repair-expert/stage.after/operator",
	}
	return func(cells []fault, _ int) []fault {
		cells = slices.DeleteFunc(cells, func(f fault) bool { return !slices.Contains(core, f.name()) })
		require.Len(t, cells, len(core), "a cell of %v is not in the matrix", core)
		return cells
	}
}

func report(t *testing.T, file string, outcomes []outcome, all int, full bool, took time.Duration) {
	t.Helper()
	count, byKind := map[string]int{}, map[string]int{}
	for _, o := range outcomes {
		byKind[o.Kind]++
		switch {
		case o.Error != "":
			count["failed"]++
		case o.NotReached:
			count["not reached"]++
		default:
			count["passed"]++
		}
	}
	wire, err := json.MarshalIndent(map[string]any{"cells": all, "played": len(outcomes), "passed": count["passed"], "failed": count["failed"],
		"not_reached": count["not reached"], "by_kind": byKind, "seconds": took.Seconds(), "full": full, "cases": outcomes}, "", " ")
	require.NoError(t, err)
	path := filepath.Join(worlds.Root, "build/fault-matrix", file)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(t, os.WriteFile(path, wire, 0o600))
	fmt.Printf("fault matrix: %d cells, %d played: %d passed, %d failed, %d not reached, %.0f s\n", all, len(outcomes),
		count["passed"], count["failed"], count["not reached"], took.Seconds())
	for _, kind := range kinds() {
		if byKind[kind] > 0 {
			fmt.Printf("  %-13s %d\n", kind, byKind[kind])
		}
	}
}
