"""Reads a stage's output while it runs: which tests run, passed and failed, and each failed test's own output."""

import dataclasses
import json
import pathlib
import re
import xml.etree.ElementTree as ET

MAX_LINES = 300  # of one failed test


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failed test; the output is its own, not its stage's."""

    stage: str
    name: str
    output: str

    def __str__(self):
        return f"{self.stage}: {self.name}"


@dataclasses.dataclass
class Count:
    passed: int = 0
    skipped: int = 0
    failures: list = dataclasses.field(default_factory=list)


def clip(lines, limit=MAX_LINES):
    """Joins lines; of more than `limit` the first third and the last two thirds.

    >>> clip(["1", "2", "3", "4", "5", "6", "7"], 3)
    '1\\n... 4 lines left out ...\\n6\\n7'
    """
    lines = [line.rstrip("\n") for line in lines]
    if len(lines) > limit:
        head = limit // 3
        lines = lines[:head] + [f"... {len(lines) - limit} lines left out ..."] + lines[len(lines) - (limit - head):]
    return "\n".join(lines)


class CommandReader:
    """A command that is one test."""

    def __init__(self, stage, _junit=None):
        self.stage, self.lines = stage, []

    def feed(self, line):
        """Takes a line; returns the names of tests that failed with it."""
        self.lines = (self.lines + [line])[-10 * MAX_LINES:]
        return []

    def running(self):
        return [self.stage]

    def finish(self, code):
        if code == 0:
            return Count(passed=1)
        said = [line.strip() for line in self.lines if line.strip()]
        missed = [line for line in said if line.endswith("MISSED")]  # missed goals of benches
        errors = [line for line in said if " error: " in line]  # of a compiler: make's later output tells less
        name = "; ".join(missed or errors[:1] or said[-1:] or [f"exit code {code}"])[:200]
        return Count(failures=[Failure(self.stage, name, clip(self.lines))])


class GoReader:
    """`go test -json`, of one or several modules."""

    def __init__(self, stage, _junit=None):
        self.stage = stage
        self.output, self.outcomes, self.begun, self.other = {}, {}, set(), []
        self.ended_packages = {}

    def feed(self, line):
        try:
            event = json.loads(line)
            key, action = (event["Package"], event.get("Test", "")), event["Action"]
        except (ValueError, KeyError, TypeError):
            if '"Action":"build-' in line:
                line = json.loads(line).get("Output", "")
            self.other.append(line)  # a compiler's message
            return []
        if action == "run":
            self.begun.add(key)
        elif action == "output":
            self.output.setdefault(key, []).append(event["Output"])
        elif action in ("pass", "fail", "skip"):
            if key[1]:
                self.outcomes[key] = action
            else:
                self.ended_packages[key[0]] = action
            if action == "fail" and not any(k != key and k[0] == key[0] and k[1].startswith(key[1] + "/") and o == "fail" for k, o in self.outcomes.items()):
                if key[1] or not self._failed_in(key[0]):
                    return [self._name(key)]
        return []

    def running(self):
        return [self._name(key) for key in sorted(self.begun - self.outcomes.keys()) if key[0] not in self.ended_packages]

    def _failed_in(self, package):
        return any(k[0] == package and outcome == "fail" for k, outcome in self.outcomes.items())

    @staticmethod
    def _name(key):
        return " ".join(key).strip()

    def _own_output(self, key):
        """A test's output; then its parents', which contains the output of processes that serve all their subtests."""
        lines = list(self.output.get(key, []))
        package, test = key
        while "/" in test:
            test = test.rpartition("/")[0]
            lines += self.output.get((package, test), [])
        return clip(lines)

    def finish(self, code):
        count = Count()
        parents, blamed = set(), set()
        for package in {p for p, o in self.ended_packages.items() if o == "fail"} | ({p for p, _ in self.begun} - self.ended_packages.keys()):
            for key in self.begun:
                if key[0] == package and key not in self.outcomes:  # a panic, a timeout, or a kill
                    self.outcomes[key] = "fail"
        for (package, test), outcome in self.outcomes.items():
            while "/" in test:
                test = test.rpartition("/")[0]
                parents.add((package, test))
                if outcome == "fail":
                    blamed.add((package, test))
        for key, outcome in self.outcomes.items():
            if key in parents and (outcome != "fail" or key in blamed):
                continue  # only its subtests count
            if outcome == "pass":
                count.passed += 1
            elif outcome == "skip":
                count.skipped += 1
            else:
                count.failures.append(Failure(self.stage, self._name(key), self._own_output(key) + self._package_output(key[0])))
        for package, outcome in self.ended_packages.items():
            if outcome == "fail" and not self._failed_in(package):
                count.failures.append(Failure(self.stage, f"{package} (the package)", clip(self.output.get((package, ""), []) + self.other)))
        if code != 0 and not count.failures:
            count.failures.append(Failure(self.stage, next((line.strip() for line in self.other if line.strip()), f"exit code {code}")[:200], clip(self.other)))
        return count

    def _package_output(self, package):
        """The package's output of a panic or a race that belongs to no test."""
        said = "".join(self.output.get((package, ""), []))
        return "\n" + clip(said.splitlines()) if re.search(r"panic:|DATA RACE|timed out", said) else ""


class CTestReader:
    """ctest; failures are read from its JUnit file, running tests from its lines."""

    # A test with parameters is listed as "Suite.Name/1  # GetParam() = ...".
    PARAMETERS = re.compile(r"\s+# (GetParam|TypeParam).*")
    START = re.compile(r"^\s*Start\s+(\d+): (.+?)\s*$")
    END = re.compile(r"^\s*\d+/\d+ Test\s+#(\d+): (.+?) \.*\s*(Passed|\*\*\*.*?|Not Run.*?)\s+[\d.]+ sec\s*$")

    def __init__(self, stage, junit):
        self.stage, self.junit = stage, pathlib.Path(junit)
        self.begun, self.passed, self.failed, self.lines = {}, 0, [], []

    def feed(self, line):
        self.lines = (self.lines + [line])[-10 * MAX_LINES:]
        if found := self.START.match(line):
            self.begun[found[1]] = self.PARAMETERS.sub("", found[2])
        elif found := self.END.match(line):
            self.begun.pop(found[1], None)
            if found[3] == "Passed":
                self.passed += 1
            elif "Skipped" not in found[3]:
                self.failed.append(self.PARAMETERS.sub("", found[2]))
                return self.failed[-1:]
        return []

    def running(self):
        return list(self.begun.values())

    def finish(self, code):
        count = Count()
        if self.junit.exists():
            for case in ET.parse(self.junit).getroot().iter("testcase"):
                if case.get("status") == "disabled":
                    continue
                if case.find("failure") is not None:
                    count.failures.append(Failure(self.stage, self.PARAMETERS.sub("", case.get("name")), clip((case.findtext("system-out") or "").splitlines())))
                elif case.find("skipped") is not None:
                    count.skipped += 1
                else:
                    count.passed += 1
        else:  # ctest was killed
            count.passed = self.passed
            count.failures = [Failure(self.stage, name, clip(self.lines)) for name in self.failed + self.running()]
        if code != 0 and not count.failures:
            count.failures.append(Failure(self.stage, next((line.strip() for line in reversed(self.lines) if line.strip()), f"exit code {code}")[:200], clip(self.lines)))
        return count


READERS = {"command": CommandReader, "go": GoReader, "ctest": CTestReader}
