// Package model proves the rules of the gate, the fence and the repair on a Spin model (gate.pml), and that the proof
// fails without a rule.
package model

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
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
	memoryMiB = 3800
	deepest   = 100000 // maximum steps of a run
	patience  = 5 * time.Minute
)

var (
	statesLine    = regexp.MustCompile(`(\d+) states, stored`)
	errorsLine    = regexp.MustCompile(`errors: (\d+)`)
	violatedLine  = regexp.MustCompile(`\.pml:(\d+), Error: assertion violated`)
	unreachedProc = regexp.MustCompile(`^unreached in proctype (\w+)`)
	unreachedLine = regexp.MustCompile(`^\s+\w+\.pml:(\d+), state \d+, "(.*)"`)
)

type scenario struct {
	number int
	name   string
	floor  int
}

// scenarios of gate.pml; floor is about half of the number of states, so that a model without its behaviour fails.
var scenarios = []scenario{
	{0, "two flips", 7000},
	{1, "two flips and a crash", 600_000},
	{2, "false suspicion and two leaders", 1_800_000},
	{3, "join and a crash", 100_000},
	{4, "leave and a crash", 400_000},
	{5, "a world of two parted between two leaders", 800_000},
	{6, "false suspicion around a flip", 3_000_000},
	{7, "a crash around a flip and two leaders", 3_000_000},
	{9, "two flips under one permit", 50_000},
	{10, "two flips under one permit and a crash", 1_200_000},
}

// byNight has runs of minutes and gigabytes (make nightly).
var byNight = append(slices.Clone(scenarios), scenario{8, "three ranks, a crash around a flip and two leaders", 20_000_000})

// removed are rules without which a claim must fail.
var removed = []struct {
	rule     string
	scenario int
	claim    string
	sentence string // of docs/architecture.md, without emphasis: the rule in the document
}{
	{"NO_ALL_WORDS", 6, "FOLLOWS", "A flip happens only if the votes of all members of the epoch are equal."},
	{"NO_ALL_WORDS", 6, "SAME_EPOCH", "A flip happens only if the votes of all members of the epoch are equal."},
	{"NO_LATCH", 0, "NOT_BACK", "A vote latches: its rank cannot withdraw it until that step's result, or a fence."},
	{"NO_ABANDON_BEFORE_ANSWER", 6, "RULED", "When a step's exchange breaks, a rank abandons the step for good before it answers any query."},
	{"NO_FORWARD", 1, "KEPT", "If one saw all votes equal to e+1, all had verified e+1, so all roll forward."},
	{"NO_LEAVERS_FLIP", 4, "GOES_ON", "It also rolls forward if a leaver flipped it: the leaver is then in no layout, but it saw all votes equal."},
	{"NO_CAS", 5, "ONE_WORLD", "Members are removed only by one compare-and-swap in the API server (from-epoch, survivors, target hash), written by the operator."},
	{"NO_CAS", 5, "FEWER", "For one from-epoch the survivors of a later fence are a subset of those of an earlier one."},
	{"NO_DISCARD", 1, "COMPLETE", "A step that lacked a rank's contribution is discarded, never emitted."},
	{"NO_PULLED_KEEPS_WORD", 1, "ONE_ANSWER", "an engine that has told the others \"my KV is pulled\" keeps its vote, because they may have flipped on it."},
	{"NO_ALL_PULLED", 0, "FOLLOWS", "After a second failure all ranks stay in the old layout."},
	{"NO_MEMBERS_BEFORE_JOINERS", 3, "ONE_ANSWER", "They receive an abort last, and only if no member flipped, because they have no latched vote."},
	{"NO_WAIT_ALL_STOPPED", 6, "RULED", "The driver waits until every member of the layout is stopped, is unresponsive or does not answer, then decides."},
	{"NO_WAIT_ALL_STOPPED", 1, "NEVER_STUCK", "The driver waits until every member of the layout is stopped, is unresponsive or does not answer, then decides."},
	{"NO_HOLD", 2, "MENDS", "The driver decides only when each survivor's status reports that it holds or has flipped."},
	{"NO_PERMIT_BY_CAS", 2, "KEPT", "It is a compare-and-swap of `membership` too, from the fence's version."},
	{"NO_CAS", 7, "KEPT", "Members are removed only by one compare-and-swap in the API server (from-epoch, survivors, target hash), written by the operator."},
	{"NO_PERMIT_BY_CAS", 7, "KEPT", "It is a compare-and-swap of `membership` too, from the fence's version."},
	{"NO_BURNED_RUN", 9, "NOT_BACK", "An abort in the middle immediately withdraws the flips that have not begun, and their ids are never reused."},
	{"NO_BURNED_RUN", 10, "NOT_BACK", "An abort in the middle immediately withdraws the flips that have not begun, and their ids are never reused."},
	{"NO_VERIFIED_WORD", 9, "FOLLOWS", "A rank that has not verified does not vote, and without all votes nothing flips."},
	{"NO_VERIFIED_WORD", 10, "FOLLOWS", "A rank that has not verified does not vote, and without all votes nothing flips."},
	{"NO_FIRST_STEP", 9, "RETIRES", "It waits for one step of its ranks in the new epoch."},
	{"NO_FORWARD", 10, "KEPT", "If one saw all votes equal to e+1, all had verified e+1, so all roll forward."},
	{"NO_HOLD", 7, "KEPT", "The driver decides only when each survivor's status reports that it holds or has flipped."},
}

