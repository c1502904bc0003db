#!/usr/bin/env bash
# Builds targets of a tree under sanitizers: `tests/sanitize.sh asan|tsan [TARGET ...]`; without targets it only configures build/asan or build/tsan.
# `asan` is clang's: it compiles such code in half of gcc's time, and the fuzz targets come from the same objects.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$1
shift
case $tree in
  asan) flags=(-DCMAKE_CXX_COMPILER=clang++-14 -DTANGRAM_FUZZ=ON -DTANGRAM_SANITIZE=address,undefined) ;;
  tsan) flags=(-DTANGRAM_SANITIZE=thread) ;;
  *) echo "sanitize.sh: no tree is named $tree: asan or tsan" >&2; exit 2 ;;
esac
mkdir -p build/test
cmake -S . -B "build/$tree" -G Ninja "${flags[@]}" >"build/test/$tree.cmake.log" || { cat "build/test/$tree.cmake.log"; exit 1; }
[ $# = 0 ] || ninja -C "build/$tree" "$@"
