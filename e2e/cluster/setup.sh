#!/usr/bin/env bash
# Builds everything for tangram-cluster under build/ (or TANGRAM_BUILD): the Kubernetes binary and tangram-cluster in
# bin/, Debian's container tools unpacked in deb/, the sandbox image in cluster-images/, envtest's assets in envtest/.
# Installs nothing on the machine. Builds only missing or outdated parts.
set -euo pipefail
cd "$(dirname "$0")"
build=${TANGRAM_BUILD:-$PWD/../../build}
mkdir -p "$build"
build=$(cd "$build" && pwd)
export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-buildvcs=false -trimpath"
step() { printf '[cluster setup %4ds] %s\n' "$SECONDS" "$*"; }

# Includes the libraries that a minimal Debian may lack: deb/ is searched first.
packages=(containerd runc containernetworking-plugins nftables libnftables1 libnftnl11 libxtables12
  libseccomp2 libmnl0 libjansson4 libedit2 libbsd0 libmd0 libgmp10)

debian() {
  local want=$build/deb/.packages new=$build/deb.new
  [ "$(cat "$want" 2>/dev/null)" = "${packages[*]}" ] && return
  step "Debian packages into build/deb: ${packages[*]}"
  rm -rf "$new"
  mkdir -p "$new/.archives"
  chmod 777 "$new/.archives" # apt downloads as a user of its own
  if ! (cd "$new/.archives" && apt-get download -q "${packages[@]}") >"$build/deb.log" 2>&1; then
    step "once more, with new package lists"
    apt-get update -qq
    (cd "$new/.archives" && apt-get download -q "${packages[@]}") >"$build/deb.log" 2>&1 || {
      cat "$build/deb.log" >&2
      exit 1
    }
  fi
  local archive
  for archive in "$new"/.archives/*.deb; do dpkg-deb -x "$archive" "$new"; done
  rm -rf "$new/.archives" "$build/deb"
  echo "${packages[*]}" >"$new/.packages"
  mv "$new" "$build/deb"
}

# Both packages need the same version, or the server calls itself v0.0.0-master and version checks fail.
kubernetes() {
  local version flags="-s -w" package
  version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
    flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=0000000000000000000000000000000000000000"
    flags+=" -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  [ -x "$build/bin/kube" ] || step "Kubernetes $version (compiles once, about 6 minutes on two cores)"
  mkdir -p "$build/bin" "$build/envtest"
  go build -ldflags "$flags" -o "$build/bin/kube" ./kube
  ln -sfn kube "$build/bin/kubectl"
  local tool
  for tool in etcd kube-apiserver kubectl; do ln -sfn ../bin/kube "$build/envtest/$tool"; done
}

debian
kubernetes
go build -o "$build/bin/tangram-cluster" ./cmd/tangram-cluster
mkdir -p "$build/cluster-images"
go build -ldflags "-s -w" -o "$build/cluster-images/pause" ./pause
"$build/bin/tangram-cluster" build-image --name tangram.dev/pause:1 --out "$build/cluster-images/pause.tar" \
  --entrypoint /pause "$build/cluster-images/pause:/pause"
step "done"
