// Which KV pages each rank holds of a block of each home, under one layout.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/base/status.h"
#include "agent/client/include/tangram/client.h"
#include "agent/kv/plan.h"

namespace tangram::engine {

// The attention groups of a layout in the words of the KV plan: [layers].
Result<std::vector<kv::LayerGroups>> GroupsOf(const tg_maps& maps, const tg_model& model);

class HeldMap {
 public:
  // KV heads [first, first + heads) of one layer, at `offset` in a block's page list (the
  // order of kv::HeldBlock: layer, then head).
  struct Layer {
    uint32_t offset = 0, first = 0, heads = 0;
  };

  HeldMap() = default;
  HeldMap(const std::vector<kv::LayerGroups>& groups, const kv::Shape& shape, uint32_t ranks);

  uint32_t ranks() const { return ranks_; }
  uint32_t layers() const { return layers_; }
  // What `rank` holds of blocks of `home`.
  const Layer& At(uint32_t home, uint32_t rank, uint32_t layer) const {
    return held_[(size_t{home} * ranks_ + rank) * layers_ + layer];
  }
  // Pages that one block of `home` takes on `rank`.
  uint32_t PagesPerBlock(uint32_t home, uint32_t rank) const {
    return cost_[size_t{home} * ranks_ + rank];
  }
  // May `rank` be the home of requests: is it in an attention group of every layer?
  bool Accepts(uint32_t rank) const { return rank < ranks_ && accepts_[rank]; }

 private:
  uint32_t ranks_ = 0, layers_ = 0;
  std::vector<Layer> held_;     // [home][rank][layer]
  std::vector<uint32_t> cost_;  // [home][rank]
  std::vector<bool> accepts_;   // [rank]
};

}  // namespace tangram::engine
