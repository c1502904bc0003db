// Carrying KV and requests through a flip: the plan that all ranks make alike, and this
// rank's part of it.
#pragma once

#include <vector>

#include "agent/engine/ahead/copies.h"
#include "agent/engine/turn/side.h"
#include "agent/engine/world/world.h"
#include "e2e/engine/kv/kv_memory.h"
#include "e2e/engine/kv/page_store.h"
#include "e2e/engine/model/config.h"
#include "e2e/engine/transition/manifest.h"

namespace tangram::engine {

// The KV plan over the manifests of all ranks of `from`, in rank order.
struct Carrying {
  kv::Input input;
  kv::Plan plan;
  // Which idle chains come along, (old home, chain of its manifest), in the order of the plan's
  // requests after all that somebody waits for: the most recently used ones first.
  std::vector<std::pair<uint32_t, uint32_t>> idle;
  // Idle blocks that do not, (old home, block): the plan counts their pages as free.
  std::vector<std::pair<uint32_t, uint32_t>> evicted;
};
// Takes the pages of the manifests. Of what is idle as much comes along as has room beside the
// requests, which go where they would go without. kNoMemory: these do not fit now, and every rank
// finds so; kNotHeld: the manifests must be whole.
Result<Carrying> PlanCarry(const kv::Shape& shape, const Side& from, const Side& to, bool whole,
                           std::vector<RankManifest>* manifests);
// Layers of which manifests list pages; empty: all. Where all ranks stay, under their numbers, and
// all homes, ranks first tell of layers that change alone: that is enough if requests can stay.
std::vector<bool> ListedLayers(const Side& from, const Side& to, bool whole);
// How a rank of this engine keeps its KV.
inline kv::Format PoolOf(const kv::Shape& shape, const model::KvRow& row, uint32_t pages) {
  return (row.latent ? kv::LatentPoolOf : kv::PoolOf)(shape, kv::Element::kF32, pages);
}

// Brings pages into the region, of which the mirror knows nothing: copies within it, and pulls from
// other ranks, as Copies::Pull. Returns bytes brought. `sources` by old rank.
Result<uint64_t> PullPages(Copies& pulls, KvMemory& kv, const std::vector<kv::Format>& sources,
                           const kv::Format& mine, uint32_t old_rank,
                           const std::vector<kv::PageCopy>& copies, Between& between);

// The sequences and idle chains that the plan gives to `rank` of the new layout.
struct Adopted {
  std::vector<Sequence> running;
  std::vector<Sequence> waiting;
  std::vector<Chain> idle;  // the least recently used one first
};
Adopted AdoptOf(const Carrying& carrying, std::vector<RankManifest> manifests, uint32_t rank);

}  // namespace tangram::engine
