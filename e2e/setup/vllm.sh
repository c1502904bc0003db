#!/usr/bin/env bash
# `make vllm-setup`: vLLM for CPUs in build/vllm, a separate virtual environment (Debian 12, Python 3.11). It downloads
# 0.8 GB, uses 1.9 GiB of disk and takes about two minutes. Does nothing if the lists are unchanged since the last run.
# CUDA libraries are not installed: stand_ins.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/vllm
list=agent/vllm/requirements.txt

step() { printf '[vllm-setup %4ds] %s\n' "$SECONDS" "$*"; }
fail() {
  echo "make vllm-setup: $*" >&2
  exit 1
}

stamp=$venv/.setup-$(cat e2e/setup/vllm.sh e2e/setup/stand_ins.py $list | sha256sum | cut -c1-16)
[ ! -e "$stamp" ] || exit 0
mkdir -p build
free=$(df --output=avail -m build | tail -1)
[ "$free" -ge 4096 ] || fail "4096 MiB are needed below build/ while it installs, and $free are free"
for tool in gcc readelf; do
  command -v $tool >/dev/null || fail "$tool is not there: run make setup first"
done

step "vLLM, torch and transformers (0.8 GB) into $venv"
rm -rf $venv # another list: nothing of the one before stays
python3 -m venv $venv || fail "no virtual environment in $venv (above)"
$venv/bin/pip install -q --disable-pip-version-check --no-compile --no-deps --require-hashes -r $list ||
  fail "a package of $list could not be installed (above); is PyPI reachable?"
step "stand-ins for CUDA libraries"
packages=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 e2e/setup/stand_ins.py "$packages/torch/lib" >$venv/stand-ins.txt || fail "the stand-ins could not be built (above)"
step "the first import, which compiles Python's files"
VLLM_LOGGING_LEVEL=ERROR $venv/bin/python -c 'import vllm._custom_ops, vllm.v1.engine.core, vllm.v1.worker.cpu_worker, vllm.model_executor.layers.quantization.online.base, transformers' >$venv/import.log 2>&1 ||
  { tail -20 $venv/import.log >&2; fail "vLLM is installed in $venv, and cannot be imported (above)"; }
touch "$stamp"
step "done: $(du -sm $venv | cut -f1) MiB"
