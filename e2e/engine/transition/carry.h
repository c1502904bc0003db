// Migration of KV and requests through a flip: the plan that all ranks compute alike, and this
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
  // Idle chains that migrate, (old home, chain of its manifest), in the order of the plan's
  // requests after all client requests: the most recently used first.
  std::vector<std::pair<uint32_t, uint32_t>> idle;
  // Idle blocks that do not migrate, (old home, block): the plan counts their pages as free.
  std::vector<std::pair<uint32_t, uint32_t>> evicted;
};
// Plans from the manifests, whose pages it takes. Idle chains migrate if there is room next to the
// requests, whose targets do not depend on idle chains. kNoMemory: the requests do not fit now, and
// every rank finds the same; kNotHeld: the manifests must be whole.
Result<Carrying> PlanCarry(const kv::Shape& shape, const Side& from, const Side& to, bool whole,
                           std::vector<RankManifest>* manifests);
// Layers whose pages the manifests list; empty: all. If all ranks keep their numbers and all homes
// stay, the first manifests list only changed layers: enough if the requests can stay.
std::vector<bool> ListedLayers(const Side& from, const Side& to, bool whole);
// Format of a rank's KV in this engine.
inline kv::Format PoolOf(const kv::Shape& shape, const model::KvRow& row, uint32_t pages) {
  return (row.latent ? kv::LatentPoolOf : kv::PoolOf)(shape, kv::Element::kF32, pages);
}

// Copies pages into the region, bypassing the mirror: copies within the region, and fetches from
// other ranks, as in Copies::Pull. Returns the copied bytes. `sources` by old rank.
Result<uint64_t> PullPages(Copies& pulls, KvMemory& kv, const std::vector<kv::Format>& sources,
                           const kv::Format& mine, uint32_t old_rank,
                           const std::vector<kv::PageCopy>& copies, Between& between);

// The sequences and idle chains that the plan assigns to `rank` of the new layout.
struct Adopted {
  std::vector<Sequence> running;
  std::vector<Sequence> waiting;
  std::vector<Chain> idle;  // the least recently used first
};
Adopted AdoptOf(const Carrying& carrying, std::vector<RankManifest> manifests, uint32_t rank);

}  // namespace tangram::engine
