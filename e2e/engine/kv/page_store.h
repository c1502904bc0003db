// The pages of this rank's KV region: which block each page holds, and which pages are free.
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

// Layers of one KV head of a block are adjacent if free pages allow it, so a block is a few strips,
// whatever the number of layers.
class PageStore {
 public:
  explicit PageStore(uint32_t total_pages = 0);

  uint32_t total() const { return total_; }
  // Pages of copies made ahead of a flip are free: they are discarded when their pages are needed.
  uint32_t free() const { return static_cast<uint32_t>(free_->free_bytes()) + ahead_.pages(); }

  // Strips of (home, block) on this rank `rank`, by head, then by layer. Allocates free pages for a
  // new block. kNoMemory means that reservations were violated.
  Result<std::span<const kv::Strip>> Ensure(uint32_t home, uint32_t block, const HeldMap& held,
                                            uint32_t rank);
  // Empty if the block has no pages here.
  std::span<const kv::Strip> Find(uint32_t home, uint32_t block) const;
  // Whether Ensure would have to wait for pages that are being written ahead (Came).
  bool MustWait(uint32_t pages) const { return ahead_.writing() && pages > free_->free_bytes(); }
  // Frees the pages of the block and its copies; no effect if the block is not here.
  void Drop(uint32_t home, uint32_t block);

  // Takes free pages for a copy of a lane of (home, block) ahead of a flip. Empty: too few are
  // free.
  std::vector<kv::Strip> TakeAhead(uint32_t home, uint32_t block, const kv::Strip& lane,
                                   uint32_t tokens) {
    return ahead_.Take(free_.get(), home, block, lane, tokens);
  }
  // The copies being written have arrived, or failed.
  void Came(bool here) { ahead_.Came(free_.get(), here); }
  // Nothing will be written to the pages taken for the block since Came.
  void ForgetAhead(uint32_t home, uint32_t block) { ahead_.Forget(free_.get(), home, block); }
  // Discards all copies; those being written are freed in Came.
  void DropAhead() { ahead_.DropAll(free_.get()); }
  bool Writing() const { return ahead_.writing(); }
  // Replaces a store of the same pages, in some of which copies are being written.
  Status TakeOver(const PageStore& before) { return ahead_.TakeOver(free_.get(), before.ahead_); }
  uint32_t ahead() const { return ahead_.pages(); }

  // (home, block) of all blocks here.
  std::vector<std::pair<uint32_t, uint32_t>> Blocks() const {
    std::vector<std::pair<uint32_t, uint32_t>> out;
    for (const auto& [name, strips] : blocks_) out.push_back(name);
    return out;
  }
  // For the manifest: strips of these layers; empty: of all layers.
  kv::RankState State(const std::vector<bool>& layers = {}) const;
  using Placed = std::vector<std::vector<kv::PlacedBlock>>;  // as in kv::Plan
  // The store of this rank after the plan. It keeps the strips that the plan keeps, and strips in
  // layers that are not among `layers` (the layers of the manifest; empty: all). The plan's moves
  // use, in order, copies made ahead with equal fill (*ready pages), else free pages (*copies). No
  // copy may be in progress. Copies without use are discarded if their pages are needed; else this
  // store does not change.
  Result<PageStore> After(const kv::RankPlan& plan, const Placed& placed, const HeldMap& held,
                          uint32_t rank, std::vector<kv::PageCopy>* copies, uint64_t* ready,
                          const std::vector<bool>& layers = {});
  // Keeps only these blocks of `home`, which is renumbered to `now`; all other pages are free.
  Result<PageStore> OnlyOf(uint32_t home, const std::set<uint32_t>& blocks, uint32_t now) const;
  // kInternal if a page is owned twice or lost: owned + free = total must hold.
  Status Audit() const;

 private:
  using ByName = std::map<std::pair<uint32_t, uint32_t>, std::vector<kv::Strip>>;
  // kInternal: a page appears twice.
  static Result<PageStore> Of(uint32_t total_pages, ByName blocks);

  uint32_t total_ = 0;
  std::unique_ptr<device::Arena> free_;  // in units of pages
  ByName blocks_;                        // by (home, block)
  AheadPages ahead_;
};

}  // namespace tangram::engine
