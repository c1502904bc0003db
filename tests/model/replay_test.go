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

	"github.com/stretchr/testify/require"

	"tangram.dev/tests/internal/worlds"
)

// Checks the shipped code against the model: random histories of gate.pml run through the gate and through an agent's
// attempts (testing/replay.cc of each). Half of them always have the same seeds.
var (
	runs = flag.Int("model.runs", 160, "random histories of each scenario")
	seed = flag.Int("model.seed", 0, "seed of the first history of the second half; 0: by SEED")
)

// program is a replay: a folder of agent/, whose testing/replay.cc is compiled with some sources of agent/.
type program struct {
	folder  string
	sources []string
}

var (
	gateReplay    = program{"gate", []string{"gate/gate.cc", "gate/rules.cc", "base/utf8.cc"}}
	attemptReplay = program{"attempt", []string{"attempt/end.cc", "attempt/fence.cc", "attempt/flip.cc", "attempt/machine.cc", "attempt/prepare.cc", "attempt/run.cc", "gate/rules.cc"}}
)

const agentFolder = "../../agent"

// mutant is a change of one rule in the code.
type mutant struct{ name, file, from, to string }

// of returns the changed source.
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

var attemptMutants = []mutant{
	{"who is held flips", "flip.cc", "!attempt_->held && !attempt_->over", "!attempt_->over"},
	{"all words but one are enough", "flip.cc", "attempt_->words.size() == attempt_->plan.pods.size()", "attempt_->words.size() + 1 >= attempt_->plan.pods.size()"},
	{"an engine flips without its word", "flip.cc", "if (gates[event.device].state != GateState::kLatched) {", "if (false) {"},
	{"an engine flips after it gave the step up", "flip.cc", "if (gates[event.device].stopped) {", "if (false) {"},
	{"a flip is not remembered", "flip.cc", "  flipped_.insert(event.attempt);\n", ""},
	{"the permit of a peer is not taken", "flip.cc", "attempt_->phase != Phase::kStaged) {\n    return Done();", "true) {\n    return Done();"},
	{"a word that was given is taken back", "end.cc", "return event.all ? GiveUp() : Then(AskPeers{event.attempt});", "return GiveUp();"},
	{"the outcome is told to who has not stopped", "fence.cc", "if (part.flipped || part.joining || gates[device].stopped || lost.contains(device)) continue;", "if (!lost.contains(device)) continue;"},
	{"a fence leaves a rank armed", "fence.cc", "for (const auto& [device, part] : attempt_->parts) step.marks.push_back(FenceGate{device});\n  return GiveUp(std::move(step), keep);", "return GiveUp(std::move(step), keep);"},
	{"a burned attempt begins again", "prepare.cc", "if (header.attempt <= highest_) {", "if (header.attempt < highest_) {"},
	{"an abort burns only what is under way", "end.cc", "if (run_ && run_->Has(event.header.attempt)) EndRun(\"abort: \" + event.reason, &step);\n", ""},
	{"a run goes on after an abort", "run.cc", "  run_->over = true;\n", ""},
	{"a run permits what is not verified", "flip.cc", "if (attempt_->phase == Phase::kStaged) return OkStatus();", "if (attempt_->phase == Phase::kStaged || attempt_->phase == Phase::kStaging) return OkStatus();"},
	{"a run gives the old places back before its own first step", "end.cc", "gates[device].steps >= 1", "(event.by_run || gates[device].steps >= 1)"},
	{"a rank that stands still walks on", "run.cc", "|| !gates[device].stopped) continue;", "|| true) continue;"},
	{"who steps is repaired", "prepare.cc", "} else if (repair && rank.rank >= 0 && !gates[device].stopped) {", "} else if (false) {"},
}

var fenceMutants = []mutant{
	{"nobody is waited for", "survivors.go", "if len(r.running) > 0 || !evident {", "if !evident {"},
	{"a flip is taken back", "survivors.go", "	forward := s.forward()\n", "	forward := uint64(0)\n"},
	{"who was left out comes back", "survivors.go", "case s.fence != nil && !contains(s.fence.Survivors, id):\n\t\t\twhy[id]", "case false:\n\t\t\twhy[id]"},
	{"a leaver's flip does not count", "truth.go", "if (t.believed[i] || t.record.leftBy(a)) && a.Epoch", "if t.believed[i] && a.Epoch"},
}

// forTheFence matches lines of a leader's view and decisions; operator/internal/driver replays them.
var forTheFence = regexp.MustCompile("^(rank|look|rules) ")

// history returns one random run, in the format of replay.cc.
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

