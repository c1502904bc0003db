"""The runner itself: a test that fails, hangs, prints nothing or is flaky is reported with its name and output, and its
exit code."""

import datetime
import doctest
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import stages  # noqa: E402
from runner import count, plan, retry  # noqa: E402
from runner.stage import Result, Runner, Stage, run_lanes  # noqa: E402

GO_TESTS = """package x
import ("os"; "testing"; "time")
func TestPasses(t *testing.T) {}
func TestSkips(t *testing.T) { t.Skip("no reason") }
func TestFails(t *testing.T) {
	t.Log("a line of the parent")
	t.Run("good", func(t *testing.T) {})
	t.Run("bad", func(t *testing.T) { t.Error("the bad subtest's own line") })
}
func TestFlaky(t *testing.T) {
	if _, err := os.Stat(os.Getenv("ONCE")); err != nil {
		if err := os.WriteFile(os.Getenv("ONCE"), nil, 0o600); err != nil { t.Fatal(err) }
		t.Fatal("the first time")
	}
}
func TestPanics(t *testing.T) { panic("a panic's own line") }
func TestHangs(t *testing.T) { time.Sleep(time.Hour) }
"""
CTESTS = """cmake_minimum_required(VERSION 3.20)
project(x NONE)
enable_testing()
add_test(NAME Good.Passes COMMAND true)
add_test(NAME "Bad.Fails/ucx  # GetParam() = (0, 4-byte object <03-00>)" COMMAND sh -c "echo its own line $<SEMICOLON> exit 1")
"""


class Folder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (cls.dir / "go.mod").write_text("module tangram.dev/x\n\ngo 1.26.0\n")
        (cls.dir / "x_test.go").write_text(GO_TESTS)
        broken = cls.dir / "broken"
        broken.mkdir()
        (broken / "broken_test.go").write_text("package broken\nfunc oops( {\n")

    def setUp(self):
        self.said = []
        self.runner = Runner(logs=self.dir / self.id(), say=lambda text, **_: self.said.append(text), isolate=False)

    def go(self, pattern, **fields):
        return Stage("go", f"cd {self.dir} && ONCE={self.dir}/{self.id()}.once go test -json -count=1 -run '{pattern}' .", "go", plan.UNIT, **fields)

    def run_go(self, pattern):
        return self.runner.run(self.go(pattern)).count


class GoTests(Folder):
    def test_a_failed_subtest_is_reported_with_its_own_output_and_not_its_parent(self):
        found = self.run_go("^(TestPasses|TestSkips|TestFails)$")
        self.assertEqual((found.passed, found.skipped, [f.name for f in found.failures]), (2, 1, ["tangram.dev/x TestFails/bad"]))
        self.assertIn("the bad subtest's own line", found.failures[0].output)
        self.assertIn("a line of the parent", found.failures[0].output)
        self.assertIn("FAILED (so far) go: tangram.dev/x TestFails/bad", self.said)
        self.assertTrue(any("the bad subtest's own line" in text for text in self.said))

    def test_a_panic_is_reported_under_its_test(self):
        found = self.run_go("^TestPanics$")
        self.assertEqual([f.name for f in found.failures], ["tangram.dev/x TestPanics"])
        self.assertIn("a panic's own line", found.failures[0].output)

    def test_a_compile_error_is_reported_with_the_compilers_message(self):
        found = self.runner.run(Stage("go", f"cd {self.dir} && go test -json ./broken", "go", plan.UNIT)).count
        self.assertEqual(len(found.failures), 1)
        self.assertIn("tangram.dev/x/broken", found.failures[0].name)
        self.assertIn("broken_test.go:2", found.failures[0].output)

    def test_a_hang_is_killed_and_named(self):
        watchdog = threading.Thread(target=self.kill_once_it_runs, args=("tangram.dev/x TestHangs",))
        watchdog.start()
        results = run_lanes(self.runner, [[self.go("^TestHangs$"), Stage("after", "true")]])
        watchdog.join()
        self.assertEqual([f.name for f in results[0].count.failures], ["tangram.dev/x TestHangs"])
        self.assertIn("KILLED go: time is over; running: tangram.dev/x TestHangs", self.said)
        self.assertEqual(results[1].count.failures[0].name, "not begun: out of time")
        self.assertEqual(stages.exit_code(results, False, self.runner.killed), plan.TIME)

    def test_a_signal_ends_the_stages_that_run(self):
        before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
        stages.end_on_signals(self.runner)
        interrupt = threading.Thread(target=self.once_it_runs, args=("tangram.dev/x TestHangs", lambda: os.kill(os.getpid(), signal.SIGTERM)))
        interrupt.start()
        results = run_lanes(self.runner, [[self.go("^TestHangs$")]])
        interrupt.join()
        for number, handler in before:
            signal.signal(number, handler)
        self.assertEqual([f.name for f in results[0].count.failures], ["tangram.dev/x TestHangs"])
        self.assertIn("KILLED go: SIGTERM; running: tangram.dev/x TestHangs", self.said)

    def kill_once_it_runs(self, test):
        self.once_it_runs(test, lambda: self.runner.kill("time is over"))

    def once_it_runs(self, test, do):
        while not any(test in reader.running() for _, reader in list(self.runner.active.values())):
            time.sleep(0.05)
        do()


