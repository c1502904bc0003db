#!/usr/bin/env bash
# Installs the tools of the Kubernetes stages into build/bin, each in one pinned version; a tool that
# is there in that version is left alone. On a fresh machine this compiles for some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${TOOLS_BIN:-$PWD/build/bin}
mkdir -p "$bin"

tools=( # module@version, the one that `go version -m` of the program tells
  sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0
  github.com/elastic/crd-ref-docs@v0.3.0
  helm.sh/helm/v3/cmd/helm@v3.21.4
  github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
)

for tool in "${tools[@]}"; do
  package=${tool%@*} version=${tool#*@} name=$(basename "${tool%@*}")
  built=$(go version -m "$bin/$name" 2>/dev/null | awk '$1 == "path" { path = $2 } $1 == "mod" { print path "@" $3 }' || true)
  [ "$built" = "$package@$version" ] && continue
  printf '[tools %4ds] %s %s\n' "$SECONDS" "$name" "$version"
  GOTOOLCHAIN=local GOBIN=$bin go install "$tool" 2>"$bin/.$name.log" || {
    cat "$bin/.$name.log" >&2
    echo "tests/tools.sh: $name $version does not build (above); is the Go module proxy reachable?" >&2
    exit 1
  }
  rm -f "$bin/.$name.log"
done
