"""Finds the tests that reach each mutant, and whether one of them notices it."""

import dataclasses
import os
import pathlib
import resource
import signal
import subprocess
import threading
import time

from cxx_build import BUILD, ROOT, WORK, histories

# Limits that only an endless mutant reaches. Processor time does not depend on other processes.
ROOM = 2 << 30
LEAST_CPU, CPU_FACTOR = 4, 15
LEAST_WALL, WALL_FACTOR = 100, 30
BATCH_S = 2.0  # tests that run in one process, except slower single tests


@dataclasses.dataclass
class Test:
    """One test of a folder, or the replay of the model's histories."""
    folder: str
    name: str
    program: pathlib.Path
    stdin: pathlib.Path | None = None
    seconds: float = 20.0  # wall time
    busy: float = 20.0  # processor time
    reaches: set = dataclasses.field(default_factory=set)
    senseless: set = dataclasses.field(default_factory=set)


def tests_of(folder):
    program = BUILD / "agent" / folder / f"{folder}_test"
    out, suite = [], ""
    for line in subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.endswith(".") and not line.startswith(" "):
            suite = line
        elif line.startswith("  "):
            out.append(Test(folder, suite + line.split()[0], program))
    if folder == "gate":
        out.append(Test(folder, "replay", WORK / "replay", histories()))
    return out


def run(tests, **variables):
    """Runs tests of one program; returns 0 (they pass), another exit code, or None (endless); and the processor
    seconds."""
    cpu, wall = LEAST_CPU + int(CPU_FACTOR * sum(t.busy for t in tests)), LEAST_WALL + WALL_FACTOR * sum(t.seconds for t in tests)

    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    first = tests[0]
    command = [first.program]
    if first.stdin is None:
        command += ["--gtest_fail_fast", "--gtest_brief=1", "--gtest_filter=" + ":".join(t.name for t in tests)]
    with open(first.stdin or os.devnull, "rb") as stdin, \
            subprocess.Popen(command, cwd=ROOT, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=bound,
                             env={**os.environ, **variables}) as child:
        timer = threading.Timer(wall, child.kill)
        timer.start()
        _, status, used = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
    endless = child.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    return None if endless else child.returncode, used.ru_utime + used.ru_stime


def survey(test):
    """Runs a test alone without a mutant, and records its time and the mutants that it reaches."""
    log = WORK / f"reached-{test.folder}-{test.name.replace('/', '-')}"
    log.unlink(missing_ok=True)
    start = time.monotonic()
    code, test.busy = run([test], MUTANTS_REACHED=str(log))
    test.seconds = time.monotonic() - start
    if code != 0:
        raise RuntimeError(f"{test.name} of agent/{test.folder} fails although nothing is changed")
    for line in log.read_text().split() if log.exists() else []:
        (test.senseless if line.startswith("!") else test.reaches).add(int(line.lstrip("!")))


def batches(tests, number):
    """The tests that reach a mutant, quick ones first: each batch is of one program and, except for slow tests, short.
    """
    out, room = [], 0.0
    for test in sorted((t for t in tests if number in t.reaches), key=lambda t: t.busy):
        if out and out[-1][0].program == test.program and test.seconds <= room:
            out[-1].append(test)
        else:
            out.append([test])
            room = BATCH_S
        room -= test.seconds
    return out


def judge(tests, number):
    """Runs the tests that reach a mutant until one notices it; other tests cannot notice."""
    if any(number in t.senseless for t in tests):
        return "senseless"
    reached = False
    for batch in batches(tests, number):
        reached = True
        code, _ = run(batch, MUTANT=str(number))
        if code != 0:
            return "timed out" if code is None else "killed"
    return "survived" if reached else "not reached"