// histories returns the runs of all scenarios, made once.
func histories(t *testing.T) []byte {
	second := *seed
	if second == 0 {
		second = worlds.Seed(t) * 10_000
	}
	made.once.Do(func() {
		parts := make([]string, len(scenarios))
		var wait sync.WaitGroup
		for i, s := range scenarios {
			dir := t.TempDir()
			wait.Go(func() {
				var all strings.Builder
				for n := range *runs {
					from := 1
					if n >= *runs/2 {
						from = second
					}
					all.WriteString(history(t, dir, s.number, from+n))
				}
				parts[i] = all.String()
			})
		}
		wait.Wait()
		made.events = []byte(strings.Join(parts, ""))
	})
	t.Logf("%d histories of each of %d scenarios, from seeds 1 and %d (-model.seed), %d events", *runs, len(scenarios), second, bytes.Count(made.events, []byte("\n")))
	return made.events
}

var made struct {
	once   sync.Once
	events []byte
}

// build compiles the replay with one changed file in a separate folder. Objects of sources that the change cannot
// affect are those of `before` ("": all are compiled). It returns the folder.
func (p program) build(t *testing.T, before, changed, text string) string {
	t.Helper()
	dir := t.TempDir()
	agent, err := filepath.Abs(agentFolder)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "agent", p.folder), 0o700))
	for _, folder := range []string{"base", "gate", "attempt"} {
		if folder != p.folder {
			require.NoError(t, os.Symlink(filepath.Join(agent, folder), filepath.Join(dir, "agent", folder)))
		}
	}
	files, err := os.ReadDir(filepath.Join(agent, p.folder))
	require.NoError(t, err)
	for _, file := range files {
		to := filepath.Join(dir, "agent", p.folder, file.Name())
		if file.Name() == changed {
			require.NoError(t, os.WriteFile(to, []byte(text), 0o600))
		} else {
			require.NoError(t, os.Symlink(filepath.Join(agent, p.folder, file.Name()), to))
		}
	}
	link := []string{"-o", filepath.Join(dir, "replay")}
	for i, source := range append([]string{filepath.Join(p.folder, "testing", "replay.cc")}, p.sources...) {
		object := filepath.Join(before, fmt.Sprintf("%d.o", i))
		if before == "" || strings.HasSuffix(changed, ".h") || source == filepath.Join(p.folder, changed) {
			object = filepath.Join(dir, fmt.Sprintf("%d.o", i))
			out, ok := run(t, dir, "clang++-14", "-std=c++20", "-I"+dir, "-c", "-o", object, filepath.Join(dir, "agent", source))
			require.Truef(t, ok, "compile agent/%s: %s", source, out)
		}
		link = append(link, object)
	}
	out, ok := run(t, dir, "clang++-14", append(link, "-lfmt")...)
	require.Truef(t, ok, "link the replay of agent/%s: %s", p.folder, out)
	return dir
}

func replay(t *testing.T, dir string, events []byte) (string, bool) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(dir, "replay"))
	command.Stdin = bytes.NewReader(events)
	out, err := command.CombinedOutput()
	return string(out), err == nil
}

func TestGateReplaysModel(t *testing.T) { gateReplay.test(t, gateMutants) }

func TestAttemptsReplayModel(t *testing.T) { attemptReplay.test(t, attemptMutants) }

func (p program) test(t *testing.T, mutants []mutant) {
	events := histories(t)
	built := p.build(t, "", "", "")
	out, ok := replay(t, built, events)
	require.True(t, ok, out)
	t.Log(out)
	t.Run("mutant", func(t *testing.T) {
		for _, m := range mutants {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				take(t)
				source := m.of(t, filepath.Join(agentFolder, p.folder))
				out, ok := replay(t, p.build(t, built, m.file, source), events)
				require.Falsef(t, ok, "no history notices: %s", m.name)
				require.Containsf(t, out, "history ", "it ended for another reason")
				t.Log(out)
			})
		}
	})
}

// TestFenceMutants: the model's fence decisions (operator/internal/driver, TestFenceDecisionsMatchModel) detect a changed
// rule.
func TestFenceMutants(t *testing.T) {
	module, err := filepath.Abs("../../operator")
	require.NoError(t, err)
	folder := filepath.Join(module, "internal", "driver")
	for _, m := range fenceMutants {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			changed, overlay := filepath.Join(dir, m.file), filepath.Join(dir, "overlay.json")
			require.NoError(t, os.WriteFile(changed, []byte(m.of(t, folder)), 0o600))
			require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace": {%q: %q}}`, filepath.Join(folder, m.file), changed), 0o600))
			out, ok := run(t, module, "go", "test", "-overlay", overlay, "./internal/driver", "-run", "TestFenceDecisionsMatchModel", "-model.runs=50", "-model.seed=1")
			require.Falsef(t, ok, "no history notices: %s", m.name)
			require.Containsf(t, out, "--- FAIL: TestFenceDecisionsMatchModel/scenario", "it failed for another reason")
		})
	}
}
