// The pages of this rank's KV region: which block each holds, which are free.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "agent/base/status.h"
#include "agent/device/arena.h"
#include "agent/kv/format.h"
#include "agent/kv/plan.h"
#include "e2e/engine/kv/held_map.h"

namespace tangram::engine {

// A block's layers of one KV head lie side by side as far as free pages do, so that a block is a
// few strips however many layers there are.
class PageStore {
 public:
  explicit PageStore(uint32_t total_pages = 0);

  uint32_t total() const { return total_; }
  uint32_t free() const { return static_cast<uint32_t>(free_->free_bytes()); }

  // The strips of (home, block) here on `rank`, of free pages when the block is new. By head, then
  // by layer. kNoMemory means that reservations were broken.
  Result<std::span<const kv::Strip>> Ensure(uint32_t home, uint32_t block, const HeldMap& held,
                                            uint32_t rank);
  // Empty when the block has no pages here.
  std::span<const kv::Strip> Find(uint32_t home, uint32_t block) const;
  // Gives the pages of the block back; nothing happens for one that is not here.
  void Drop(uint32_t home, uint32_t block);

  // For the manifest.
  kv::RankState State() const;
  // What this rank holds after the plan: the strips that it keeps and, for its moves in order,
  // free pages (*copies). The store itself is not changed.
  Result<PageStore> After(const kv::RankPlan& plan, const HeldMap& held, uint32_t rank,
                          std::vector<kv::PageCopy>* copies) const;
  // Only these blocks of `home`, which is called `now` from here on; all other pages are free.
  Result<PageStore> OnlyOf(uint32_t home, const std::set<uint32_t>& blocks, uint32_t now) const;
  // No page is owned twice or lost: owned + free = total. kInternal otherwise.
  Status Audit() const;

 private:
  using Blocks = std::map<std::pair<uint32_t, uint32_t>, std::vector<kv::Strip>>;
  // kInternal: a page twice.
  static Result<PageStore> Of(uint32_t total_pages, Blocks blocks);

  uint32_t total_ = 0;
  std::unique_ptr<device::Arena> free_;  // its bytes are pages
  Blocks blocks_;                        // by (home, block)
};

}  // namespace tangram::engine
