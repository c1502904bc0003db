#!/usr/bin/env python3
"""Runs every stage of `make test`, prints minutes per stage, and sums up all tests.

A stage is a command and a way to count what it ran: `junit` (ctest's XML), `gojson`
(go test -json) or `exit` (the command is one test). Every stage runs even if an
earlier one failed, except that nothing can run without `setup` and `build`. At the end
stands what failed, a line each, then minutes; the last line is `N passed, N failed,
N skipped`. Exit code 1 if anything failed.

Stages from `go` to `fuzz` run in two lanes side by side, as they mostly wait for processes. Trees that only one stage needs are built,
and sources are linted, at low priority beside both. `bench`, which reads clocks, has the machine to itself.

What is heavy is sampled by day: programs under sanitizers (one of the two a day) and Go's race detector, fuzz targets, cells of the fault matrix,
the longest cases of `walk`, benches of vLLM. The date is printed, `DATE=YYYY-MM-DD` plays it again, and within a week everything has its turn. `NIGHTLY=1` (`make nightly`) plays all at once.

    tests/stages.py [--only NAME ...] [--list]
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET

from by_day import DATE, NIGHTLY, turn

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test"
MOST_BLAMED = 40  # lines at the end
AGAIN = {"asan", "tsan"}  # they play tests of c++
REPORT = threading.Lock()  # one stage at a time says how it went


def ctest(folder, without="^$"):
    return f"ctest --test-dir build/{folder} -j2 -E '{without}' --output-on-failure --output-junit {{junit}}"


# What a week looks for with sanitizers and fuzzers, a turn a day. `asan`, `tsan`: C++ programs whose tests run once more, in groups that share
# libraries; gRPC and protobuf come from Debian uninstrumented, so TSan gets the parts that have threads of their own. `fuzz`: libFuzzer
# targets, from ASan's tree. `race`: packages with goroutines, by module, for Go's detector; controller and e2e compile Kubernetes once more.
WEEK = (
    {"asan": "base_test net_grpc_test layout_test memory_test store_test dispatch_core_test dispatch_test", "fuzz": "manifest_fuzz safetensors_fuzz"},
    {"tsan": "store_test transition_test wire_processes_test",
     "race": {"operator": "./internal/agentclient ./internal/gateway ./internal/keeper ./internal/pki ./internal/readings ./internal/store"}},
    {"asan": "transition_test kv_test kernels_test gpu_check_test device_test loader_test wire_processes_test", "fuzz": "resume_fuzz frame_fuzz"},
    {"tsan": "engine_rows_test engine_mesh_test engine_world_test engine_paced_test dispatch_test",
     "race": {"operator": "./internal/controller ./internal/kubestore ./cmd/...", "e2e": "./..."}},
    {"asan": "client_test server_test", "fuzz": "config_fuzz data_port_fuzz"},
    {"tsan": "server_test", "race": {"operator": "./internal/driver/... ./internal/world"}},
    {"asan": "model_kernels_test engine_memory_test engine_pace_test engine_scheduler_test engine_mesh_test engine_rows_test engine_messages_test engine_world_test engine_latent_test engine_paced_test engine_abi_test engine_open_test",
     "fuzz": "engine_messages_fuzz mesh_fuzz dispatch_fuzz block_manifest_fuzz block_news_fuzz"},
)
ALWAYS = "gate_test mover_test net_test"  # those that read what strangers send: whichever sanitizer has its turn
TODAY = turn(WEEK, DATE, NIGHTLY)
# A tree where only some tests were built knows the others as <name>_NOT_BUILT.
PARTIAL = "NOT_BUILT|(client|dispatch)_abi_test"


def today(kind):
    """What of a kind has its turn today, as words for a command.

    >>> declared = set(re.findall(r"tangram_fuzz\((\w+)", "".join(path.read_text() for path in ROOT.glob("[ae]*/**/CMakeLists.txt"))))
    >>> declared ^ set(" ".join(part.get("fuzz", "") for part in WEEK).split())  # every fuzz target has a turn
    set()
    """
    return " ".join(part[kind] for part in TODAY if kind in part)


# -vet=off: the linters have looked already. The compiler takes a fifth less processor time if it collects garbage less often (GOGC); what is tested
# collects it as it always does.
def gotest(modules, args, env=""):
    return f"for m in {modules}; do (cd $m && GOGC=400 {env} go test -json -exec 'env -u GOGC' {args}) || rc=1; done; "


def go_tests():
    """All tests of Go that need neither worlds of processes nor a cluster; each package once, those whose turn it is under the race detector."""
    races, command = [part["race"] for part in TODAY if "race" in part], ""
    for module in ("api", "operator", "e2e"):
        raced = " ".join(race[module] for race in races if module in race)
        if raced:  # TestSimulation takes its time from the clock: without the detector it plays more
            command += gotest(module, f"-race -vet=off -timeout 20m -skip '^TestSimulation$' {raced}", "CGO_ENABLED=1")
        if raced != "./...":
            command += gotest(module, "-vet=off -timeout 20m " + (f'$(go list ./... | grep -vxF "$(go list {raced})")' if raced else "./..."))
    if any("driver" in race["operator"] for race in races):
        command += gotest("operator", "-vet=off -run '^TestSimulation$' ./internal/driver")
    return command + gotest("e2e/cluster", "-vet=off $(go list ./... | grep -v /clustertest)")


STAGES = [
    # name, kind, command
    ("setup", "exit", "WITH_LINT=1 WITH_CLUSTER=1 e2e/setup/install.sh"),
    ("build", "exit", "make -s cxx go model && ninja -C build/cxx"),
    ("c++", "junit", ctest("cxx")),
    ("go", "gojson", go_tests() + "exit ${rc:-0}"),
    ("api", "gojson", gotest("tests", "-vet=off -timeout 20m ./api/... ./chart/...") + "exit ${rc:-0}"),
    ("walk", "gojson", gotest("tests", "-vet=off -timeout 1h -skip '^TestVllm' ./walk/...") + "exit ${rc:-0}"),
    ("vllm-package", "exit", "make -s vllm-test"),
    # its worlds one after another
    ("vllm", "gojson", "make -s vllm-setup >&2 && " + gotest("tests", f"-vet=off -p 1 -timeout {'3h' if NIGHTLY else '30m'} -run '^(TestVllm|TestFaultsOfVLLM)' ./walk/... ./faults/...") + "exit ${rc:-0}"),
    ("model", "gojson", gotest("tests", "-vet=off -timeout 20m ./internal/... ./model/... ./mutants/...") + "exit ${rc:-0}"),
    ("faults", "gojson", gotest("tests", f"-vet=off -timeout {'3h' if NIGHTLY else '20m'} -skip '^TestFaultsOfVLLM' ./faults/...") + "exit ${rc:-0}"),
    ("demo", "exit", "build/bin/tangram-demo local --seed 1 --ranks 4 --out build/demo-local"),
    # one after the other: each wants the machine's one cluster
    ("cluster", "gojson", gotest("e2e/cluster", "-vet=off -timeout 20m ./clustertest/...")
     + gotest("tests", "-vet=off -timeout 30m ./cluster/...") + "exit ${rc:-0}"),
    *([("asan", "junit", ctest("asan", PARTIAL))] if today("asan") else []),
    *([("tsan", "junit", "TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp " + ctest("tsan", PARTIAL))] if today("tsan") else []),
    ("fuzz", "exit", f"tests/fuzz.sh {120 if NIGHTLY else 20} {today('fuzz')}"),
    ("lint", "exit", "tail -1 build/test/lint.build.log"),  # the whole of it is done beside the others
    *([("simulation", "exit", "make -s simulate-agents SEED=$(($(date -d \"$DATE\" +%s) * 100)) COUNT=1000000")] if NIGHTLY else []),
    *([("mutants", "exit", "make -s mutants")] if NIGHTLY else []),
    ("figures", "exit", "(cd tests && python3 -m unittest bench_test) && (cd tests/peers && ../../build/venv/bin/python -m unittest pair_test) && tests/bench.py counts" + ("" if NIGHTLY else " --ci")),
    ("bench", "exit", "tests/bench.py clocks" + ("" if NIGHTLY else " --ci")),
]

# The two lanes, each one stage after another, of about equal length: what computes, and what are worlds of processes. Two such worlds are never side by
# side: their engines step in time with each other, and on two cores the steps of both then take several times as long (a walk of 8 engines four to five times).
# The lanes share the machine, its free ports and build/models: `go`, `api` and `cluster` bring their own API servers.
LANES = (("go", "api", "asan", "tsan", "fuzz", "figures", "model"), ("cluster", "walk", "vllm-package", "vllm", "faults", "demo"))

# What a stage needs that no other does, and what needs nothing but a processor: done beside the stages between "build" and it.
BUILDS = {
    "asan": f"tests/sanitize.sh asan {ALWAYS} {today('asan')} {today('fuzz')}",
    "tsan": f"tests/sanitize.sh tsan {ALWAYS} {today('tsan')}",
    "lint": "tests/lint.sh",
}


class Builder(threading.Thread):
    """Runs the builds of some stages one after another: at the lowest priority, until a stage waits for one.

    Where others keep all cores busy the lowest priority gets next to nothing: whoever waited would wait for hours.
    """

    def __init__(self, stages):
        super().__init__(daemon=True)
        self.codes = {}
        self.cpu = {}  # minutes
        self.done = {name: threading.Event() for name in BUILDS if name in stages}
        self.lock = threading.Lock()
        self.waiting = 0  # stages
        self.process = None  # of the build that runs
        self.start()

    def run(self):
        for name, event in self.done.items():
            with open(LOGS / f"{name}.build.log", "wb") as out:
                with self.lock:
                    self.process = subprocess.Popen(["nice", "-n", "0" if self.waiting else "19", "bash", "-c", BUILDS[name]], cwd=ROOT, stdout=out,
                                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
                self.codes[name], self.cpu[name] = ended(self.process)
            event.set()

    def wait(self, name):
        """Returns whether the build of a stage, if it has one, went well; prints its last lines if not."""
        if name not in self.done:
            return True
        with self.lock:
            self.waiting += 1
        while not self.done[name].wait(1):
            if self.process:
                hurry(self.process.pid)
        with self.lock:
            self.waiting -= 1
        if self.codes[name] != 0:
            print("\n".join((LOGS / f"{name}.build.log").read_text(errors="replace").splitlines()[-60:]))
        return self.codes[name] == 0


def hurry(pid):
    """Gives a process and all that it started, thread by thread, the usual priority. Who may not do that lets it be.

    >>> child = subprocess.Popen(["nice", "-n", "19", "sleep", "60"])
    >>> while os.getpriority(os.PRIO_PROCESS, child.pid) != 19: time.sleep(.01)
    >>> hurry(os.getpid()); os.getpriority(os.PRIO_PROCESS, child.pid)
    0
    >>> child.kill(); child.wait() < 0
    True
    """
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    tree = [pid]
    for process in tree:
        tree += children.get(process, [])
        for thread in pathlib.Path(f"/proc/{process}/task").glob("*"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


def ended(process):
    """Waits for a process; its exit code, and its minutes of CPU time with those of its children."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, (used.ru_utime + used.ru_stime) / 60


