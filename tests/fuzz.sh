#!/usr/bin/env bash
# Builds libFuzzer targets with clang and runs each for the given seconds, and the Go side's fuzz functions: those whose
# turn it is on DATE (YYYY-MM-DD, default today; each has one day of three), with NIGHTLY=1 all. "build" instead of seconds: it only builds.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}
day=$(($(date -u -d "${DATE:-today}" +%s) / 86400))
echo "DATE=$(date -u -d "@$((day * 86400))" +%F)"
# turn: of the lines on stdin, those of the day
turn() { if [ "${NIGHTLY:-}" = 1 ]; then cat; else awk -v day="$day" 'NR % 3 == day % 3'; fi; }
tests/sanitize.sh asan
targets=$(ninja -C build/asan -t targets all | grep -oE '^[a-z_]+_fuzz: phony' | cut -d: -f1 | grep -v '^cmake_' | sort -u)
[ -n "$targets" ] || { echo "no fuzz targets"; exit 1; }
targets=$(turn <<<"$targets")
# shellcheck disable=SC2086
[ -z "$targets" ] || tests/sanitize.sh asan $targets
[ "$seconds" != build ] || exit 0
for t in $targets; do
  corpus=build/fuzz-corpus/$t
  mkdir -p "$corpus"
  echo "--- $t, $seconds s"
  "$(find build/asan -type f -name "$t")" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -max_len=65536 -len_control=0 -print_final_stats=1 -artifact_prefix="$corpus/crash-" "$corpus"
done
# The Go side's: every Fuzz function, one after another. So many inputs, not so many seconds: the fuzzer may take the end
# of its own time for a failure ("context deadline exceeded").
inputs=$((seconds * 4000))
grep -roE '^func Fuzz[A-Za-z]+' --include='*_test.go' operator | sort | turn | while IFS=: read -r file name; do
  name=${name#func }
  echo "--- $name, $inputs inputs"
  (cd operator && go test "./$(dirname "${file#operator/}")" -run '^$' -fuzz "^$name\$" -fuzztime "${inputs}x" -fuzzminimizetime 20x) </dev/null
done
