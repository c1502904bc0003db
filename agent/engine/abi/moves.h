// Moves of blocks between regions. Moves that are adjacent on both sides are merged.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/client/include/tangram/client.h"
#include "agent/engine/abi/manifest.h"
#include "agent/engine/ahead/copies.h"

namespace tangram::engine {

// No move is longer than one pull.
class Moves {
 public:
  void Add(uint32_t rank, uint64_t source, uint64_t target, uint64_t length) {
    bytes_ += length;
    if (!list_.empty()) {
      tg_kv_move& last = list_.back();
      if (last.source_rank == rank && last.source_offset + last.length == source &&
          last.target_offset + last.length == target &&
          last.length + length <= Copies::kPullAtOnce) {
        last.length += static_cast<uint32_t>(length);
        return;
      }
    }
    list_.push_back({rank, source, target, static_cast<uint32_t>(length)});
  }
  // Moves blocks of `theirs` at that rank into those of `mine`, in all sets; the layouts are alike,
  // and the two lists have the same length.
  void AddBlocks(uint32_t rank, const BlockLayout& theirs, const std::vector<uint32_t>& from,
                 const BlockLayout& mine, const std::vector<uint32_t>& to) {
    for (size_t s = 0; s < mine.sets.size(); ++s) {
      const BlockSet &source = theirs.sets[s], &target = mine.sets[s];
      for (uint64_t layer = 0; layer < target.layers; ++layer) {
        for (size_t b = 0; b < to.size(); ++b) {
          Add(rank, source.At(layer, from[b]), target.At(layer, to[b]), target.block_bytes);
        }
      }
    }
  }
  const std::vector<tg_kv_move>& list() const { return list_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::vector<tg_kv_move> list_;
  uint64_t bytes_ = 0;
};

}  // namespace tangram::engine
