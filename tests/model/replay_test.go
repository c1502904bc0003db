package model

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The gate that ships, tied to the model: random histories of gate.pml go through it (agent/gate/testing/replay.cc). Half of them are
// the same every day.
var (
	runs = flag.Int("model.runs", 160, "random histories of each scenario")
	seed = flag.Int("model.seed", int(time.Now().Unix()/86400)*10000, "seed of the first history of the second half; the default changes by day")
)

const gateFolder = "../../agent/gate"

// mutant is one rule of the code, changed.
type mutant struct{ name, file, from, to string }

// of gives the changed source.
func (m mutant) of(t *testing.T, folder string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(folder, m.file))
	require.NoError(t, err)
	require.Equalf(t, 1, strings.Count(string(source), m.from), "%s has not exactly one %q; write the mutant anew", m.file, m.from)
	return strings.Replace(string(source), m.from, m.to, 1)
}

var gateMutants = []mutant{
	{"an abort withdraws a word that was given", "rules.cc",
		"if (state == GateState::kArmed) return GateState::kIdle;",
		"if (state == GateState::kArmed || state == GateState::kLatched) return GateState::kIdle;"},
	{"one equal word is enough", "rules.cc", "std::all_of(", "std::any_of("},
	{"who stops keeps no word", "rules.h", "return pulled;", "return pulled && false;"},
	{"who stops keeps every word", "rules.h", "return pulled;", "return pulled || true;"},
	{"a word does not latch", "rules.cc", "state == GateState::kLatched) return GateState::kLatched;", "state == GateState::kLatched) return GateState::kArmed;"},
	{"a flip without a word", "rules.cc", "if (state == GateState::kLatched) return GateState::kFlipped;",
		"if (state == GateState::kLatched || state == GateState::kArmed) return GateState::kFlipped;"},
	{"a stopped rank that kept its word does not follow", "rules.cc",
		"if (state == GateState::kArmed || state == GateState::kLatched) return GateState::kFlipped;",
		"if (state == GateState::kArmed) return GateState::kFlipped;"},
	{"a fence leaves a rank armed", "rules.cc", "case GateEvent::kFence:\n      return GateState::kIdle;",
		"case GateEvent::kFence:\n      return state;"},
}

var fenceMutants = []mutant{
	{"nobody is waited for", "survivors.go", "if len(r.running) > 0 || !evident {", "if !evident {"},
	{"a flip is taken back", "survivors.go", "	forward := s.forward()\n", "	forward := uint64(0)\n"},
	{"who was left out comes back", "survivors.go", "case s.fence != nil && !contains(s.fence.Survivors, id):\n\t\t\twhy[id]", "case false:\n\t\t\twhy[id]"},
	{"a leaver's flip does not count", "truth.go", "if (t.believed[i] || t.record.leftBy(a)) && a.Epoch", "if t.believed[i] && a.Epoch"},
}

// forTheFence are lines of what a leader sees and rules; operator/internal/driver replays them.
var forTheFence = regexp.MustCompile("^(rank|look|rules) ")

// history of one random run, as replay.cc reads it.
func history(t *testing.T, dir string, scenario, seed int) string {
	t.Helper()
	text, err := os.ReadFile("gate.pml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gate.pml"), text, 0o600))
	out, ok := run(t, dir, "spin", "-DTRACE", fmt.Sprintf("-DSCENARIO=%d", scenario), fmt.Sprintf("-n%d", seed), "-u700", "-T", "gate.pml")
	require.Truef(t, ok, "spin: %s", out)
	var events strings.Builder
	events.WriteString("new 10\n")
	for line := range strings.SplitSeq(out, "\n") {
		if event, told := strings.CutPrefix(line, "@"); told && !forTheFence.MatchString(event) {
			events.WriteString(event + "\n")
		}
	}
	return events.String()
}

// histories of all scenarios.
func histories(t *testing.T) []byte {
	parts := make([]string, len(scenarios))
	var wait sync.WaitGroup
	for i, s := range scenarios {
		dir := t.TempDir()
		wait.Go(func() {
			var all strings.Builder
			for n := range *runs {
				from := 1
				if n >= *runs/2 {
					from = *seed
				}
				all.WriteString(history(t, dir, s.number, from+n))
			}
			parts[i] = all.String()
		})
	}
	wait.Wait()
	return []byte(strings.Join(parts, ""))
}

// replayer compiles replay.cc with the gate's sources, of which one may be changed.
func replayer(t *testing.T, changed, text string) string {
	t.Helper()
	dir := t.TempDir()
	folder := filepath.Join(dir, "agent", "gate")
	require.NoError(t, os.MkdirAll(folder, 0o700))
	base, err := filepath.Abs("../../agent/base")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(base, filepath.Join(dir, "agent", "base")))
	for _, name := range []string{"gate.h", "gate.cc", "gate_page.h", "rules.h", "rules.cc"} {
		source, err := os.ReadFile(filepath.Join(gateFolder, name))
		require.NoError(t, err)
		if name == changed {
			source = []byte(text)
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), source, 0o600))
	}
	main, err := filepath.Abs(filepath.Join(gateFolder, "testing", "replay.cc"))
	require.NoError(t, err)
	binary := filepath.Join(dir, "replay")
	out, ok := run(t, dir, "g++", "-std=c++20", "-I"+dir, "-o", binary, main, filepath.Join(folder, "gate.cc"), filepath.Join(folder, "rules.cc"), "-lfmt")
	require.Truef(t, ok, "compile agent/gate/testing/replay.cc: %s", out)
	return binary
}

func replay(t *testing.T, binary string, events []byte) (string, bool) {
	t.Helper()
	command := exec.CommandContext(t.Context(), binary)
	command.Stdin = bytes.NewReader(events)
	out, err := command.CombinedOutput()
	return string(out), err == nil
}

func TestTheGateReplaysTheModel(t *testing.T) {
	events := histories(t)
	t.Logf("%d histories of each of %d scenarios, from seeds 1 and %d (-model.seed), %d events", *runs, len(scenarios), *seed, bytes.Count(events, []byte("\n")))
	out, ok := replay(t, replayer(t, "", ""), events)
	require.True(t, ok, out)
	t.Log(out)
	t.Run("mutant", func(t *testing.T) {
		for _, m := range gateMutants {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				take(t)
				source := m.of(t, gateFolder)
				out, ok := replay(t, replayer(t, m.file, source), events)
				require.Falsef(t, ok, "no history notices: %s", m.name)
				t.Log(out)
			})
		}
	})
}

// TestMutantsOfTheFence: the rulings of the model (operator/internal/driver, TestRulingsOfTheModel) notice a changed one.
func TestMutantsOfTheFence(t *testing.T) {
	module, err := filepath.Abs("../../operator")
	require.NoError(t, err)
	folder := filepath.Join(module, "internal", "driver")
	for _, m := range fenceMutants {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			changed, overlay := filepath.Join(dir, m.file), filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(changed, []byte(m.of(t, folder)), 0o600))
			require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace": {%q: %q}}`, filepath.Join(folder, m.file), changed), 0o600))
			out, ok := run(t, module, "go", "test", "-overlay", overlay, "./internal/driver", "-run", "TestRulingsOfTheModel", "-model.runs=50", "-model.seed=1")
			require.Falsef(t, ok, "no history notices: %s", m.name)
			require.Containsf(t, out, "--- FAIL: TestRulingsOfTheModel/scenario", "it failed for another reason")
		})
	}
}
