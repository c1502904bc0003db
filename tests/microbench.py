#!/usr/bin/env python3
"""Runs the agent's Google Benchmark programs: index of pieces, proof of a plan, copy and hash. QUICK=1: one short run
each.

One JSON line per case (median of three; cpu_time in nanoseconds per iteration), then the summary: figures compared with
their peers of the same run.
"""

import json
import os
import pathlib
import subprocess
import sys

PROGRAMS = pathlib.Path(__file__).resolve().parent.parent / "build/cxx/agent"
# figure: case, peer, compared value
RATIOS = {
    "find_over_map": ("Find/58", "FindInAMap/58", "cpu_time"),
    "copy_over_memcpy": ("Copy/67108864", "Memcpy/67108864", "bytes_per_second"),
    "hash_over_memcpy": ("Hash/67108864", "Memcpy/67108864", "bytes_per_second"),
    "copy_and_hash_over_memcpy": ("CopyAndHash/67108864", "Memcpy/67108864", "bytes_per_second"),
    "prove_growth": ("Prove/58", "Prove/1", "items_per_second"),
}




def run(program, quick):
    """Yields (case, its figures) of one program."""
    command = [program, "--benchmark_format=json", "--benchmark_repetitions=3", "--benchmark_enable_random_interleaving=true",
               f"--benchmark_min_time={0.01 if quick else 0.3}", "--benchmark_report_aggregates_only=true"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    for case in report["benchmarks"]:
        if case.get("error_occurred"):
            sys.exit(f"{program.name}: {case['name']}: {case['error_message']}")
        if case.get("aggregate_name") == "median":
            yield case["run_name"], {k: case[k] for k in ("cpu_time", "items_per_second", "bytes_per_second") if k in case}


def main():
    found = {}
    for program in sorted(PROGRAMS.glob("*/*_microbench")):
        for name, figures in run(program, os.environ.get("QUICK") == "1"):
            found[name] = figures
            print(json.dumps({"case": name, **figures}), flush=True)
    ratios = {name: found[case][figure] / found[peer][figure] for name, (case, peer, figure) in RATIOS.items()}
    print(json.dumps({"bench": "micro", "value": ratios["copy_over_memcpy"], "unit": "rate of a copy by the host's device over memcpy's", "metrics": ratios}))


if __name__ == "__main__":
    main()
