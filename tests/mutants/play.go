package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// test is one top-level test of a guard's binary.
type test struct {
	binary, dir, name string
	seconds           float64 // wall time
	busy              float64 // processor time
	reaches           map[int]bool
}

// program builds the tests of a guard with the overlay and lists them.
func program(root, guard, overlay, dir string) ([]*test, error) {
	binary := filepath.Join(dir, strings.ReplaceAll(guard, "/", "_")+".test")
	build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, "./"+guard)
	build.Dir = filepath.Join(root, module)
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go test -c %s: %w\n%s", guard, err, out)
	}
	if _, err := os.Stat(binary); err != nil {
		return nil, nil // it has no tests
	}
	names := exec.Command(binary, "-test.list", "^(Test|Fuzz|Example)")
	names.Dir = filepath.Join(root, module, guard)
	out, err := names.Output()
	if err != nil {
		return nil, fmt.Errorf("tests of %s: %w", guard, err)
	}
	var tests []*test
	for name := range strings.FieldsSeq(string(out)) {
		tests = append(tests, &test{binary: binary, dir: names.Dir, name: name, reaches: map[int]bool{}})
	}
	return tests, nil
}

type outcome int

const (
	survived outcome = iota
	killed
	timedOut
)

// Limits that only an endless mutant reaches. Processor time does not depend on other processes.
const (
	roomKB     = 8 << 20
	leastCPU   = 4
	cpuFactor  = 15
	leastWall  = 100 * time.Second
	wallFactor = 30
)

// run runs tests of one binary with an active mutant.
func run(ctx context.Context, tests []*test, env string) (outcome, string, *os.ProcessState) {
	names, seconds, busy := make([]string, len(tests)), 0.0, 0.0
	for i, t := range tests {
		names[i] = regexp.QuoteMeta(t.name)
		seconds += t.seconds
		busy += t.busy
	}
	cpu := leastCPU + int(cpuFactor*busy)
	ctx, cancel := context.WithTimeout(ctx, leastWall+time.Duration(wallFactor*seconds*float64(time.Second)))
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-c", fmt.Sprintf(`ulimit -v %d -t %d && exec "$@"`, roomKB, cpu), "-", tests[0].binary,
		"-test.short", "-test.failfast", "-test.timeout=0", "-test.run", "^("+strings.Join(names, "|")+")$")
	command.Dir, command.Env = tests[0].dir, append(os.Environ(), env)
	command.WaitDelay = 5 * time.Second
	out, err := command.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return survived, string(out), command.ProcessState
	case ctx.Err() != nil, errors.As(err, &exit) && strings.Contains(string(out), "SIGXCPU"):
		return timedOut, string(out), command.ProcessState
	}
	return killed, string(out), command.ProcessState
}

// survey runs each test alone without a mutant, and records its time and the mutants that it reaches.
func survey(ctx context.Context, t *test, dir string) error {
	reached := filepath.Join(dir, "reached-"+t.name)
	t.seconds, t.busy = 60, 60 // only for the limits
	start := time.Now()
	got, out, spent := run(ctx, []*test{t}, "MUTANTS_REACHED="+reached)
	if got != survived {
		return fmt.Errorf("%s fails although nothing is changed:\n%s", t.name, out)
	}
	t.seconds, t.busy = time.Since(start).Seconds(), (spent.UserTime() + spent.SystemTime()).Seconds()
	text, err := os.ReadFile(reached)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for line := range strings.FieldsSeq(string(text)) {
		id, err := strconv.Atoi(line)
		if err != nil {
			return err
		}
		t.reaches[id] = true
	}
	return err
}

// batches returns the tests that reach a mutant, quick ones first: each batch is of one binary and, except for slow
// tests, short.
func batches(tests []*test, id int) [][]*test {
	var reaching []*test
	for _, t := range tests {
		if t.reaches[id] {
			reaching = append(reaching, t)
		}
	}
	slices.SortStableFunc(reaching, func(a, b *test) int { return int(1000 * (a.seconds - b.seconds)) })
	var out [][]*test
	sum := 0.0
	for _, t := range reaching {
		if n := len(out); n > 0 && out[n-1][0].binary == t.binary && sum+t.seconds < 3 {
			out[n-1] = append(out[n-1], t)
			sum += t.seconds
			continue
		}
		out, sum = append(out, []*test{t}), t.seconds
	}
	return out
}

// judge runs the tests that reach a mutant until one notices it.
func judge(ctx context.Context, tests []*test, m *mutant) outcome {
	for _, batch := range batches(tests, m.id) {
		if got, _, _ := run(ctx, batch, fmt.Sprint("MUTANT=", m.id)); got != survived {
			return got
		}
	}
	return survived
}
