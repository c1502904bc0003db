#!/usr/bin/env bash
# Tests of this package, with real vLLM and a real agent (after `make build vllm-setup`): run.sh [TEST_MODULE ...]; all without one.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../../.. && pwd)
cxx=${TANGRAM_CXX:-$root/build/cxx}
python=$root/build/vllm/bin/python
[ -x "$python" ] || { echo "run.sh: $python is not there: make vllm-setup" >&2; exit 1; }
for library in "$cxx/agent/engine/libtangram_engine.so.1" "$cxx/agent/vllm/ops/libtangram_experts.so.1"; do
  [ -e "$library" ] || { echo "run.sh: $library is not there: make build" >&2; exit 1; }
done
export TANGRAM_CLIENT_LIBRARY=$cxx/agent/engine/libtangram_engine.so.1 TANGRAM_EXPERTS_LIBRARY=$cxx/agent/vllm/ops/libtangram_experts.so.1
export PYTHONPATH=$root/agent/vllm:$root/agent/engine/python:$root/agent/client/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
if [ $# = 0 ]; then
  set -- discover -p 'test_*.py'
fi
exec "$python" -m unittest "$@"
