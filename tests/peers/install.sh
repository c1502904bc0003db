#!/usr/bin/env bash
# `make bench-setup`: installs the peers of the bench `transport` (Debian 12, root): iperf3, and NIXL and Mooncake in
# build/peers, a separate virtual environment. Does nothing if the lists are unchanged since the last run.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/peers
venv=build/peers

fail() {
  echo "make bench-setup: $*" >&2
  exit 1
}

mkdir -p build
packages=(iperf3 libibverbs1) # Mooncake's wheel links to the latter
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' && continue
  echo "[bench-setup] ${packages[*]}"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >build/bench-setup.log 2>&1 ||
    { tail -20 build/bench-setup.log >&2; fail "${packages[*]} could not be installed (above); are you root, and is Debian's archive reachable?"; }
  break
done

stamp=$venv/.setup-$(cat $here/install.sh $here/requirements.txt | sha256sum | cut -c1-16)
[ ! -e "$stamp" ] || { echo "[bench-setup] nothing to do"; exit 0; }
echo "[bench-setup] NIXL and Mooncake, into $venv"
rm -rf $venv # another list: nothing of the one before stays
python3 -m venv $venv || fail "no virtual environment in $venv (above)"
$venv/bin/pip install -q --disable-pip-version-check --no-deps -r $here/requirements.txt ||
  fail "a package of $here/requirements.txt could not be installed (above); is PyPI reachable?"
for module in nixl_cu12._api mooncake.engine; do
  $venv/bin/python -c "import $module" || fail "$module is installed in $venv, and cannot be imported (above)"
done
touch "$stamp"
echo "[bench-setup] done"
