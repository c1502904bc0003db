#!/usr/bin/env bash
# Installs the requirements of builds, tests and the demo on Debian 12 (with Go, Python 3.11 and Node). Does nothing if
# the lists are unchanged since the last run. Only missing Debian packages need root.
#
#   ONLY_TRY=1      installs only the needs of `make try`: no CUDA compiler, no Kubernetes, no test tools
#   WITH_CUDA=0     omits the compiler of kernels/: use it with a CUDA toolkit, or with -DTANGRAM_CUDA=OFF
#   WITH_CLUSTER=1  also builds Kubernetes and the tools around it (some minutes, once)
set -euo pipefail
cd "$(dirname "$0")/../.."

packages=( # to configure and build the C++ programs
  g++ cmake ninja-build pkg-config ccache clang-14
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  prometheus-cpp-dev libyaml-cpp-dev libspdlog-dev libfmt-dev nlohmann-json3-dev
  libcli11-dev libssl-dev libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev
)
modules=(proto api operator e2e)
if [ "${ONLY_TRY:-0}" != 1 ]; then
  packages+=(
    clang-format-14 libclang-rt-14-dev openssl spin iproute2
    libucx-dev # for wires of UCX: 2 MB, six seconds
  )
  modules+=(tests tests/tools/lint)
fi

export GOGC=400 # compiling takes a fifth less processor time, and some memory
mkdir -p build/bin
step() { printf '[setup %4ds] %s\n' "$SECONDS" "$*"; }

# Runs a download command up to three times: a registry may be unavailable for a moment.
download() {
  local try
  for try in 1 2 3; do
    "$@" && return
    step "try $try of 3 failed: $*"
    sleep $((try * 5))
  done
  return 1
}

base() {
  local p missing=()
  for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv) # Debian's Python has it in a package of its own
  if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || { echo "Debian packages are missing. Install them as root: apt-get install --no-install-recommends ${missing[*]}" >&2; exit 1; }
    step "Debian packages: ${missing[*]}"
    download apt-get update -qq
    DEBIAN_FRONTEND=noninteractive download apt-get install -y -qq --no-install-recommends "${missing[@]}" >build/apt.log 2>&1 ||
      { tail -20 build/apt.log; exit 1; }
  fi

  step "Python packages (for the checkpoint script)"
  [ -x build/venv/bin/python ] || python3 -m venv build/venv
  download build/venv/bin/pip install -q --disable-pip-version-check --require-hashes -r e2e/model/requirements.txt

  step "Go modules"
  local m
  for m in "${modules[@]}"; do (cd "$m" && download go mod download); done
}

stamp=build/.setup-$(cat e2e/setup/install.sh e2e/model/requirements.txt | sha256sum | cut -c1-16)
[ "${ONLY_TRY:-0}" != 1 ] || [ -e "$stamp" ] || stamp=$stamp-try # the full set-up includes it
if [ ! -e "$stamp" ]; then
  base
  rm -f build/.setup-*
  touch "$stamp"
  step "done"
fi
[ "${ONLY_TRY:-0}" != 1 ] || exit 0

# No GPU is needed. Old wheels are removed first: pip does not replace files that another version installed.
cuda=build/cuda/.setup-$(sha256sum <kernels/requirements.txt | cut -c1-16)
if [ "${WITH_CUDA:-1}" = 1 ] && [ ! -e "$cuda" ]; then
  step "CUDA toolkit (for kernels/, some 300 MB)"
  rm -rf build/cuda
  download build/venv/bin/pip install -q --disable-pip-version-check --require-hashes --target build/cuda -r kernels/requirements.txt
  touch "$cuda"
fi

# Scripts of the cluster and its tools install missing parts.
if [ "${WITH_CLUSTER:-0}" = 1 ]; then
  [ -x build/bin/kube ] || step "Go modules of Kubernetes and its tools"
  for m in e2e/cluster tests/tools; do (cd "$m" && download go mod download); done
  e2e/cluster/setup.sh
  [ -x build/bin/helm ] || step "tools: helm, kubeconform, generators (compile once, a minute or two)"
  tests/tools.sh
fi
