#!/usr/bin/env python3
"""Runs a tier of tests: `test` (in CI), `check` (before an issue is resolved) or `nightly` (all). See runner/plan.py.

Every stage runs even if an earlier one failed, except after a failed `setup` or `build`. A failed test is reported when
it fails, with its output when its stage ends, and again at the end; build/test has all logs, and failures.txt all
failures. The last line is `N passed, N failed, N skipped`. The exit code is the class of the first failed stage: 10
set-up, 11 build, 12 unit tests, 13 lint, 14 model or figures, 15 worlds of processes, 16 the cluster, 17 too many flaky
tests, 18 out of time, 19 a stage that only check and nightly have.

    tests/stages.py [test | check | nightly] [--only NAME ...] [--shard I/N] [--touched] [--seed N] [--minutes N] [--list]
"""

import argparse
import datetime
import os
import signal
import subprocess
import sys
import threading
import time

from runner import plan, retry
from runner.stage import LOGS, ROOT, Runner, run_lanes

MINUTES = {"test": 75, "check": 120, "nightly": 900}  # CI ends a run after 90; a shard of nightly takes 150 at most
MAX_NAMED = 40  # failures in the last lines
SHOWN = 5  # failures whose output is printed again
LAST = 40  # lines of this output


def git(*args):
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def seed_of(tier):
    """The seed of samples and random histories: 1 for `test`; derived from the commit for `check`, so that a failure
    belongs to it; from the date for `nightly`."""
    if tier == "check":
        return int(git("rev-parse", "HEAD^{tree}")[:7] or "0", 16) + 1
    return 1 if tier == "test" else (datetime.date.today() - datetime.date(1970, 1, 1)).days


def changed_files():
    """Files that differ from this branch's merge base with its upstream (without one: from the last commit)."""
    base = git("merge-base", "HEAD", "@{upstream}") or git("rev-parse", "HEAD~1")
    return (git("diff", "--name-only", base) + "\n" + git("ls-files", "--others", "--exclude-standard")).split()


def environment(tier, seed):
    """Environment variables of tests in every tier. Build flags are as in the Makefile; others would compile Kubernetes
    again."""
    env = dict(os.environ, TIER=tier, SEED=str(seed), CGO_ENABLED="0", UCX_NET_DEVICES="lo",
               KUBEBUILDER_CONTROLPLANE_START_TIMEOUT="3m", KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT="3m")
    if "-trimpath" not in env.get("GOFLAGS", ""):
        env["GOFLAGS"] = env.get("GOFLAGS", "") + " -trimpath"
    return env


def lanes_of(args):
    lanes = {"test": lambda: plan.TEST, "check": lambda: (plan.CLOCK, *plan.check()), "nightly": lambda: (plan.CLOCK, *plan.nightly())}[args.tier]()
    if args.touched:
        lanes = plan.touched(lanes, changed_files())
    if args.only:
        unknown = set(args.only) - {s.name for lane in lanes for s in lane} - {"setup", "build"}
        if unknown:
            sys.exit(f"stages.py: tier {args.tier} has no stage {', '.join(sorted(unknown))}; --list shows its stages")
        lanes = tuple(tuple(s for s in lane if s.name in args.only) for lane in lanes)
    if args.shard:
        i, n = (int(part) for part in args.shard.split("/"))
        lanes = plan.shard(lanes, i, n)
    return lanes


def setup_stages(args, lanes):
    names = {s.name for lane in lanes for s in lane}
    first = [plan.SETUP_STAGE, plan.BUILD_STAGE]
    if names & {"vllm", "vllm-package", "vllm-cluster", "bench"}:
        first.append(plan.VLLM_STAGE)
    return [s for s in first if not args.only or s.name in args.only]


def run(runner, first, lanes):
    """Runs set-up and build, then the lanes; returns all results."""
    results = []
    for stage in first:
        results.append(runner.run(stage))
        if results[-1].count.failures:
            return results
    alone = [s for lane in lanes for s in lane if s.alone]
    results += run_lanes(runner, [alone])
    return results + run_lanes(runner, [[s for s in lane if s not in alone] for lane in lanes])