class Retries(Folder):
    def again(self, failure, stage):
        return Stage("go-again", self.go("^" + failure.name.split()[1].split("/")[0] + "$").command, "go")

    def run_twice(self, pattern):
        results = [self.runner.run(self.go(pattern, retry=True))]
        with unittest.mock.patch.object(retry, "alone", self.again):
            return results, retry.run_again(self.runner, results)

    def test_a_flaky_test_passes_and_is_named_with_its_first_output(self):
        results, flaky = self.run_twice("^(TestPasses|TestFlaky)$")
        self.assertEqual((results[0].count.passed, results[0].count.failures), (2, []))
        self.assertEqual([str(f) for f in flaky], ["go: tangram.dev/x TestFlaky"])
        kept = list((self.runner.logs / "flaky").iterdir())
        self.assertIn("the first time", kept[0].read_text())
        self.assertEqual(retry.judge(flaky, [], datetime.date(2026, 1, 1)), (["NEW FLAKY go: tangram.dev/x TestFlaky (1 of 2 passed)"], False))

    def test_a_test_that_fails_twice_stays_failed(self):
        results, flaky = self.run_twice("^TestFails$")
        self.assertEqual((len(results[0].count.failures), flaky), (1, []))

    def test_a_panic_is_never_run_again(self):
        _, flaky = self.run_twice("^TestPanics$")
        self.assertEqual(flaky, [])
        self.assertIn("go: tangram.dev/x TestPanics is not run again", self.said)

    def test_four_failures_are_not_run_again(self):
        four = count.Count(failures=[count.Failure("go", f"p Test{i}", "") for i in range(4)])
        result = Result(self.go("x", retry=True), four, minutes=0, cpu=0, code=1)
        self.assertEqual(retry.run_again(self.runner, [result]), [])
        self.assertFalse(any("again" in text for text in self.said))


class CTests(Folder):
    def test_a_failed_test_is_reported_with_its_own_output(self):
        (self.dir / "CMakeLists.txt").write_text(CTESTS)
        subprocess.run(["cmake", "-S", self.dir, "-B", self.dir / "b"], check=True, stdout=subprocess.DEVNULL)
        found = self.runner.run(Stage("c++", f"ctest --test-dir {self.dir}/b --output-on-failure --output-junit {{junit}}", "ctest", plan.UNIT)).count
        self.assertEqual((found.passed, [f.name for f in found.failures]), (1, ["Bad.Fails/ucx"]))
        self.assertEqual(found.failures[0].output, "its own line")
        self.assertIn("FAILED (so far) c++: Bad.Fails/ucx", self.said)

    def test_a_stage_that_never_gets_to_ctest_fails_with_its_last_line(self):
        found = self.runner.run(Stage("asan", "echo no such tree; exit 3", "ctest", plan.CHECK)).count
        self.assertEqual([f.name for f in found.failures], ["no such tree"])


class Commands(Folder):
    def test_a_command_is_one_test_and_its_last_line_its_name(self):
        found = self.runner.run(Stage("lint", "echo a.go:1: wrong; exit 1", code=plan.LINT)).count
        self.assertEqual([str(f) for f in found.failures], ["lint: a.go:1: wrong"])

    def test_a_command_that_prints_nothing_fails_with_its_exit_code(self):
        self.assertEqual(self.runner.run(Stage("lint", "exit 7")).count.failures[0].name, "exit code 7")

    def test_a_compilers_error_names_a_failed_build(self):
        found = self.runner.run(Stage("build", "echo 'a.cc:1:2: error: expected expression'; echo 'make: *** [cxx] Error 1'; exit 2")).count
        self.assertEqual(found.failures[0].name, "a.cc:1:2: error: expected expression")

    def test_missed_goals_name_a_failed_bench(self):
        found = self.runner.run(Stage("figures", "echo 'kv bytes 2 at most 1 MISSED'; echo done; exit 1")).count
        self.assertEqual(found.failures[0].name, "kv bytes 2 at most 1 MISSED")

    def test_stages_have_a_network_of_their_own(self):
        runner = Runner(logs=self.dir / "isolated", say=lambda *_, **__: None)
        if not runner.isolate:
            self.skipTest("this machine gives no namespaces")
        found = runner.run(Stage("x", "test \"$(ls /sys/class/net)\" = lo && test -e /sys/fs/cgroup/cgroup.procs -o -d /sys/fs/cgroup/unified"))
        self.assertEqual(found.count.failures, [])


class Summary(Folder):
    def test_the_last_lines_name_every_failure_and_the_last_one_the_totals(self):
        good = self.runner.run(Stage("good", "true", code=plan.UNIT))
        bad = self.runner.run(Stage("lint", "echo why; echo a.go:1: wrong; exit 1", code=plan.LINT))
        lines = []
        with unittest.mock.patch.object(stages, "LOGS", self.dir):
            stages.summarize([good, bad], ["FLAKY x"], time.monotonic(), lines.append)
        self.assertEqual(lines[-3:], ["FLAKY x", "FAILED lint: a.go:1: wrong", "1 passed, 1 failed, 0 skipped"])
        self.assertIn("why\na.go:1: wrong", lines[-4])
        self.assertIn("FAILED lint: a.go:1: wrong\nwhy", (self.dir / "failures.txt").read_text())
        self.assertEqual(stages.exit_code([good, bad], False, False), plan.LINT)
        self.assertEqual(stages.exit_code([good], True, False), plan.FLAKY)
        self.assertEqual(stages.exit_code([good], False, False), 0)

    def test_nothing_runs_without_a_build(self):
        results = stages.run(self.runner, [Stage("build", "exit 1", code=plan.BUILD)], [[Stage("go", "true")]])
        self.assertEqual([r.stage.name for r in results], ["build"])
        self.assertEqual(stages.exit_code(results, False, False), plan.BUILD)


def load_tests(_loader, tests, _ignore):
    for module in (count, plan, retry, stages):
        tests.addTests(doctest.DocTestSuite(module))
    return tests


if __name__ == "__main__":
    unittest.main()
