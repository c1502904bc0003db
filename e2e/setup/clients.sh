#!/usr/bin/env bash
# Installs the clients of the text tests (tests/internal/clients) in build/clients: litellm and Anthropic's SDK for
# build/vllm's Python, OpenAI's SDK for Node. Pinned by hash; does nothing if the lists are unchanged since the last
# run. Run after vllm.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
list=tests/internal/clients/requirements.txt
openai=6.49.0 # of npm; the last major version for Node 20
sum=e48de0f4c5dbecebdeb864233f5ea49be07cd3e0ff3bd3e1e6745dc5e168cced
to=build/clients

stamp=$to/.setup-$(cat e2e/setup/clients.sh $list | sha256sum | cut -c1-16)
[ ! -e "$stamp" ] || exit 0
command -v npm >/dev/null || { echo "clients.sh: npm is not there: install Node" >&2; exit 1; }
rm -rf $to && mkdir -p $to/node_modules/openai
build/vllm/bin/pip install -q --disable-pip-version-check --no-compile --no-deps --require-hashes --target $to/python -r $list ||
  { echo "clients.sh: a package of $list could not be installed (above); is PyPI reachable?" >&2; exit 1; }
(cd $to && npm pack --silent openai@$openai >/dev/null) || { echo "clients.sh: npm pack of openai failed; is the registry reachable?" >&2; exit 1; }
echo "$sum  $to/openai-$openai.tgz" | sha256sum -c --quiet
tar xzf $to/openai-$openai.tgz -C $to/node_modules/openai --strip-components 1
rm $to/openai-$openai.tgz
touch "$stamp"
