#!/usr/bin/env bash
# Formatting and static checks; prints problems and fails.
set -euo pipefail
cd "$(dirname "$0")/.."
(cd tests/tools/lint && CGO_ENABLED=0 go build -trimpath -o ../../../build/bin/ tool) # compiles once, two minutes
git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format-14 --dry-run --Werror
unformatted=$(git ls-files '*.go' | grep -v '\.pb\.go$' | xargs gofmt -l)
[ -z "$unformatted" ] || { echo "not gofmt'ed: $unformatted"; exit 1; }
here=$PWD
# a cache in this clone: the linter's shared cache can hide problems that a fresh machine finds
export GOLANGCI_LINT_CACHE=$here/build/lint-cache
export GOGC=200 # less processor time, for memory
for m in api operator e2e e2e/cluster tests; do
  (cd "$m" && "$here/build/bin/golangci-lint" run --config "$here/.golangci.yml" ./...)
done
python3 -m doctest tests/layers.py tests/modules.py tests/text.py tests/mutants/cxx_source.py tests/mutants/cxx_changes.py
python3 tests/layers.py
python3 tests/modules.py
python3 tests/text.py
api/generate.sh --check
if git grep -nwE -f <(grep -v '^#' tests/old-names.txt) -- ':!CHANGELOG.md' ':!*.jsonl' ':!tests/old-names.txt'; then
  echo "names that an interface had before (CHANGELOG.md has the new ones)"
  exit 1
fi
