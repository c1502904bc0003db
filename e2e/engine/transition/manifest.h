// Every rank's report at a flip: its requests with all their state, its idle blocks, and its KV
// pages. All ranks gather the same manifests and compute the same plan.
#pragma once

#include <functional>
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
  std::vector<Chain> idle;  // the least recently used first
  kv::RankState pages;
  // Promised targets of the running requests, then of the chains: ranks of the target, -1 for none.
  // Empty: no promises.
  std::vector<int32_t> promised;
};

// `promised`: the promised target of the request with these blocks, as above. Lists pages of these
// layers; empty: of all.
Bytes EncodeManifest(const Scheduler& scheduler, const PageStore& pages,
                     const std::vector<bool>& layers,
                     const std::function<int32_t(std::span<const uint32_t>)>& promised);
Bytes EncodeManifest(const RankManifest& manifest);
// kInternal: not a manifest, or an impossible request: without a prompt, with more tokens than it
// reserves, with KV of unknown positions; or an idle chain without blocks or with a wrong number of
// tokens. The plan checks the pages and the blocks.
Result<RankManifest> DecodeManifest(const Bytes& bytes, uint32_t block_tokens);

}  // namespace tangram::engine