def count_junit(path):
    """Counts tests, and names those that failed."""
    if not path.exists():
        return 0, 0, 0, []
    suite = ET.parse(path).getroot()
    total, failed = int(suite.get("tests", 0)), int(suite.get("failures", 0))
    # "disabled" are cases a filter left out; "skipped" ran and gave up
    skipped = int(suite.get("skipped", 0))
    names = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    return total - failed - skipped - int(suite.get("disabled", 0)), failed, skipped, names


def count_leaves(outcomes):
    """Counts tests without subtests, of {(package, test): "pass" | "fail" | "skip"}, and names those that failed.

    A parent counts only if it failed and none of its subtests did.

    >>> count_leaves({("p", "A"): "pass", ("p", "A/x"): "pass", ("p", "A/y"): "pass", ("p", "AB"): "pass", ("q", "A"): "skip"})
    (3, 0, 1, [])
    >>> count_leaves({("p", "A"): "fail", ("p", "A/x"): "fail", ("p", "A/x/1"): "fail", ("p", "A/y"): "pass"})
    (1, 1, 0, ['p A/x/1'])
    >>> count_leaves({("p", "A"): "fail", ("p", "A/x"): "pass"})
    (1, 1, 0, ['p A'])
    """
    parents, blamed = set(), set()
    for (package, test), outcome in outcomes.items():
        while "/" in test:
            test = test.rpartition("/")[0]
            parents.add((package, test))
            if outcome == "fail":
                blamed.add((package, test))
    count = {"pass": 0, "fail": 0, "skip": 0}
    names = []
    for key, outcome in outcomes.items():
        if key not in parents or outcome == "fail" and key not in blamed:
            count[outcome] += 1
            names += [" ".join(key)] if outcome == "fail" else []
    return count["pass"], count["fail"], count["skip"], names


