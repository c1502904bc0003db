// KV ahead of a flip: what every rank tells of its blocks while an attempt is staged, and what of
// it this rank copies to where the target wants it, while steps go on.
//
// Where a home's requests stay all ranks know without a word. A home that the target has not says
// where each of its requests will go, with its blocks as they fill: to the rank with the least to
// do. Requests that begin alike go together. The flip keeps to that where there is room
// (kv::Request.promised).
//
// A block that is full is never written again, and the id of a block of a home is used once in an
// epoch: so (home, block) is a content for good, and a copy is as good as the block until that is
// freed. What is freed while it is copied is dropped by its name, whatever came.
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

// What the others told, of one attempt: kept from the first that tells on, since this rank may hear
// of the attempt later.
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
  // nullptr: nothing was told, or it is freed.
  const Block* Find(const BlockName& name) const;
  // Blocks of which more was told since the last call, each as often.
  std::deque<BlockName> TakeNews() { return std::exchange(news_, {}); }

 private:
  uint64_t attempt_ = 0;
  std::map<BlockName, Block> blocks_;
  std::deque<BlockName> news_;
};

// The part of one rank, for one attempt.
class Ahead {
 public:
  // Strips and blocks of one message, pages of one pull, and blocks that a flip may find not
  // copied.
  struct Limits {
    size_t told = 1024;
    uint32_t pages = 0;
    size_t left = 8;
  };
  // `from` is in force, where this rank is `rank` and homes have so many blocks reserved (empty:
  // not known).
  Ahead(uint64_t attempt, Limits limits, const kv::Shape& shape, const Side& from, const Side& to,
        uint32_t rank, const std::vector<uint64_t>& reserved);

  uint64_t attempt() const { return attempt_; }

  // What is to be told: this rank has pages of the block; the block of this home is full. `first`:
  // the one that what it is of begins with; `most`: the blocks that that may come to.
  void Has(const BlockName& name) { has_.push_back(name); }
  void IsFull(uint32_t block, uint32_t first, uint32_t most);
  // The rank of the target to which what has these blocks is promised; -1: none.
  int32_t PromiseOf(std::span<const uint32_t> blocks) const;
  Filled Tell(const PageStore& pages);

  // At every boundary: what of it this rank may want.
  void Look(FilledBlocks* filled);
  // What to copy now, to pages taken from the store. Empty: nothing that is known, or no room.
  std::vector<kv::PageCopy> Next(const HeldMap& held, const FilledBlocks& filled, PageStore* pages);
  // What Next gave is here, or failed and is to be tried again.
  void Came(bool here);
  // Whether a flip would find more not copied than it shall.
  bool behind() const {
    return full_.size() + has_.size() + queue_.size() + going_.size() > limits_.left;
  }

  uint64_t short_of_room = 0;  // for the log

 private:
  enum class Copied { kAll, kNothing, kLater, kNoRoom };
  // A block that is known whole.
  Copied Copy(const HeldMap& held, const BlockName& name, const FilledBlocks::Block& block,
              PageStore* pages, std::vector<kv::PageCopy>* copies);
  // The rank of the target where requests of a home stay; -1: it gives them up.
  int32_t StaysAt(uint32_t home) const;
  // Where the target wants a block of a home on this rank; empty: not at all, or it is not known
  // yet who will be its home.
  const std::vector<HeldMap::Lane>& Wanted(uint32_t home, const FilledBlocks::Block& block);

  const uint64_t attempt_;
  const Limits limits_;
  const uint32_t block_tokens_, rank_;
  std::vector<int32_t> new_of_old_;
  HeldMap target_;
  // By layer: its attention changes, or homes do. KV of the other layers stays in place and is not
  // reported: a flip of a run changes a few layers of many.
  std::vector<bool> moves_;
  std::map<uint32_t, std::vector<HeldMap::Lane>> wanted_;  // by rank of the target
  std::vector<uint64_t> load_;                             // of these: blocks
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
