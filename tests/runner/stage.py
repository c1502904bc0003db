"""Runs one stage: a shell command in separate namespaces, whose output goes to a log and to a reader (count.py)."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import subprocess
import threading
import time

from . import count

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOGS = ROOT / "build" / "test"

# A network with only a loopback interface, a /sys that shows it, and processes that end with the stage. So concurrent
# stages share no ports, links, routes or mounts, and cannot download. Cgroups are the machine's. kube-apiserver does
# not start without an address to advertise: hence the address (of RFC 5737's TEST-NET-1) and the route.
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ENTER = """set -e
ip link set lo up
ip address add 192.0.2.1/32 dev lo
ip route add default dev lo
cgroups=$(mktemp -d)
mount --rbind /sys/fs/cgroup $cgroups
mount -t sysfs sysfs /sys
mount --rbind $cgroups /sys/fs/cgroup
umount -l $cgroups
rmdir $cgroups
exec bash -c "$0"
"""


@dataclasses.dataclass(frozen=True)
class Stage:
    name: str
    command: str
    reader: str = "command"  # a key of count.READERS
    code: int = 1  # exit code of the run if this is the first failed stage
    minutes: float = 1  # approximate, to deal stages to shards
    nice: int = 0
    online: bool = False  # it downloads, so it has no namespaces
    alone: bool = False  # it reads clocks: it runs before the lanes, alone
    retry: bool = False  # a failed test may be run once more (retry.py)


@dataclasses.dataclass
class Result:
    stage: Stage
    count: count.Count
    minutes: float
    cpu: float  # processor minutes of all its processes
    code: int


@functools.cache
def has_namespaces():
    """Whether this process can make namespaces: it needs root, and kernel support."""
    return subprocess.run([*NAMESPACES, "bash", "-c", ENTER.replace("$0", "true")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


class Runner:
    """Runs stages, several concurrently; `kill` ends the running ones."""

    def __init__(self, logs=LOGS, env=None, say=print, isolate=True):
        self.logs, self.env, self.say = pathlib.Path(logs), env or dict(os.environ), functools.partial(say, flush=True)
        self.isolate = isolate and has_namespaces()
        self.lock = threading.Lock()
        self.active = {}  # name: (process, reader)
        self.killed = False
        self.logs.mkdir(parents=True, exist_ok=True)

    def run(self, stage):
        junit = self.logs / f"{stage.name}.xml"
        junit.unlink(missing_ok=True)
        reader = count.READERS[stage.reader](stage.name, junit)
        command = stage.command.replace("{junit}", str(junit))
        argv = ["nice", "-n", str(stage.nice)]
        argv += [*NAMESPACES, "bash", "-c", ENTER, command] if self.isolate and not stage.online else ["bash", "-c", command]
        began = time.monotonic()
        with self.lock:
            if self.killed:
                return Result(stage, count.Count(failures=[count.Failure(stage.name, "not begun: out of time", "")]), 0, 0, 1)
            self.say(f"=== {stage.name}")
            process = subprocess.Popen(argv, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            self.active[stage.name] = (process, reader)
        with process.stdout, open(self.logs / f"{stage.name}.log", "w", buffering=1, encoding="utf-8") as log:
            for raw in process.stdout:
                line = raw.decode(errors="replace")
                log.write(line)
                for name in reader.feed(line):
                    self.say(f"FAILED (so far) {stage.name}: {name}")
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        with self.lock:
            del self.active[stage.name]
            killed = self.killed
        found = reader.finish(code)
        if killed and not found.failures:
            found.failures.append(count.Failure(stage.name, "killed: out of time", ""))
        result = Result(stage, found, (time.monotonic() - began) / 60, (used.ru_utime + used.ru_stime) / 60, code)
        self.report(result)
        return result

    def report(self, result):
        c, name = result.count, result.stage.name
        with self.lock:
            for failure in c.failures:
                self.say(f"FAILED {failure}, which printed:\n{failure.output.rstrip()}\n")
            self.say(f"--- {name}: {c.passed} passed, {len(c.failures)} failed, {c.skipped} skipped, {result.minutes:.1f} min, {result.cpu:.1f} of CPU")

    def kill(self, why):
        """Ends all running stages, and reports the tests that were running."""
        with self.lock:
            self.killed = True
            for name, (process, reader) in self.active.items():
                self.say(f"KILLED {name}: {why}; running: {', '.join(reader.running()[:20]) or 'no test'}")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # --kill-child ends all processes of the namespace


def run_lanes(runner, lanes):
    """Runs lanes concurrently, the stages of each one after another; returns all results, in the order of lanes."""
    results = {stage.name: Result(stage, count.Count(failures=[count.Failure(stage.name, "the runner failed", "")]), 0, 0, 1) for lane in lanes for stage in lane}

    def play(lane):
        for stage in lane:
            results[stage.name] = runner.run(stage)

    threads = [threading.Thread(target=play, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(results.values())
