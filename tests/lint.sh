#!/usr/bin/env bash
# Formatting and static checks; prints what is wrong and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.h' '*.cc' | xargs clang-format-14 --dry-run --Werror
unformatted=$(git ls-files '*.go' | grep -v '\.pb\.go$' | xargs gofmt -l)
[ -z "$unformatted" ] || { echo "not gofmt'ed: $unformatted"; exit 1; }
for m in operator e2e tests; do
  (cd "$m" && ../build/bin/golangci-lint run --config ../tests/golangci.yml ./...)
done
