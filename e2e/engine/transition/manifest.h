// What every rank tells the others at a flip: its requests with all their state, and the
// KV pages it holds. All ranks gather the same and plan alike.
#pragma once

#include <vector>

#include "agent/kv/plan.h"
#include "e2e/engine/kv/page_store.h"
#include "e2e/engine/scheduler/scheduler.h"
#include "e2e/engine/wire/bytes.h"

namespace tangram::engine {

struct RankManifest {
  std::vector<Sequence> running;
  std::vector<Sequence> waiting;
  kv::RankState pages;
};

Bytes EncodeManifest(const Scheduler& scheduler, const PageStore& pages);
Result<RankManifest> DecodeManifest(const Bytes& bytes);

}  // namespace tangram::engine
