#!/usr/bin/env bash
# Builds the tools of the Kubernetes stages (helm, kubeconform, generators) into build/bin, in the versions of
# tests/tools/go.mod. On a fresh machine this compiles for a minute or two.
set -euo pipefail
cd "$(dirname "$0")/tools"
bin=${TOOLS_BIN:-$PWD/../../build/bin}
mkdir -p "$bin"
# As Kubernetes is built (e2e/cluster/setup.sh): one compilation of its libraries serves both.
CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-buildvcs=false -trimpath" go build -o "$bin/" tool || {
  echo "tests/tools.sh: the tools do not build (above); is the Go module proxy reachable?" >&2
  exit 1
}
