#!/usr/bin/env bash
# Runs a command N times next to two busy loops: `tests/stress.sh N 'COMMAND'`, in the current folder. Stops at the
# first failure. A test of `make test` must pass 20 times.
set -euo pipefail
times=${1:?how many times} command=${2:?a command}
busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
for _ in 1 2; do
  (while :; do :; done) &
  busy+=($!)
done
for ((i = 1; i <= times; i++)); do
  bash -c "$command" || { echo "failed in run $i of $times"; exit 1; }
done
echo "$times of $times passed"
