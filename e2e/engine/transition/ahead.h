// KV ahead of a flip: every rank's reports of its blocks while an attempt is staged, and this
// rank's copies of them to their places in the target, while steps continue.
//
// If a home's requests stay, all ranks know their target without a report. A home that is not in
// the target reports the target of each of its requests, with its blocks as they fill: the rank
// with the lowest load. Requests with a common beginning stay together. The flip keeps these
// promises if there is room (kv::Request.promised).
//
// A full block is never written again, and a block id of a home is used once per epoch. So (home,
// block) identifies a content, and a copy is as good as the block until the block is freed. A block
// that is freed while it is copied is dropped by its name, whatever the result.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "agent/engine/turn/side.h"
#include "agent/kv/format.h"
#include "e2e/engine/kv/held_map.h"
#include "e2e/engine/kv/page_store.h"
#include "e2e/engine/step/announced.h"

namespace tangram::engine {

using BlockName = std::pair<uint32_t, uint32_t>;  // home, block

// Reports of the other ranks for one attempt. They are kept from the first report on, because this
// rank may learn of the attempt later.
class FilledBlocks {
 public:
  void Hear(uint32_t rank, const Filled& filled);
  void Freed(uint32_t home, uint32_t block) { blocks_.erase({home, block}); }
  void Clear() { *this = {}; }

  uint64_t attempt() const { return attempt_; }
  struct Block {
    bool full = false;
    int32_t home = -1;                                  // rank of the target that it is promised to
    std::map<uint32_t, std::vector<kv::Strip>> strips;  // by rank
  };
  // nullptr: nothing was reported, or the block is freed.
  const Block* Find(const BlockName& name) const;
  // Blocks with new reports since the last call; a block may occur several times.
  std::deque<BlockName> TakeNews() { return std::exchange(news_, {}); }

 private:
  uint64_t attempt_ = 0;
  std::map<BlockName, Block> blocks_;
  std::deque<BlockName> news_;
};

// One rank's part, for one attempt.
class Ahead {
 public:
  // Strips and blocks per message, pages per fetch, and blocks that a flip may find uncopied.
  struct Limits {
    size_t told = 1024;
    uint32_t pages = 0;
    size_t left = 8;
  };
  // `from` is active; this rank is `rank` there, and `reserved` has the reserved blocks by home
  // (empty: unknown).
  Ahead(uint64_t attempt, Limits limits, const kv::Shape& shape, const Side& from, const Side& to,
        uint32_t rank, const std::vector<uint64_t>& reserved);

  uint64_t attempt() const { return attempt_; }

  // Adds to the next report: this rank has pages of the block; the block of this home is full.
  // `first`: first block of its request or chain; `most`: the maximum number of blocks of that
  // request.
  void Has(const BlockName& name) { has_.push_back(name); }
  void IsFull(uint32_t block, uint32_t first, uint32_t most);
  // The rank of the target to which the request with these blocks is promised; -1: none.
  int32_t PromiseOf(std::span<const uint32_t> blocks) const;
  Filled Tell(const PageStore& pages);

  // At every step boundary: queues the reported blocks that this rank may need.
  void Look(FilledBlocks* filled);
  // The next copies, to pages taken from the store. Empty: no known block is left, or no room.
  std::vector<kv::PageCopy> Next(const HeldMap& held, const FilledBlocks& filled, PageStore* pages);
  // The copies that Next returned have arrived, or failed and are tried again.
  void Came(bool here);
  // Whether a flip would find more uncopied blocks than allowed.
  bool behind() const {
    return full_.size() + has_.size() + queue_.size() + going_.size() > limits_.left;
  }

  uint64_t short_of_room = 0;  // for the log

 private:
  enum class Copied { kAll, kNothing, kLater, kNoRoom };
  // Copies a block that is known to be full.
  Copied Copy(const HeldMap& held, const BlockName& name, const FilledBlocks::Block& block,
              PageStore* pages, std::vector<kv::PageCopy>* copies);
  // The rank of the target where requests of a home stay; -1: the home leaves them.
  int32_t StaysAt(uint32_t home) const;
  // The lanes of a home's block that the target has on this rank; empty: none, or its home in the
  // target is not known yet.
  const std::vector<HeldMap::Lane>& Wanted(uint32_t home, const FilledBlocks::Block& block);

  const uint64_t attempt_;
  const Limits limits_;
  const uint32_t block_tokens_, rank_;
  std::vector<int32_t> new_of_old_;
  HeldMap target_;
  // By layer: its attention changes, or homes change. KV of the other layers stays in place and is
  // not reported: a flip of a run changes a few layers of many.
  std::vector<bool> moves_;
  std::map<uint32_t, std::vector<HeldMap::Lane>> wanted_;  // by rank of the target
  std::vector<uint64_t> load_;                             // of these ranks: blocks
  std::map<uint32_t, uint32_t> promised_;                  // by first block
  std::deque<BlockName> has_, queue_;
  struct Full {
    uint32_t block = 0, home = 0;
  };
  std::deque<Full> full_;
  std::set<BlockName> done_;
  std::vector<BlockName> going_;
};

}  // namespace tangram::engine
