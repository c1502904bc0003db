#!/usr/bin/env bash
# Generates these files from the types of api/ and from the RBAC markers of the operator:
#   api/v1alpha2/zz_generated.deepcopy.go   deep copies
#   charts/tangram/crds/*.yaml              CustomResourceDefinitions
#   charts/tangram/files/role.yaml          rules that the operator needs (the chart splits them by scope)
#   docs/crd-reference.md                   the reference for users
# `api/generate.sh --check` generates into a temporary folder, prints the differences, and fails if there are any.
# Tools come from tests/tools.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
bin=${TOOLS_BIN:-$root/build/bin}
mode=${1:-write}
case "$mode" in write | --check) ;; *) echo "usage: api/generate.sh [--check]" >&2; exit 2 ;; esac
for tool in controller-gen crd-ref-docs; do
  [ -x "$bin/$tool" ] || { echo "api/generate.sh: $bin/$tool is missing: run tests/tools.sh" >&2; exit 1; }
done

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir -p "$made/api" "$made/crds" "$made/files"

(cd api && "$bin/controller-gen" object paths=./v1alpha2 output:dir="$made/api")
(cd api && "$bin/controller-gen" crd paths=./v1alpha2 output:crd:dir="$made/crds")
(cd operator && "$bin/controller-gen" rbac:roleName=tangram-operator paths=./internal/controller/... output:rbac:dir="$made/files")
[ -f "$made/files/role.yaml" ] || { echo "api/generate.sh: no +kubebuilder:rbac marker in operator/internal/controller" >&2; exit 1; }
"$bin/crd-ref-docs" --source-path=api/v1alpha2 --config=api/crd-reference.yaml \
  --renderer=markdown --output-path="$made/crd-reference.md" --log-level=ERROR

stale=0
place() { # made file, its home
  if [ "$mode" = write ]; then
    mkdir -p "$(dirname "$2")"
    cmp -s "$1" "$2" || { install -m 644 "$1" "$2"; echo "[generate] $2"; }
  elif ! diff -u --label "$2 (in the repository)" --label "$2 (generated)" "$2" "$1"; then
    stale=1
  fi
}
place "$made/api/zz_generated.deepcopy.go" api/v1alpha2/zz_generated.deepcopy.go
for crd in "$made"/crds/*.yaml; do place "$crd" "charts/tangram/crds/$(basename "$crd")"; done
for crd in charts/tangram/crds/*.yaml; do # a kind that is gone
  [ -f "$made/crds/$(basename "$crd")" ] && continue
  if [ "$mode" = write ]; then rm "$crd" && echo "[generate] removed $crd"; else echo "$crd: no type makes it any more"; stale=1; fi
done
place "$made/files/role.yaml" charts/tangram/files/role.yaml
place "$made/crd-reference.md" docs/crd-reference.md
[ "$stale" = 0 ] || { echo "generated files are out of date: run api/generate.sh and commit what it changes" >&2; exit 1; }