// unreachable lines of gate.pml in all scenarios, with reasons.
var unreachable = map[string]string{
	":: ONE(alive) && old == 7 -> over = true; again = true  /* one of three does not go on */": "one failure leaves enough (GOES_ON); with NO_LEAVERS_FLIP it is reached",
}

// places allows two concurrent checks: each takes a core and up to memoryMiB.
var places = make(chan struct{}, 2)

func take(t *testing.T) {
	places <- struct{}{}
	t.Cleanup(func() { <-places })
}

// run runs a tool in dir; it returns the output, and whether the exit code was 0.
func run(t *testing.T, dir, tool string, args ...string) (string, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	command := exec.CommandContext(ctx, tool, args...)
	command.Dir = dir
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	require.NoErrorf(t, ctx.Err(), "%s %v took longer than %v", tool, args, patience)
	return out.String(), err == nil
}

type result struct {
	states, errors int
	output         string
	dir, file      string
	defines        []string
}

// check checks the model completely: every reachable state is kept, losslessly.
func check(t *testing.T, defines ...string) result {
	t.Helper()
	return checkFile(t, "gate.pml", defines...)
}

func checkFile(t *testing.T, file string, defines ...string) result {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} {
		_, err := exec.LookPath(tool)
		require.NoErrorf(t, err, "%s is missing: e2e/setup/install.sh installs it (Debian packages spin and gcc)", tool)
	}
	r := result{dir: t.TempDir(), file: file, defines: defines}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, file), text, 0o600))
	out, ok := run(t, r.dir, "spin", append(slices.Clone(defines), "-a", file)...)
	require.Truef(t, ok, "spin -a %v: %s", defines, out)
	out, ok = run(t, r.dir, "gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DNOCLAIM", fmt.Sprintf("-DMEMLIM=%d", memoryMiB), "-o", "pan", "pan.c")
	require.Truef(t, ok, "compile the verifier: %s", out)
	r.output, _ = run(t, r.dir, filepath.Join(r.dir, "pan"), "-E", "-w22", "-m"+strconv.Itoa(deepest))
	for _, bad := range []string{"max search depth too small", "out of memory", "memory limit", "Search not completed", "hash-compact", "Bit statespace"} {
		if bad == "Search not completed" && !strings.Contains(r.output, "errors: 0") {
			continue // the search ended at an error, as intended
		}
		require.NotContainsf(t, r.output, bad, "%v: the search was not exhaustive", defines)
	}
	r.states = number(t, statesLine, r.output)
	r.errors = number(t, errorsLine, r.output)
	return r
}

