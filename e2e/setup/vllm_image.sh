#!/usr/bin/env bash
# `make vllm-image`: build/images/vllm.tar, the image tangram.dev/vllm:dev of `agent/vllm`: build/vllm's packages and
# its interpreter, our packages and libraries. Run after `make build vllm-setup`. Does nothing if none of these has
# changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/vllm
out=build/images/vllm.tar
builder=build/bin/tangram-cluster
libraries=(build/cxx/agent/engine/libtangram_engine.so build/cxx/agent/vllm/ops/libtangram_experts.so)
ours=(agent/vllm/tangram_vllm agent/vllm/tangram_front agent/engine/python/tangram_engine agent/client/python/tangram_client)

fail() {
  echo "make vllm-image: $*" >&2
  exit 1
}
[ -n "$(ls $venv/.setup-* 2>/dev/null)" ] || fail "$venv is not there: run make vllm-setup"
for file in $builder "${libraries[@]}"; do
  [ -e "$file" ] || fail "$file is not there: run make build cluster-setup"
done

sum=$( (ls $venv/.setup-*; cat "$0" e2e/setup/{compiled.py,tangram-front} $builder "${libraries[@]}"; find "${ours[@]}" '(' -name '*.py' -o -name '*.binpb' ')' | LC_ALL=C sort | xargs cat) | sha256sum)
[ ! -e $out ] || [ "$sum" != "$(cat $out.inputs 2>/dev/null)" ] || exit 0
mkdir -p build/images

# Paths in the image.
root=/opt/tangram
home=$root/python # of the interpreter
compiled=$root/compiled
version=$($venv/bin/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
stdlib=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
packages=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

echo "[vllm-image ${SECONDS}s] compiling what an engine imports"
rm -rf build/images/compiled
path=$(dirname agent/vllm/tangram_vllm):$(dirname agent/engine/python/tangram_engine):$(dirname agent/client/python/tangram_client)
TANGRAM_CLIENT_LIBRARY=${libraries[0]} TANGRAM_EXPERTS_LIBRARY=${libraries[1]} PYTHONPATH=$path PYTHONDONTWRITEBYTECODE=1 \
  $venv/bin/python e2e/setup/compiled.py build/images/compiled "$packages=$root/packages" "$stdlib=$home/lib/$version" \
  "agent/vllm=$root/own" "agent/engine/python=$root/own" "agent/client/python=$root/own" >build/images/compiled.log 2>&1 ||
  { tail -20 build/images/compiled.log >&2; fail "what an engine imports cannot be imported (above)"; }

echo "[vllm-image ${SECONDS}s] packing, a minute"
args=()
for name in __pycache__ pip 'pip-*' sitecustomize.py "$root/packages/torch/include" \
  $home/lib/"$version"/{site-packages,dist-packages,test,idlelib,tkinter,turtledemo,ensurepip,lib2to3,'config-*'}; do
  args+=(--exclude "$name")
done
for folder in "${ours[@]}"; do
  args+=("$folder:$root/own/$(basename "$folder")")
done
for library in "${libraries[@]}"; do
  args+=("$library:$root/lib/$(basename "$library")")
done
# vLLM runs lscpu through a shell. Only /tmp is written, and compiled files are used without a check, because their
# sources cannot change.
$builder build-image --name tangram.dev/vllm:dev --out $out --user 65532 \
  --entrypoint "$home/bin/$version" --entrypoint -m --entrypoint tangram_vllm.zygote \
  --env PYTHONHOME=$home --env PYTHONPATH=$root/own:$root/packages --env PYTHONPYCACHEPREFIX=$compiled --env PYTHONDONTWRITEBYTECODE=1 \
  --env TANGRAM_CLIENT_LIBRARY=$root/lib/libtangram_engine.so --env TANGRAM_EXPERTS_LIBRARY=$root/lib/libtangram_experts.so \
  --env HOME=/tmp --env OMP_NUM_THREADS=1 \
  "$(readlink -f $venv/bin/python):$home/bin/$version" "$(readlink -f /bin/sh):/bin/sh" e2e/setup/tangram-front:/bin/tangram-front /usr/bin/lscpu "$stdlib:$home/lib/$version" "$packages:$root/packages" "build/images/compiled:$compiled" "${args[@]}"
echo "$sum" >$out.inputs
echo "[vllm-image ${SECONDS}s] $out: $(du -m $out | cut -f1) MiB"
