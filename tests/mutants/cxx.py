#!/usr/bin/env python3
"""Mutants of the agent's pure parts: agent/gate, agent/layout and agent/kv, each changed at one place, must fail their tests.

Each mutant lies in a copy of the source (build/mutants); one file and its folder's test are built (hardly optimised), and the test runs until
its first failure. Mutants of the gate that pass gate_test are also shown the histories of tests/model. A mutant that survives is a test that is
missing, or one that cxx_explained.txt explains: its line says `file:function:operator | the line in the source | why no test can tell`.

    tests/mutants/cxx.py [--sample N] [--seed S] [--folder gate layout kv] [--only FILE:FUNCTION[:OPERATOR]] [--list]

Exit code 1: fewer than 95 of 100 mutants that compile are killed or explained, or an explanation matches nothing, or only what was killed.
"""

import argparse
import collections
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import time

from cxx_source import mutants

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "mutants"
COPY, BUILD = WORK / "source", WORK / "build"
EXPLAINED = pathlib.Path(__file__).resolve().parent / "cxx_explained.txt"
FOLDERS = ("gate", "layout", "kv")
WANT = 0.95
HISTORIES = 20  # of each scenario of the model
GATE = ("gate.cc", "gate.h", "gate_page.h", "rules.cc", "rules.h")


def sources(folder):
    for path in sorted((ROOT / "agent" / folder).glob("*.*")):
        if path.suffix in (".cc", ".h") and not path.stem.endswith(("_test", "_fuzz", "testing")):
            yield path


def find(folders):
    out = []
    for folder in folders:
        for path in sources(folder):
            out += mutants(str(path.relative_to(ROOT)), path.read_text())
    return out


def run(command, limit, **options):
    """The exit code, or None after `limit` seconds. What it may allocate is limited too: a loop without end often fills memory first."""
    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit, preexec_fn=bound, check=False,
                              **options).returncode
    except subprocess.TimeoutExpired:
        return None


def sync():
    """Brings the copy up to date; what is equal keeps its time, so that nothing is built twice."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "CMakeLists.txt", "agent", "proto", "e2e/engine", "tests/golden"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        source, copy = ROOT / name, COPY / name
        if source.is_file() and not (copy.exists() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def build(target):
    return subprocess.run(["ninja", "-C", BUILD, target], capture_output=True, text=True, check=False)


class Folder:
    """One folder's test, and how long it may take."""

    def __init__(self, name):
        self.name, self.target = name, f"{name}_test"
        self.command = [BUILD / "agent" / name / self.target, "--gtest_fail_fast", "--gtest_brief=1"]
        built = build(self.target)
        if built.returncode != 0:
            sys.exit(f"{self.target} does not build unchanged:\n{built.stdout[-3000:]}")
        start = time.monotonic()
        if run(self.command, 600, cwd=ROOT) != 0:
            sys.exit(f"{self.target} fails unchanged")
        # Only a loop without end comes so far.
        self.limit = 20 * (time.monotonic() - start) + 30
        self.events = histories() if name == "gate" else None
        if self.events and not self.replays():
            sys.exit("the gate does not replay the model unchanged")

    def replays(self):
        binary, gate = WORK / "replay", COPY / "agent" / "gate"
        sources = [gate / "testing" / "replay.cc", gate / "gate.cc", gate / "rules.cc"]
        subprocess.run(["g++", "-std=c++20", f"-I{COPY}", "-o", binary, *sources, "-lfmt"], capture_output=True, check=True)
        with open(self.events, "rb") as events:
            return run([binary], self.limit, stdin=events) == 0

    def judge(self, mutant):
        path = COPY / mutant.file
        sound = path.read_text()
        path.write_text(mutant.of(sound))
        try:
            if build(self.target).returncode != 0:
                return "no build"
            if run(self.command, self.limit, cwd=ROOT) != 0:
                return "killed"
            return "killed" if path.name in GATE and not self.replays() else "survived"
        finally:
            path.write_text(sound)


