// What every rank tells the others at a flip: its requests with all their state, its idle blocks,
// and the KV pages it holds. All ranks gather the same and plan alike.
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
  std::vector<Chain> idle;  // the least recently used one first
  kv::RankState pages;
  // Where KV of those that run, then of the chains, was promised to go: ranks of the target, -1 for
  // none. Empty: none of them.
  std::vector<int32_t> promised;
};

// `promised`: of what has these blocks, as above. Pages of these layers, of all if there are none.
Bytes EncodeManifest(const Scheduler& scheduler, const PageStore& pages,
                     const std::vector<bool>& layers,
                     const std::function<int32_t(std::span<const uint32_t>)>& promised);
Bytes EncodeManifest(const RankManifest& manifest);
// kInternal: not a manifest, or with a request that no scheduler could have: without a prompt, with
// more tokens than it reserves, with KV of positions that it does not know; or with an idle chain
// of no blocks, or of another number of tokens. The pages and the blocks are the plan's to judge.
Result<RankManifest> DecodeManifest(const Bytes& bytes, uint32_t block_tokens);

}  // namespace tangram::engine
