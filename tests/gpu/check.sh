#!/bin/sh
# `make gpu-check`, also without make: runs the check on this machine's GPU and writes docs/gpu-results.md and
# docs/gpu-results.json. Makes the bundle if possible; else it runs the bundle in build/ or next to this script. Exit
# code 0: right; 1: wrong, or it could not run; 2: there is no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
  echo "gpu-check: no GPU here (neither /dev/nvidiactl nor /dev/dxg)"
  exit 2
fi
bundle=build/gpu-check.tar.gz
if command -v make >/dev/null && command -v cmake >/dev/null && command -v ninja >/dev/null && command -v clang++-14 >/dev/null && make -s gpu-bundle; then
  :
else
  for bundle in build/gpu-check.tar.gz gpu-check.tar.gz ../gpu-check.tar.gz; do
    [ ! -f "$bundle" ] || break
  done
  [ -f "$bundle" ] || { echo "gpu-check: it cannot be built here (cmake, ninja and clang++-14 are needed), and no gpu-check.tar.gz lies here: make gpu-bundle elsewhere makes it"; exit 1; }
  echo "gpu-check: not built here; runs $bundle"
fi
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
tar -xzf "$bundle" -C "$folder" && "$folder/gpu-check/gpu-check.sh" --out docs "$@"
