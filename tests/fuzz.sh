#!/usr/bin/env bash
# Runs libFuzzer targets, built with clang, and Go's fuzz functions: `tests/fuzz.sh SECONDS [TARGET ...]`.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?seconds for each target}
shift
[ $# = 0 ] || tests/sanitize.sh asan "$@"
for t in "$@"; do
  corpus=build/fuzz-corpus/$t
  mkdir -p "$corpus"
  echo "--- $t, $seconds s"
  "$(find build/asan -type f -name "$t")" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
    -max_len=65536 -len_control=0 -print_final_stats=1 -artifact_prefix="$corpus/" "$corpus" || { echo "$t failed; its input is in $corpus"; exit 1; }
done
# A number of inputs instead of seconds: Go's fuzzer may report its own time limit as a failure ("context deadline
# exceeded").
inputs=$((seconds * 4000))
grep -roE '^func Fuzz[A-Za-z]+' --include='*_test.go' operator | sort | while IFS=: read -r file name; do
  name=${name#func }
  echo "--- $name, $inputs inputs"
  (cd operator && GOGC=400 go test -exec 'env -u GOGC' "./$(dirname "${file#operator/}")" -run '^$' -fuzz "^$name\$" -fuzztime "${inputs}x" -fuzzminimizetime 20x) </dev/null
done
