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
#include "e2e/engine/kv/ahead_pages.h"
#include "e2e/engine/kv/held_map.h"

namespace tangram::engine {

// A block's layers of one KV head lie side by side as far as free pages do, so that a block is a
// few strips however many layers there are.
class PageStore {
 public:
  explicit PageStore(uint32_t total_pages = 0);

  uint32_t total() const { return total_; }
  // Copies ahead of a flip are free: they go when their pages are wanted.
  uint32_t free() const { return static_cast<uint32_t>(free_->free_bytes()) + ahead_.pages(); }

  // The strips of (home, block) here on `rank`, of free pages when the block is new. By head, then
  // by layer. kNoMemory means that reservations were broken.
  Result<std::span<const kv::Strip>> Ensure(uint32_t home, uint32_t block, const HeldMap& held,
                                            uint32_t rank);
  // Empty when the block has no pages here.
  std::span<const kv::Strip> Find(uint32_t home, uint32_t block) const;
  // Whether Ensure would have to wait for pages that are being written ahead (Came).
  bool MustWait(uint32_t pages) const { return ahead_.writing() && pages > free_->free_bytes(); }
  // Gives the pages of the block back, and its copies; nothing happens for one that is not here.
  void Drop(uint32_t home, uint32_t block);

  // Of (home, block), a lane of it: free pages to copy it to ahead of a flip. Empty: there are too
  // few.
  std::vector<kv::Strip> TakeAhead(uint32_t home, uint32_t block, const kv::Strip& lane,
                                   uint32_t tokens) {
    return ahead_.Take(free_.get(), home, block, lane, tokens);
  }
  // What was being copied is here, or failed.
  void Came(bool here) { ahead_.Came(free_.get(), here); }
  // Nothing will come to what was taken for the block since Came.
  void ForgetAhead(uint32_t home, uint32_t block) { ahead_.Forget(free_.get(), home, block); }
  // All copies go; what is being written when it came.
  void DropAhead() { ahead_.DropAll(free_.get()); }
  bool Writing() const { return ahead_.writing(); }
  // Takes the place of a store of the same pages, in some of which something is being written.
  Status TakeOver(const PageStore& before) { return ahead_.TakeOver(free_.get(), before.ahead_); }
  uint32_t ahead() const { return ahead_.pages(); }

  // (home, block) of all that is here.
  std::vector<std::pair<uint32_t, uint32_t>> Blocks() const {
    std::vector<std::pair<uint32_t, uint32_t>> out;
    for (const auto& [name, strips] : blocks_) out.push_back(name);
    return out;
  }
  // For the manifest: strips of these layers, of all if there are none.
  kv::RankState State(const std::vector<bool>& layers = {}) const;
  using Placed = std::vector<std::vector<kv::PlacedBlock>>;  // as in kv::Plan
  // What this rank holds after the plan: the strips that it keeps, in layers that are not among
  // `layers` (of which the manifest told; empty: of all) those that it has, and, for its moves in
  // order, what was copied ahead with as many tokens (*ready pages), or else free pages (*copies).
  // Nothing is being written ahead. Copies that the plan has no use for go if their pages are
  // needed; else the store itself is not changed.
  Result<PageStore> After(const kv::RankPlan& plan, const Placed& placed, const HeldMap& held,
                          uint32_t rank, std::vector<kv::PageCopy>* copies, uint64_t* ready,
                          const std::vector<bool>& layers = {});
  // Only these blocks of `home`, which is called `now` from here on; all other pages are free.
  Result<PageStore> OnlyOf(uint32_t home, const std::set<uint32_t>& blocks, uint32_t now) const;
  // No page is owned twice or lost: owned + free = total. kInternal otherwise.
  Status Audit() const;

 private:
  using ByName = std::map<std::pair<uint32_t, uint32_t>, std::vector<kv::Strip>>;
  // kInternal: a page twice.
  static Result<PageStore> Of(uint32_t total_pages, ByName blocks);

  uint32_t total_ = 0;
  std::unique_ptr<device::Arena> free_;  // its bytes are pages
  ByName blocks_;                        // by (home, block)
  AheadPages ahead_;
};

}  // namespace tangram::engine