func number(t *testing.T, line *regexp.Regexp, text string) int {
	t.Helper()
	found := line.FindStringSubmatch(text)
	require.NotNilf(t, found, "no %q in what the verifier printed:\n%s", line, text)
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// violated returns the source line of the failed assertion, and the end of the run's trace.
func (r result) violated(t *testing.T) (source, story string) {
	t.Helper()
	out, _ := run(t, r.dir, "spin", append(slices.Clone(r.defines), "-t", "-p", r.file)...)
	found := violatedLine.FindStringSubmatch(out)
	require.NotNilf(t, found, "the trail of %v ends at no assertion:\n%s", r.defines, tail(out))
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	text, err := os.ReadFile(r.file)
	require.NoError(t, err)
	return strings.TrimSpace(strings.Split(string(text), "\n")[n-1]), tail(out)
}

func tail(text string) string { return text[max(0, len(text)-6000):] }

// unreached lists the unreached statements of a run, as "proctype: line". A process that serves forever never ends.
func (r result) unreached() map[string]bool {
	out := map[string]bool{}
	proc := ""
	for line := range strings.SplitSeq(r.output, "\n") {
		if found := unreachedProc.FindStringSubmatch(line); found != nil {
			proc = found[1]
		} else if found := unreachedLine.FindStringSubmatch(line); found != nil && found[2] != "-end-" {
			out[proc+": "+found[1]] = true
		}
	}
	return out
}

func TestModel(t *testing.T) {
	scenarios := scenarios
	if worlds.IsNightly() {
		scenarios = byNight
	}
	dead := make([]map[string]bool, len(scenarios))
	t.Run("scenario", func(t *testing.T) {
		for i, s := range scenarios {
			t.Run(strings.ReplaceAll(s.name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				take(t)
				began := time.Now()
				r := check(t, fmt.Sprintf("-DSCENARIO=%d", s.number))
				if r.errors > 0 {
					source, story := r.violated(t)
					t.Fatalf("scenario %d (%s): %s\n%s", s.number, s.name, source, story)
				}
				require.Greaterf(t, r.states, s.floor, "the model lost behaviour")
				t.Logf("%d states in %.1f s", r.states, time.Since(began).Seconds())
				dead[i] = r.unreached()
			})
		}
	})
	if t.Failed() {
		return
	}
	text, err := os.ReadFile("gate.pml")
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	for statement := range dead[0] {
		if slices.ContainsFunc(dead, func(d map[string]bool) bool { return !d[statement] }) {
			continue
		}
		_, at, _ := strings.Cut(statement, ": ")
		n, err := strconv.Atoi(at)
		require.NoError(t, err)
		source := strings.TrimSpace(lines[n-1])
		if unreachable[source] == "" {
			t.Errorf("no scenario reaches %s: %s", statement, source)
		}
	}
}

func TestRemovedRulesQuoteArchitecture(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	document := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "*", "")), " ")
	for _, r := range removed {
		require.Containsf(t, document, r.sentence, "docs/architecture.md does not state the rule %s in these words", r.rule)
	}
}

func TestRemovedRules(t *testing.T) {
	for _, r := range removed {
		t.Run(fmt.Sprintf("%s/%s/%d", r.rule, r.claim, r.scenario), func(t *testing.T) {
			t.Parallel()
			take(t)
			got := check(t, fmt.Sprintf("-DSCENARIO=%d", r.scenario), "-D"+r.rule, "-DONLY="+r.claim)
			require.Positivef(t, got.errors, "%s holds in scenario %d without the rule %q (%d states)", r.claim, r.scenario, r.sentence, got.states)
			source, _ := got.violated(t)
			require.Truef(t, strings.HasPrefix(source, "CLAIM("+r.claim+","), "another assertion failed: %s", source)
			t.Logf("%s fails after %d states without: %s", r.claim, got.states, r.sentence)
		})
	}
}