def histories():
    """Random runs of the gate's model, as agent/gate/testing/replay.cc reads them."""
    out = WORK / "gate.events"
    model = ROOT / "tests" / "model" / "gate.pml"
    if out.exists() and out.stat().st_mtime > model.stat().st_mtime:
        return out
    shutil.copyfile(model, WORK / "gate.pml")
    lines = []
    for scenario in range(7):
        for seed in range(1, HISTORIES + 1):
            told = subprocess.run(["spin", "-DTRACE", f"-DSCENARIO={scenario}", f"-n{seed}", "-u700", "-T", "gate.pml"], cwd=WORK, capture_output=True,
                                  text=True, check=True).stdout.splitlines()
            lines += ["new 10"] + [t[1:] for t in told if t.startswith("@") and not t.startswith(("@rank ", "@rules "))]
    out.write_text("\n".join(lines) + "\n")
    return out


def explanations(every):
    """{(key, line of source): why}, and what is wrong with them."""
    out, wrong = {}, []
    known = {(m.key(), m.before) for m in every}
    for number, line in enumerate(EXPLAINED.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split(" | ")]
        if len(parts) != 3 or not all(parts):
            wrong.append(f"{EXPLAINED.name}:{number}: want `file:function:operator | line | why`")
        elif (parts[0], parts[1]) not in known:
            wrong.append(f"{EXPLAINED.name}:{number}: {parts[0]} has no mutant of the line `{parts[1]}` any more")
        else:
            out[parts[0], parts[1]] = parts[2]
    return out, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="as many, drawn by chance (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--folder", nargs="+", choices=FOLDERS, default=FOLDERS)
    parser.add_argument("--only", metavar="KEY", help="mutants whose file:function:operator begins so")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    args = parser.parse_args()
    explained, wrong = explanations(find(FOLDERS))
    chosen = [m for m in find(args.folder) if m.key().startswith(args.only or "")]
    if args.sample is not None and args.sample < len(chosen):
        chosen = sorted(random.Random(args.seed).sample(chosen, args.sample), key=lambda m: (m.file, m.start, m.operator))
    if args.list:
        for m in chosen:
            print(f"{m.file}:{m.line}: {m.key().split(':', 1)[1]}: {m.before} -> {' '.join(m.text.split())}")
        print(f"{len(chosen)} mutants")
        return 0
    WORK.mkdir(parents=True, exist_ok=True)
    sync()
    subprocess.run(["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Mutant", "-DCMAKE_CXX_FLAGS_MUTANT=-O1"], check=True,
                   stdout=subprocess.DEVNULL)
    counts = collections.defaultdict(collections.Counter)
    folders, needed = {}, set()
    for m in chosen:
        name = m.file.split("/")[1]
        folder = folders.get(name) or folders.setdefault(name, Folder(name))
        verdict = folder.judge(m)
        why = explained.get((m.key(), m.before))
        if verdict == "survived" and why:
            verdict = "explained"
            needed.add((m.key(), m.before))
        counts[m.file][verdict] += 1
        if verdict == "survived":
            print(f"survived  {m.file}:{m.line}: {m.key().split(':', 1)[1]}: {m.before} -> {' '.join(m.text.split())}", flush=True)
    tried = set(chosen)
    for explanation in explained.keys() - needed:
        if {m for m in find(FOLDERS) if (m.key(), m.before) == explanation} <= tried:
            wrong.append(f"{EXPLAINED.name}: {' | '.join(explanation)}: no mutant of it survives any more")
    return report(counts, wrong)


def report(counts, wrong):
    verdicts = ("killed", "explained", "survived", "no build")
    print(f"{'':28}" + "".join(f"{v:>10}" for v in verdicts))
    total = collections.Counter()
    for file in sorted(counts):
        print(f"{file:28}" + "".join(f"{counts[file][v]:10}" for v in verdicts))
        total += counts[file]
    print(f"{'all':28}" + "".join(f"{total[v]:10}" for v in verdicts))
    built = total["killed"] + total["explained"] + total["survived"]
    share = (total["killed"] + total["explained"]) / built if built else 1.0
    print(f"{share:.1%} of {built} killed or explained")
    for line in wrong:
        print(line)
    return 1 if wrong or share < WANT else 0


if __name__ == "__main__":
    sys.exit(main())