def exit_code(results, too_flaky, killed):
    """Exit code of the first failed stage.

    >>> exit_code([], False, False), exit_code([], True, False), exit_code([], False, True)
    (0, 17, 18)
    """
    if killed:
        return plan.TIME
    failed = [r for r in results if r.count.failures]
    return failed[0].stage.code if failed else plan.FLAKY if too_flaky else 0


def summarize(results, flaky_lines, began, say=print):
    """Prints minutes, failures and totals, and writes failures.txt."""
    say("minutes: " + ", ".join(f"{r.stage.name} {r.minutes:.1f}" for r in results) + f", all {(time.monotonic() - began) / 60:.1f}")
    say("minutes of CPU: " + ", ".join(f"{r.stage.name} {r.cpu:.1f}" for r in results) + f", all {sum(r.cpu for r in results):.1f}")
    failures = [f for r in results for f in r.count.failures]
    (LOGS / "failures.txt").write_text("".join(f"FAILED {f}\n{f.output}\n\n" for f in failures))
    for failure in failures[:SHOWN]:
        lines = failure.output.rstrip().splitlines()[-LAST:]
        say(f"\nthe last lines of {failure} (all of them above, and in build/test/failures.txt):\n" + "\n".join(lines))
    for line in flaky_lines:
        say(line)
    for failure in failures[:MAX_NAMED]:
        say(f"FAILED {str(failure)[:200]}")
    if len(failures) > MAX_NAMED:
        say(f"FAILED {len(failures) - MAX_NAMED} more")
    say(f"{sum(r.count.passed for r in results)} passed, {len(failures)} failed, {sum(r.count.skipped for r in results)} skipped")


def end_on_signals(runner):
    """Makes Ctrl-C and SIGTERM end the running stages; their output so far is summed up."""
    def end(number, _):
        threading.Thread(target=runner.kill, args=(signal.Signals(number).name,)).start()  # main may hold the lock

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tier", nargs="?", default="test", choices=list(MINUTES))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these stages only")
    parser.add_argument("--shard", metavar="I/N", help="run the I-th of N parts of about equal length")
    parser.add_argument("--touched", action="store_true", help="of check: run stages that files are about which differ from upstream")
    parser.add_argument("--seed", type=int, help="of samples and random histories, as an earlier run printed it")
    parser.add_argument("--minutes", type=float, help="end the run after this long, and name what still ran")
    parser.add_argument("--list", action="store_true", help="list the stages")
    args = parser.parse_args()
    lanes = lanes_of(args)
    first = setup_stages(args, lanes)
    if args.list:
        for stage in first + [s for lane in lanes for s in lane]:
            print(f"{stage.name:12} {stage.command}")
        return 0
    seed = args.seed or seed_of(args.tier)
    print(f"make {args.tier}: SEED={seed}, commit {git('rev-parse', '--short', 'HEAD')}", flush=True)
    entries, wrong = retry.read()
    today = datetime.date.today()
    old = retry.expired(entries, today)
    began = time.monotonic()
    runner = Runner(env=environment(args.tier, seed))
    if not runner.isolate:
        print("stages share this machine's network: unshare --net --mount --pid does not work here", flush=True)
    end_on_signals(runner)
    minutes = args.minutes or MINUTES[args.tier]
    watchdog = threading.Timer(minutes * 60, runner.kill, (f"{minutes:g} minutes are over",))
    watchdog.daemon = True
    watchdog.start()
    results = run(runner, first, lanes)
    flaky = retry.run_again(runner, results)
    watchdog.cancel()
    lines, too_flaky = retry.judge(flaky, entries, today)
    lines += [f"EXPIRED in tests/flaky.txt: {e.name} (since {e.until}, {e.issue})" for e in old] + [f"tests/flaky.txt: {what}" for what in wrong]
    summarize(results, lines, began)
    code = exit_code(results, too_flaky or bool(wrong) or bool(old) and args.tier != "test", runner.killed)
    if code:
        print(f"exit code {code}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
