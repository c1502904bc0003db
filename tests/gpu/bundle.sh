#!/usr/bin/env bash
# Packs the GPU check with all dependencies except the driver: tests/gpu/bundle.sh [BUILD [ARCHIVE]]. BUILD is a tree in
# which tangram-gpu-check and gpu_conformance_test are built.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/cxx} archive=${2:-build/gpu-check.tar.gz}
most=$((40 << 20))
staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT
mkdir -p "$staged/gpu-check/bin" "$staged/gpu-check/lib"
for program in tangram-gpu-check gpu_conformance_test; do
  [ -x "$build/tests/gpu/$program" ] || { echo "bundle.sh: $build/tests/gpu/$program is not built: make gpu-bundle builds it" >&2; exit 1; }
  strip -g -o "$staged/gpu-check/bin/$program" "$build/tests/gpu/$program"
  ldd "$build/tests/gpu/$program"
done >"$staged/needs"
# The machine provides the driver. All parts of the C library that the driver needs must be of the same release as the
# bundle's.
! grep libcuda "$staged/needs" || { echo "bundle.sh: the driver is linked; it is to be opened" >&2; exit 1; }
libc=$(sed -n 's/.*libc\.so\.6 => \([^ ]*\) .*/\1/p' "$staged/needs" | head -1)
for library in $(grep -o '/[^ ]*' "$staged/needs" | sort -u) "$(dirname "$libc")"/lib{dl,rt,pthread,m}.so.[0-9]; do
  cp -L "$library" "$staged/gpu-check/lib/"
done
[ -e "$staged/gpu-check/lib/ld-linux-x86-64.so.2" ] || { echo "bundle.sh: no loader among what the programs need" >&2; exit 1; }
cp tests/gpu/gpu-check.sh "$staged/gpu-check/"
tar -C "$staged" --sort=name --owner=0 --group=0 --mtime=@0 -c gpu-check | gzip -9n >"$archive"
bytes=$(stat -c %s "$archive")
[ "$bytes" -le $most ] || { echo "bundle.sh: $archive has $bytes bytes, more than $most" >&2; exit 1; }
echo "$archive: $bytes bytes"