def count_gojson(log):
    unstarted = []
    output, outcomes = {}, {}
    for line in log.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            print("   ", line)  # a compiler's or linker's word
            continue
        key = (event.get("Package"), event.get("Test"))
        action = event.get("Action")
        if action == "output":
            output.setdefault(key, []).append(event["Output"])
        elif action in ("pass", "fail", "skip") and key[1]:
            outcomes[key] = action
        elif action == "build-output":
            print("   ", event.get("Output", "").rstrip())
        elif action == "fail" and not any(k[0] == key[0] and k[1] for k in output):
            unstarted.append(f"{key[0]} did not start")
        if action == "fail":
            sys.stdout.write("".join(output.get(key, [])[-60:]))
    passed, failed, skipped, names = count_leaves(outcomes)
    return passed, failed + len(unstarted), skipped, names + unstarted


def last_words(log):
    """What a command that failed says of it: its lines that end with MISSED (a goal of a bench), else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return [line for line in lines if line.endswith("MISSED")] or lines[-1:]


def run(name, kind, command, builder):
    """Returns (passed, failed, skipped, what failed, minutes, minutes of CPU time)."""
    log, junit = LOGS / f"{name}.log", LOGS / f"{name}.xml"
    junit.unlink(missing_ok=True)
    print(f"=== {name}", flush=True)
    start = time.monotonic()
    if builder and not builder.wait(name):
        return 0, 1, 0, [f"{name}: {what}" for what in last_words(LOGS / f"{name}.build.log")], (time.monotonic() - start) / 60, 0
    env = dict(os.environ, GOFLAGS=os.environ.get("GOFLAGS", "") + " -count=1" if kind == "gojson" else os.environ.get("GOFLAGS", ""))
    with open(log, "wb") as out:
        command = command.replace("{junit}", str(junit))
        process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env=env)
        code, cpu = ended(process)
    with REPORT:
        return report(name, kind, log, junit, code, (time.monotonic() - start) / 60, cpu)


def report(name, kind, log, junit, code, minutes, cpu):
    """Counts what a stage ran and prints it; returns what `run` does."""
    if kind == "junit":
        passed, failed, skipped, names = count_junit(junit)
    elif kind == "gojson":
        passed, failed, skipped, names = count_gojson(log)
    else:
        passed, failed, skipped, names = (1, 0, 0, []) if code == 0 else (0, 1, 0, last_words(log))
    if code != 0 and failed == 0:
        failed, names = 1, last_words(log)  # it did not get as far as counting
    if code != 0 and kind != "gojson":
        print("\n".join(log.read_text(errors="replace").splitlines()[-60:]))
    print(f"--- {name}: {passed} passed, {failed} failed, {skipped} skipped, {minutes:.1f} min, {cpu:.1f} of CPU", flush=True)
    return passed, failed, skipped, [f"{name}: {what}" for what in names], minutes, cpu


def play(stages, builder, results):
    """Runs stages one after another; what `run` returns of each goes into results, by name."""
    for name, kind, command in stages:
        results[name] = run(name, kind, command, builder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these stages only")
    parser.add_argument("--list", action="store_true", help="list the stages")
    args = parser.parse_args()
    if args.list:
        for name, _, command in STAGES:
            print(f"{name:8} {command}")
        return 0
    unknown = set(args.only or []) - {s[0] for s in STAGES}
    if unknown:
        parser.error(f"no stage named {', '.join(sorted(unknown))}; --list shows them")
    os.environ["DATE"] = DATE  # of whatever else samples by day
    # As the Makefile has it: compiled in another way, Kubernetes would be compiled again.
    os.environ["CGO_ENABLED"] = "0"
    if "-trimpath" not in os.environ.get("GOFLAGS", ""):
        os.environ["GOFLAGS"] = os.environ.get("GOFLAGS", "") + " -trimpath"
    if NIGHTLY:
        os.environ["FAULT_MATRIX"] = "full"
    print(f"DATE={DATE}" + (", all of what is sampled by day" if NIGHTLY else " plays today's samples again"), flush=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    chosen = [stage for stage in STAGES if not args.only or stage[0] in args.only]
    results, built = {}, {}
    def fine():
        return not any(failed for _, failed, *_ in results.values())

    for stage in chosen:
        if stage[0] in ("setup", "build") and fine():
            play([stage], None, results)
    if fine():
        builder = Builder([name for name, *_ in chosen])
        named = {stage[0]: stage for stage in chosen if stage[0] not in results}
        play([named.pop(name) for name in ["c++"] if name in named], builder, results)
        lanes = [[named.pop(name) for name in lane if name in named] for lane in LANES]
        for lane in lanes:
            results |= {name: (0, 1, 0, [f"{name}: did not end"], 0, 0) for name, *_ in lane}  # if who plays it fails
        players = [threading.Thread(target=play, args=(lane, builder, results)) for lane in lanes]
        for player in players:
            player.start()
        for player in players:
            player.join()
        play(named.values(), builder, results)
        built = builder.cpu
    table = [(name, *results[name]) for name, *_ in chosen if name in results]
    total = [sum(row[i] for row in table if i == 2 or row[0] not in AGAIN) for i in (1, 2, 3)]
    blame = [what for row in table for what in row[4]]
    for what in blame[:MOST_BLAMED]:
        print(f"FAILED {what[:200]}")
    if len(blame) > MOST_BLAMED:
        print(f"FAILED {len(blame) - MOST_BLAMED} more")
    print("minutes: " + ", ".join(f"{row[0]} {row[5]:.1f}" for row in table)
          + f", all {(time.monotonic() - began) / 60:.1f}")
    print("minutes of CPU: " + ", ".join(f"{row[0]} {row[6]:.1f}" for row in table)
          + "".join(f", {name}'s build {cpu:.1f}" for name, cpu in built.items())
          + f", all {sum(row[6] for row in table) + sum(built.values()):.1f}")
    print(f"{sum(row[1] for row in table if row[0] in AGAIN)} tests of c++ passed again under sanitizers, and are not counted twice")
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
