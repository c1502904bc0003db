#!/usr/bin/env bash
# Runs one bench: JSON lines on stdout, progress on stderr; the last line sums up.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${NAME:-}" in
  "")
    cat <<LIST
resize-bytes  bytes a resize moves over the lower bound, every P -> Q of 18 public models
repair-bytes  bytes that the repair of a lost rank reads over those that no survivor holds, 2 to 64 ranks of 18 public models
plan-time     milliseconds to plan DeepSeek-V3 32 -> 40 ranks and Qwen3-235B EP8 -> TP8, one thread
eplb          plan time, balance over the floor and moves on workloads A to E, beside FlashLB-, Swift- and DeepSeek-like planners, one thread
eplb-small    2,000 random small cases against the exact optimum by brute force
rounds        rounds of the migration schedule over the most moves at a rank
predict       next-window balance of placements made from a forecast, adaptive against the best fixed window, three drifts
recovery      seconds from kill -9 of one of 6 ranks under load to the first token of the last running request
transition    time without tokens in each transition of the demo, over a plain copy of its bytes plus two steps
LIST
    exit 0 ;;
  resize-bytes | repair-bytes | plan-time | predict | eplb | eplb-small | rounds)
    make -s setup go >&2
    exec build/bin/tangram-bench "$NAME" ;;
  recovery)
    make -s build model >&2
    exec build/bin/tangram-demo recovery --out build/bench/recovery ;;
  transition)
    make -s build model >&2
    exec build/bin/tangram-demo local --bench --out build/bench/transition ;;
  *) echo "no bench named '$NAME'; make bench lists them" >&2; exit 2 ;;
esac
