// What every rank tells the others at a flip: its requests with all their state, and the
// KV pages it holds. All ranks gather the same and plan alike.
#pragma once

#include <span>
#include <vector>

#include "agent/engine/wire/bytes.h"
#include "agent/kv/plan.h"
#include "e2e/engine/kv/page_store.h"
#include "e2e/engine/scheduler/scheduler.h"

namespace tangram::engine {

struct RankManifest {
  std::vector<Sequence> running;
  std::vector<Sequence> waiting;
  kv::RankState pages;
};

Bytes EncodeManifest(const Scheduler& scheduler, const PageStore& pages);
Bytes EncodeManifest(const RankManifest& manifest);
// kInternal: not a manifest, or with a request that no scheduler could have: without a prompt, with
// more tokens than it reserves, with KV of positions that it does not know. The pages and the
// blocks are the plan's to judge.
Result<RankManifest> DecodeManifest(const Bytes& bytes);

}  // namespace tangram::engine
