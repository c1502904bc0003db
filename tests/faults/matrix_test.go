// Package faults plays the fault matrix: README.md.
package faults

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tangram.dev/tests/internal/worlds"
)

const (
	sample       = 12 // cells in `make test`
	expectedFile = "expected.txt"
	failedDir    = worlds.Root + "/build/fault-matrix/failed" // logs
)

// outcome of a cell, for the report.
type outcome struct {
	Name       string  `json:"name"`
	Passed     bool    `json:"passed"`
	NotReached bool    `json:"not_reached,omitempty"`
	Seconds    float64 `json:"seconds"`
	Error      string  `json:"error,omitempty"`
}

func TestFaults(t *testing.T) {
	full := os.Getenv("FAULT_MATRIX") == "full"
	began := time.Now()
	require.NoError(t, os.RemoveAll(failedDir), "logs of an earlier run")
	s := newStage(t)
	expected := readExpected(t)
	passed := map[string]map[string][]int{} // transition -> point -> places of pods that pass it
	var cells []fault
	for _, tr := range transitions {
		seen, err := s.passed(t.Context(), tr, expected[tr.name])
		require.NoError(t, err, tr.name)
		passed[tr.name] = seen
		for point := range seen {
			if tr.dies && !slices.ContainsFunc(seen[point], func(place int) bool { return place != 0 }) {
				continue
			}
			for _, victim := range victims {
				cells = append(cells, fault{point, victim, tr})
			}
		}
	}
	requireExpected(t, passed, expected)
	slices.SortFunc(cells, func(a, b fault) int { return cmp.Compare(a.name(), b.name()) })
	all := len(cells)
	cells = choose(t, cells, full)
	t.Logf("%d of %d cells", len(cells), all)

	var outcomes []outcome
	for _, f := range cells {
		t.Run(f.name(), func(t *testing.T) {
			began := time.Now()
			notReached, err := s.play(t.Context(), f, passed[f.transition.name][f.point])
			o := outcome{Name: f.name(), Passed: err == nil && !notReached, NotReached: notReached, Seconds: time.Since(began).Seconds()}
			if err != nil {
				o.Error = err.Error()
			}
			outcomes = append(outcomes, o)
			if full {
				fmt.Printf("%d/%d %s: %.1f s, passed %t\n", len(outcomes), len(cells), o.Name, o.Seconds, o.Passed) // go test tells at the end only
			}
			require.NoError(t, err, "logs are in %s", s.Dir())
			require.False(t, notReached, "the point was not passed in %d plays", tries)
		})
		if n := len(outcomes); n > 0 && outcomes[n-1].Error != "" {
			keepLogs(t, s, f)
			s.keeper.Kill()
			s.Stop()
			s = newStage(t)
		}
	}
	report(t, outcomes, all, full, time.Since(began))
}

// choose the cells to play: all of a shard, or a sample that has each victim and each transition.
func choose(t *testing.T, cells []fault, full bool) []fault {
	t.Helper()
	if only := os.Getenv("ONLY"); only != "" {
		pattern, err := regexp.Compile(only)
		require.NoError(t, err, "ONLY")
		return slices.DeleteFunc(cells, func(f fault) bool { return !pattern.MatchString(f.name()) })
	}
	if full {
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
	seed := uint64(time.Now().Unix() / (24 * 3600))
	if text := os.Getenv("FAULT_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "FAULT_SEED")
		seed = given
	}
	t.Logf("FAULT_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	random.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
	var out []fault
	have := map[string]bool{}
	take := func(f fault) {
		out = append(out, f)
		have[f.victim], have[f.transition.name] = true, true
	}
	for _, f := range cells { // first whatever is new in both, then in one
		if !have[f.victim] && !have[f.transition.name] {
			take(f)
		}
	}
	for _, f := range cells {
		if !have[f.victim] || !have[f.transition.name] {
			take(f)
		}
	}
	for _, f := range cells {
		if len(out) >= sample {
			break
		}
		if !slices.Contains(out, f) {
			take(f)
		}
	}
	return out
}

// readExpected gives the points that each transition passes, by its name.
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

// requireExpected: a point that a transition no longer passes is a fault that nobody tests.
func requireExpected(t *testing.T, passed map[string]map[string][]int, expected map[string][]string) {
	t.Helper()
	if os.Getenv("UPDATE") == "1" {
		var lines []string
		for _, tr := range transitions {
			for point := range passed[tr.name] {
				lines = append(lines, tr.name+" "+point+"\n")
			}
		}
		slices.Sort(lines)
		require.NoError(t, os.WriteFile(expectedFile, []byte(strings.Join(lines, "")), 0o600))
		return
	}
	for name, points := range expected {
		for _, point := range points {
			require.Contains(t, passed[name], point, "%s does not pass it any more; UPDATE=1 writes %s anew", name, expectedFile)
		}
	}
}

// keepLogs of a case that failed: the next stage takes the folder.
func keepLogs(t *testing.T, s *stage, f fault) {
	t.Helper()
	to := filepath.Join(failedDir, strings.ReplaceAll(f.name(), "/", "_"))
	require.NoError(t, os.RemoveAll(to))
	require.NoError(t, os.CopyFS(to, os.DirFS(s.Dir())))
	t.Logf("logs of %s: %s", f.name(), to)
}

func report(t *testing.T, outcomes []outcome, all int, full bool, took time.Duration) {
	t.Helper()
	count := map[string]int{}
	for _, o := range outcomes {
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
		"not_reached": count["not reached"], "seconds": took.Seconds(), "full": full, "cases": outcomes}, "", " ")
	require.NoError(t, err)
	path := filepath.Join(worlds.Root, "build/fault-matrix/report.json")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
	require.NoError(t, os.WriteFile(path, wire, 0o600))
	fmt.Printf("fault matrix: %d cells, %d played: %d passed, %d failed, %d not reached, %.0f s\n", all, len(outcomes),
		count["passed"], count["failed"], count["not reached"], took.Seconds())
}
