#!/usr/bin/env python3
"""Mutants of the agent's pure parts: agent/gate, agent/layout and agent/kv, each changed at one place, must fail their
tests.

All mutants are compiled into the tests' programs, inactive (cxx_changes.py, cxx_build.py). Each is activated alone for
the tests that reach it (cxx_play.py). Mutants of the gate also run the histories of tests/model. A surviving mutant is
a missing test, or is explained in cxx_explained.txt.

    tests/mutants/cxx.py [--sample N] [--seed S] [--folder gate layout kv] [--only TEXT] [--jobs N] [--list] [--tests]

Exit code 1: fewer than 95 % of all mutants, or of a folder's, are killed or explained, or an explanation matches
nothing, or only killed mutants.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import sys

from cxx_build import FOLDERS, build, find
from cxx_play import judge, survey, tests_of

EXPLAINED = pathlib.Path(__file__).resolve().parent / "cxx_explained.txt"
WANT = 0.95
VERDICTS = ("killed", "timed out", "explained", "survived", "not reached", "senseless")


def explanations(every):
    """{key: reason}, and errors in the explanations."""
    out, wrong = {}, []
    for number, line in enumerate(EXPLAINED.read_text().splitlines(), 1):
        key, _, why = (part.strip() for part in line.partition(" :: "))
        if not line.strip() or line.startswith("#"):
            continue
        if not why:
            wrong.append(f"{EXPLAINED.name}:{number}: want `file function: was -> is :: why`")
        elif key not in every:
            wrong.append(f"{EXPLAINED.name}:{number}: there is no such mutant any more: {key}")
        elif key in out:
            wrong.append(f"{EXPLAINED.name}:{number}: it is explained twice: {key}")
        else:
            out[key] = why
    return out, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="as many, drawn by chance (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--folder", nargs="+", choices=FOLDERS, default=FOLDERS)
    parser.add_argument("--only", metavar="TEXT", default="", help="mutants whose line of the list has this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--tests", action="store_true", help="tell each test's seconds and how many mutants it reaches, and play nothing")
    args = parser.parse_args()
    explained, wrong = explanations({m.key() for m in find(FOLDERS)[0].values()})
    found = find(args.folder)[0] if args.list else build(args.folder)
    chosen = [number for number, m in found.items() if args.only in shown(m)]
    if args.sample is not None and args.sample < len(chosen):
        chosen = sorted(random.Random(args.seed).sample(chosen, args.sample))
    if args.list:
        print("\n".join(shown(found[number]) for number in chosen))
        return 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        tests = [test for folder in args.folder for test in tests_of(folder)]
        list(pool.map(survey, tests))
        if args.tests:
            for t in tests:
                print(f"{t.folder:8} {t.seconds:6.2f} s {t.busy:6.2f} s busy {len(t.reaches):5} mutants  {t.name}")
            return 0
        counts = collections.defaultdict(collections.Counter)
        survivors, tried = set(), set()
        for done, (number, verdict) in enumerate(zip(chosen, pool.map(lambda n: judge(tests, n), chosen)), 1):
            m = found[number]
            tried.add(m.key())
            if verdict in ("survived", "not reached"):
                survivors.add(m.key())
                if m.key() in explained:
                    verdict = "explained"
                else:
                    print(f"{verdict}  {shown(m)}", flush=True)
            counts[m.file][verdict] += 1
            if done % 100 == 0:
                print(f"[mutants] {done} of {len(chosen)}", file=sys.stderr)
    if len(chosen) == len(found):
        wrong += [f"{EXPLAINED.name}: no mutant of it survives any more: {key}" for key in explained if key in tried - survivors]
    return report(counts, wrong)


def shown(m):
    return f"{m.file}:{m.line}: {m.key()}"


def share(counts):
    """The killed or explained share of the mutants that make sense."""
    good = counts["killed"] + counts["timed out"] + counts["explained"]
    return good / max(good + counts["survived"] + counts["not reached"], 1)


def report(counts, wrong):
    print(f"{'':28}" + "".join(f"{v:>12}" for v in VERDICTS))
    sums = {"all": collections.Counter()}
    for file in sorted(counts):
        print(f"{file:28}" + "".join(f"{counts[file][v]:12}" for v in VERDICTS))
        for name in ("all", file.rpartition("/")[0]):
            sums.setdefault(name, collections.Counter()).update(counts[file])
    for name in sorted(sums, key=lambda n: (n == "all", n)):
        print(f"{name:28}" + "".join(f"{sums[name][v]:12}" for v in VERDICTS) + f"   {share(sums[name]):.1%} killed or explained")
    for line in wrong:
        print(line)
    return 1 if wrong or min(map(share, sums.values())) < WANT else 0


if __name__ == "__main__":
    sys.exit(main())
