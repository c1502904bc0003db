#!/usr/bin/env python3
"""Mutants that the simulated world (agent/simulation) must notice: one rule of the agent's code is changed at a time,
and linked before build/cxx's objects; then histories run until one breaks a claim.

    tests/mutants/simulation.py [--count N] [--only TEXT]
    tests/mutants/simulation.py --build NAME --out FILE    the program with that mutant in it

Exit code 1: no history of N notices a mutant, or the line of code that a mutant changes no longer exists.
"""

import argparse
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cxx"
PROGRAM = "agent/simulation/tangram-simulate-agents"

# description, file, from, to
MUTANTS = [
    ("an abort takes back a word that was given", "agent/gate/rules.cc",
     "if (state == GateState::kArmed) return GateState::kIdle;",
     "if (state == GateState::kArmed || state == GateState::kLatched) return GateState::kIdle;"),
    ("a fence leaves a rank armed", "agent/gate/rules.cc", "case GateEvent::kFence:\n      return GateState::kIdle;",
     "case GateEvent::kFence:\n      return state;"),
    ("who is staged flips without a permit", "agent/attempt/prepare.cc",
     "  attempt_->phase = Phase::kStaged;\n  return Done(Changed());", "  attempt_->phase = Phase::kStaged;\n  return Then(Arm{event.attempt}, Changed());"),
    ("who is held flips by words", "agent/attempt/flip.cc", "attempt_->phase == Phase::kPermitted && !attempt_->held &&",
     "attempt_->phase == Phase::kPermitted &&"),
    ("who is held leaves its other ranks behind", "agent/attempt/fence.cc",
     "if (!attempt_->any_flipped() || attempt_->phase == Phase::kFlipped) {", "if (true) {"),
    ("an abort after a flip is told 'not'", "agent/attempt/end.cc", "return Then(Answer{.flipped = true}, std::move(step));\n  if (attempt_->phase",
     "return Then(Answer{.flipped = false}, std::move(step));\n  if (attempt_->phase"),
    ("an abort leaves what of a run is not begun", "agent/attempt/run.cc", "  run_->over = true;\n", ""),
    ("an engine comes to a rank that is being released", "agent/attempt/machine.cc",
     "  if (std::find(releasing_.devices.begin(), releasing_.devices.end(), device) !=\n      releasing_.devices.end()) {", "  if (device == ~0U) {"),
    ("an abort gives no memory back", "agent/transition/end.cc", "core->ranks[device].memory->Abort();", ";"),
    ("a retired flip keeps the old places", "agent/transition/end.cc", "TANGRAM_RETURN_IF_ERROR(memory.Retire());", "memory.Keep();"),
]

# They break no claim, but cause behaviour that the model does not have (tests/model, TestModelRejectsMutant).
SHOWN = [
    ("one equal word is enough", "agent/gate/rules.cc", "std::all_of(", "std::any_of("),
]


def commands():
    """Returns {source: compile command}, and the program's link command."""
    listed = {str(pathlib.Path(c["file"]).relative_to(ROOT)): c["command"] for c in json.loads((BUILD / "compile_commands.json").read_text())
              if pathlib.Path(c["file"]).is_relative_to(ROOT)}
    link = subprocess.run(["ninja", "-C", str(BUILD), "-t", "commands", PROGRAM], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    return listed, link


def build(mutant, folder, compile_commands, link):
    """Returns the program with the mutant."""
    _, path, old, new = mutant
    text = (ROOT / path).read_text()
    if text.count(old) != 1:
        raise SystemExit(f"{path} has not exactly one {old!r}; write the mutant anew")
    source, made, program = folder / pathlib.Path(path).name, folder / "mutant.o", folder / "program"
    source.write_text(text.replace(old, new))
    command = re.sub(r" -o \S+ -c \S+", f" -o {made} -c {source}", compile_commands[path])
    command = re.sub(r"^\S*ccache ", "", command)
    subprocess.run(shlex.split(command), cwd=BUILD, check=True)
    first = re.search(r" \S+main\.cc\.o", link)[0]
    line = re.sub(r" -o \S+", f" -o {program}", link.replace(first, f" {made}{first}"), count=1)
    subprocess.run(["bash", "-c", line], cwd=BUILD, check=True)
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000, help="histories, at most, for each")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants with this in their name")
    parser.add_argument("--build", metavar="NAME")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    compile_commands, link = commands()
    if args.build:
        mutant = next(m for m in MUTANTS + SHOWN if m[0] == args.build)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(build(mutant, pathlib.Path(folder), compile_commands, link), args.out)
        return 0
    unseen = 0
    for mutant in MUTANTS:
        if args.only not in mutant[0]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            program = build(mutant, pathlib.Path(folder), compile_commands, link)
            played = subprocess.run([str(program), "--seed", "1", "--count", str(args.count)], capture_output=True, text=True, check=False)
        claims = re.findall(r"^([A-Z_]+): ", played.stdout, re.MULTILINE)
        seed = re.search(r"^seed (\d+):", played.stdout, re.MULTILINE)
        seen = f"seed {seed[1]}: {' '.join(dict.fromkeys(claims))}" if seed else f"exit {played.returncode}" if played.returncode else "NOT NOTICED"
        unseen += played.returncode == 0
        print(f"{mutant[0]}: {seen}", flush=True)
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
