#!/usr/bin/env bash
# Builds targets under sanitizers: `tests/sanitize.sh asan|tsan [TARGET ...]`; without targets it only configures
# build/asan or build/tsan. Fuzz targets use the objects of `asan`.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$1
shift
case $tree in
  asan) flags=(-DTANGRAM_FUZZ=ON -DTANGRAM_SANITIZE=address,undefined) ;;
  tsan) flags=(-DTANGRAM_SANITIZE=thread) ;;
  *) echo "sanitize.sh: no tree is named $tree: asan or tsan" >&2; exit 2 ;;
esac
mkdir -p build/test
cmake -S . -B "build/$tree" -G Ninja "${flags[@]}" >"build/test/$tree.cmake.log" || { cat "build/test/$tree.cmake.log"; exit 1; }
[ $# = 0 ] || ninja -C "build/$tree" "$@"
