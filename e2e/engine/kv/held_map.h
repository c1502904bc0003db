// The KV pages that each rank holds of a block of each home, under one layout.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/kv/plan.h"
#include "agent/kv/sides.h"

namespace tangram::engine {

class HeldMap {
 public:
  // One KV head in layers [layer, layer + layers).
  struct Lane {
    uint32_t kv_head = 0, layer = 0, layers = 0;
  };

  HeldMap() = default;
  HeldMap(const std::vector<kv::LayerGroups>& groups, const kv::Shape& shape, uint32_t ranks);

  uint32_t ranks() const { return ranks_; }
  // KV heads that `rank` holds of blocks of `home` in a layer.
  kv::Heads At(uint32_t home, uint32_t rank, uint32_t layer) const {
    return runs_[run_of_[layer]].seats.Of(home, rank);
  }
  // All lanes of a block that `rank` holds, by head, then by layer. Adjacent layers form one lane.
  std::vector<Lane> Lanes(uint32_t home, uint32_t rank) const;
  // Pages that one block of `home` takes on `rank`.
  uint32_t PagesPerBlock(uint32_t home, uint32_t rank) const {
    return cost_[size_t{home} * ranks_ + rank];
  }
  // Whether `rank` may be the home of requests: it is in an attention group of every layer.
  bool Accepts(uint32_t rank) const { return rank < ranks_ && accepts_[rank]; }

 private:
  // Layers with the same groups.
  struct Run {
    uint32_t layer = 0, layers = 0;
    kv::Seats seats;
  };

  uint32_t ranks_ = 0, kv_heads_ = 0;
  std::vector<Run> runs_;
  std::vector<uint32_t> run_of_;  // [layers]
  std::vector<uint32_t> cost_;    // [home][rank]
  std::vector<bool> accepts_;     // [rank]
};

}  // namespace tangram::engine
