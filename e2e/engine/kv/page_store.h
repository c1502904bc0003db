// The pages of this rank's KV region: which block each holds, which are free.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "agent/base/status.h"
#include "agent/kv/plan.h"
#include "e2e/engine/kv/held_map.h"

namespace tangram::engine {

class PageStore {
 public:
  explicit PageStore(uint32_t total_pages = 0);

  uint32_t total() const { return total_; }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }

  // Pages of (home, block), taken from the free list when the block is new here; `count` is
  // HeldMap::PagesPerBlock. kNoMemory means that reservations were broken.
  Result<std::span<const uint32_t>> Ensure(uint32_t home, uint32_t block, uint32_t count);
  // Empty when the block has no pages here.
  std::span<const uint32_t> Find(uint32_t home, uint32_t block) const;
  // Gives the pages of the block back; nothing happens for one that is not here.
  void Drop(uint32_t home, uint32_t block);

  // For the manifest.
  kv::RankState State() const;
  // What this rank holds after the plan: the pages it keeps and, for its moves in order,
  // pages from the free list (*targets). The store itself is not changed.
  Result<PageStore> After(const kv::RankPlan& plan, const HeldMap& held, uint32_t rank,
                          std::vector<uint32_t>* targets) const;
  // Only these blocks of `home`, which is called `now` from here on; all other pages are free.
  PageStore OnlyOf(uint32_t home, const std::set<uint32_t>& blocks, uint32_t now) const;
  // No page is owned twice or lost: owned + free = total. kInternal otherwise.
  Status Audit() const;

 private:
  uint32_t total_ = 0;
  std::vector<uint32_t> free_;                                             // taken from the back
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> blocks_;  // (home, block)
};

}  // namespace tangram::engine
