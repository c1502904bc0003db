"""Builds the agent's folders with all their mutants in a copy of the source (build/mutants), and the histories of the
gate's model."""

import pathlib
import re
import shutil
import subprocess
import sys

from cxx_changes import changes

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "mutants"
COPY, BUILD = WORK / "source", WORK / "build"
HELPERS = pathlib.Path(__file__).resolve().parent / "cxx_helpers.h"
FOLDERS = ("gate", "layout", "kv")
HISTORIES = 20  # per scenario of the model


def sources(folder):
    """The shipped sources: no tests, and none of their headers."""
    for path in sorted((ROOT / "agent" / folder).glob("*.*")):
        if path.suffix in (".cc", ".h") and not path.stem.endswith(("_test", "_fuzz", "_main", "testing")):
            yield path


def find(folders):
    """{number: mutant}, and {file: source with mutants}. A file's numbers do not depend on other files, so their
    objects stay built."""
    found, rewritten = {}, {}
    for folder in folders:
        for path in sources(folder):
            name, number = str(path.relative_to(ROOT)), 1000 * len(rewritten) + 1000
            mutants, rewritten[name] = changes(name, path.read_text(), number)
            found.update(enumerate(mutants, number))
    return found, rewritten


def put(path, content):
    """Writes a file unless it is equal, so that its time does not change and nothing is built again."""
    if not (path.exists() and path.read_bytes() == content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def build(folders):
    """Builds the folders' tests and the gate's replay; returns {number: mutant}. The copy contains the mutants of all
    folders, so one copy serves all."""
    found, rewritten = find(FOLDERS)
    built = re.findall(r"^ *add_subdirectory\((\S+)\)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "CMakeLists.txt", *built, "tests/golden"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        if (ROOT / name).is_file():
            put(COPY / name, rewritten[name].encode() if name in rewritten else (ROOT / name).read_bytes())
    flags = f"-O1 -w -D_GLIBCXX_ASSERTIONS -include {HELPERS}"
    run(["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DTANGRAM_CUDA=OFF", "-DCMAKE_BUILD_TYPE=Mutants",
         f"-DCMAKE_CXX_FLAGS_MUTANTS={flags}"])
    run(["ninja", "-C", BUILD, "-j2", *(f"{folder}_test" for folder in folders)])
    if "gate" in folders:
        gate = COPY / "agent" / "gate"
        run(["g++", "-std=c++20", *flags.split(), f"-I{COPY}", "-o", WORK / "replay", gate / "testing" / "replay.cc", gate / "gate.cc",
             gate / "rules.cc", COPY / "agent" / "base" / "utf8.cc", "-lfmt"])
    return {number: m for number, m in found.items() if m.file.split("/")[1] in folders}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if re.search(r"\berror\b|required from", line)]
        sys.exit(f"{command[0]} failed; a change that does not compile needs a rule in cxx_changes.py:\n" + "\n".join(errors[:40]))


def histories():
    """Random runs of the gate's model, in the format of agent/gate/testing/replay.cc."""
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
            lines += ["new 10"] + [t[1:] for t in told if t.startswith("@") and not t.startswith(("@rank ", "@look ", "@rules "))]
    out.write_text("\n".join(lines) + "\n")
    return out
